// Starts torchup as Linux 4.18 would have it: no pidfds, no clone3, no close_range. A seccomp filter answers for the
// kernel; what torchup starts has it too. TORCHUP_PROGRAM is the program's path.

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>

namespace {

constexpr unsigned pidfd_send_signal_call = 424, pidfd_open_call = 434, clone3_call = 435, close_range_call = 436;
constexpr unsigned by_pidfd = 3;
constexpr unsigned wants_pidfd = 0x1000;  ///< CLONE_PIDFD
constexpr unsigned call = offsetof(seccomp_data, nr), first_argument = offsetof(seccomp_data, args);

constexpr sock_filter load(unsigned offset) { return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset); }
constexpr sock_filter answer(unsigned what) { return BPF_STMT(BPF_RET | BPF_K, what); }
/// Skips so many rules where the word is another.
constexpr sock_filter unless(unsigned word, unsigned char skipped) {
  return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word, 0, skipped);
}

}  // namespace

int main(int, char** words) {
  constexpr unsigned unknown = SECCOMP_RET_ERRNO | ENOSYS, invalid = SECCOMP_RET_ERRNO | EINVAL;
  std::array rules{load(call),
                   unless(pidfd_send_signal_call, 1),
                   answer(unknown),
                   unless(pidfd_open_call, 1),
                   answer(unknown),
                   unless(clone3_call, 1),
                   answer(unknown),
                   unless(close_range_call, 1),
                   answer(unknown),
                   unless(SYS_waitid, 4),
                   load(first_argument),
                   unless(by_pidfd, 1),
                   answer(invalid),
                   answer(SECCOMP_RET_ALLOW),
                   unless(SYS_clone, 3),
                   load(first_argument),
                   sock_filter BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, wants_pidfd, 0, 1),
                   answer(invalid),
                   answer(SECCOMP_RET_ALLOW)};
  const sock_fprog filter{static_cast<unsigned short>(rules.size()), rules.data()};
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0 &&
      (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)) {
    std::perror("a seccomp filter");
    return 77;
  }
  ::execv(TORCHUP_PROGRAM, words);
  std::perror(TORCHUP_PROGRAM);
  return 127;
}

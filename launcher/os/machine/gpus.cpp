#include "launcher/os/machine/gpus.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>

#include "launcher/core/machine/gpu_text.hpp"
#include "launcher/os/machine/cpus.hpp"
#include "launcher/os/machine/nvml.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {
namespace {

bool driver_loaded() {
  // A native driver, that of a container that was given GPUs, the one of WSL.
  return access("/proc/driver/nvidia/version", F_OK) == 0 || access("/dev/nvidiactl", F_OK) == 0 ||
         access("/dev/dxg", F_OK) == 0;
}

[[noreturn]] void run_child(const GpuQuery& query, int out) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Our parent's handlers would report signals of the terminal a second time.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ::signal(signal, SIG_DFL);
  const int null = open("/dev/null", O_RDWR);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (null >= 0 && standard != out) dup2(null, standard);
  }
  const std::string text = to_gpu_text(ask_nvml(query.library));
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t written = write(out, rest.data(), rest.size());
    if (written < 0 && errno != EINTR) _exit(1);
    if (written > 0) rest.remove_prefix(static_cast<std::size_t>(written));
  }
  _exit(0);
}

/// Reads until the child closes its end. False when `until` came first.
bool read_answer(int in, TimePoint until, std::string& answer) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    if (left <= 0) return false;
    pollfd readable{in, POLLIN, 0};
    if (poll(&readable, 1, static_cast<int>(left)) <= 0) continue;
    std::array<char, 4096> buffer;
    const ssize_t count = read(in, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0 || answer.size() > gpu_text_bytes_max) return true;
    answer.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

/// Takes the child's end; one in uninterruptible sleep is left behind after a second.
void reap(pid_t child) {
  const UniqueFd pidfd{static_cast<int>(syscall(SYS_pidfd_open, child, 0))};
  pollfd ended{pidfd.get(), POLLIN, 0};
  if (pidfd) poll(&ended, 1, 1000);
  waitpid(child, nullptr, WNOHANG);
}

}  // namespace

Gpus read_gpus(const GpuQuery& query) {
  if (query.driver_check && !driver_loaded()) return {{}, "no NVIDIA driver is loaded"};

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {{}, "cannot ask the driver: no pipe"};
  UniqueFd in{ends[0]};
  UniqueFd out{ends[1]};
  const pid_t child = fork();
  if (child < 0) return {{}, "cannot ask the driver: no process"};
  if (child == 0) run_child(query, out.get());
  out.reset();

  std::string answer;
  const bool in_time = read_answer(in.get(), std::chrono::steady_clock::now() + query.limit, answer);
  kill(child, SIGKILL);  // it has answered, or it never will
  reap(child);
  if (!in_time) {
    const auto limit_ms = std::chrono::duration_cast<std::chrono::milliseconds>(query.limit).count();
    return {{}, "the NVIDIA driver gave no answer within " + std::to_string(limit_ms) + " ms"};
  }
  std::optional<Gpus> gpus = from_gpu_text(answer);
  if (!gpus) return {{}, "NVML ended without an answer"};
  for (Gpu& gpu : gpus->list) gpu.numa_node = pci_numa_node(gpu.pci);
  return *gpus;
}

}  // namespace torchup

// What looks are taken with: mail, the program for native stacks, and the workers' leave to read them.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <thread>

#include "launcher/os/diagnosis/look_mail.hpp"
#include "launcher/os/diagnosis/stack_helper.hpp"
#include "launcher/os/io/child_end.hpp"
#include "launcher/os/worker/child_process.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/tracing.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

TimePoint now() { return std::chrono::steady_clock::now(); }

std::vector<int> ranks_of(const std::vector<LookMail::Answer>& answers) {
  std::vector<int> ranks;
  for (const auto& answer : answers) ranks.push_back(answer.local_rank.value());
  return ranks;
}

}  // namespace

TEST_CASE("only the answer that is waited for arrives, once", "[process][diagnosis]") {
  LookMail mail;
  const std::uint64_t number = mail.expect(LocalRank{3}, 100).value();
  mail.put(LocalRank{3}, {number + 1, 5});
  mail.put(LocalRank{2}, {number, 5});
  CHECK(mail.take(now()).empty());
  mail.put(LocalRank{3}, {number, 5});
  mail.put(LocalRank{3}, {number, 6});
  const auto answers = mail.take(now() + 10s);
  REQUIRE(ranks_of(answers) == std::vector{3});
  CHECK(answers[0].length == 5);
  CHECK(mail.take(now()).empty());
}

TEST_CASE("who owes an answer is not asked again until it has given it", "[process][diagnosis]") {
  LookMail mail;
  const std::uint64_t number = mail.expect(LocalRank{0}, 100).value();
  mail.forget();
  CHECK_FALSE(mail.expect(LocalRank{0}, 100));
  SECTION("late, which is no answer to another question") {
    mail.put(LocalRank{0}, {number, 1});
    CHECK(mail.take(now()).empty());
    CHECK(mail.expect(LocalRank{0}, 100).value() > number);
  }
  SECTION("another process does not owe it") { CHECK(mail.expect(LocalRank{0}, 101)); }
}

TEST_CASE("who closes the mail waits for nobody", "[process][diagnosis]") {
  LookMail mail;
  static_cast<void>(mail.expect(LocalRank{0}, 100));
  const TimePoint begin = now();
  std::thread closer{[&] { mail.close(); }};
  CHECK(mail.take(begin + 100s).empty());
  CHECK_FALSE(mail.pause(begin + 100s));
  closer.join();
  CHECK(mail.is_closed());
  CHECK(now() - begin < 50s);
}

TEST_CASE("native stacks come from torchup under another name", "[process][diagnosis]") {
  const std::filesystem::path program = TORCHUP_PROGRAM;
  CHECK(std::filesystem::read_symlink(program.parent_path() / "torchup-stack") == program.filename());
  const LookMail mail;
  const pid_t own = ::getpid();
  StackHelper helper{program, {{own, own}, {1 << 30, 0}}};
  REQUIRE(helper.pid() > 0);
  const auto threads = helper.read(now() + 60s, mail.closing());
  REQUIRE(threads.size() == 2);
  CHECK(threads[0].process == own);
  CHECK(threads[0].frames.empty() == !threads[0].problem.empty());  // without libdw, or where ptrace is refused
  CHECK(threads[1].process == 1 << 30);
  CHECK_FALSE(threads[1].problem.empty());
}

TEST_CASE("a helper that cannot help says why", "[process][diagnosis]") {
  LookMail mail;
  SECTION("it is not there") {
    StackHelper helper{"/nowhere/torchup", {{7, 7}}};
    const auto threads = helper.read(now() + 60s, mail.closing());
    REQUIRE(threads.size() == 1);
    CHECK(threads[0].problem.find("/nowhere/torchup") != std::string::npos);
  }
  SECTION("it says nothing") {
    StackHelper helper{"/bin/true", {{7, 7}}};
    CHECK(helper.read(now() + 60s, mail.closing())[0].problem == "torchup-stack has ended without an answer");
  }
  SECTION("it takes too long, or nobody waits any more") {
    const bool closed = GENERATE(false, true);
    const test::TemporaryFolder folder;
    const std::filesystem::path program = folder.path / "still";
    std::ofstream{program} << "#!/bin/sh\nexec sleep 10000\n";
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    StackHelper helper{program, {{7, 7}}};
    const pid_t pid = helper.pid();
    if (closed) mail.close();
    const auto threads = helper.read(closed ? now() + 100s : now(), mail.closing());
    CHECK(threads[0].problem == "torchup-stack gives no answer in time");
    CHECK(::kill(pid, 0) == 0);
  }
}

namespace {

/// A program that leaves a process of its group behind it, which closes our end of its output when `go` is there.
std::filesystem::path leaving(const std::filesystem::path& folder) {
  const std::filesystem::path program = folder / "leaving";
  std::ofstream{program} << "#!/bin/sh\ncd " << folder
                         << "\n(until [ -e go ]; do sleep 0.01; done; exec sleep 10000 >/dev/null 2>&1) &\n"
                            "echo $$ $! > part\nmv part pids\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  return program;
}

/// Waits for that program as somebody else does who takes all that has ended. Returns who is left behind.
pid_t reap_for(const std::filesystem::path& folder) {
  const TimePoint end = now() + 100s;
  while (!std::filesystem::exists(folder / "pids") && now() < end) std::this_thread::sleep_for(1ms);
  pid_t leader = 0;
  pid_t left = 0;
  std::ifstream{folder / "pids"} >> leader >> left;
  REQUIRE(leader > 0);
  REQUIRE(::waitpid(leader, nullptr, 0) == leader);
  std::ofstream{folder / "go"};
  return left;
}

}  // namespace

TEST_CASE("a helper that somebody else has reaped is not killed by its number", "[process][diagnosis]") {
  const test::TemporaryFolder folder;
  const std::filesystem::path program = leaving(folder.path);
  pid_t left = 0;
  {
    const StackHelper helper{program, {{7, 7}}};
    left = reap_for(folder.path);
  }
  CHECK(::kill(left, 0) == 0);  // who is left in its group stands in for whom its number is by now
  ::kill(left, SIGKILL);
}

TEST_CASE("workers let their agent's programs trace them", "[process][diagnosis]") {
  // Few machines of tests have Yama, without which the call changes nothing. So a filter kills who makes it, for us.
  const pid_t agent = ::fork();
  if (agent == 0) {
    const auto low = [](std::size_t offset) { return static_cast<__u32>(offset); };
    std::array<sock_filter, 9> rules{{
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, low(offsetof(seccomp_data, nr))),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, low(offsetof(seccomp_data, args))),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PR_SET_PTRACER, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, low(offsetof(seccomp_data, args) + sizeof(__u64))),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<__u32>(::getpid()), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    }};
    const sock_fprog program{static_cast<unsigned short>(rules.size()), rules.data()};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) ::_exit(2);
    if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) ::_exit(2);
    ChildRequest request;
    request.executable = "/bin/true";
    request.arguments = {"true"};
    const auto child = start_child(request);
    ::_exit(child && reap_child(child->pid) == -SIGSYS ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(agent, &status, 0) == agent);
  test::need(!WIFEXITED(status) || WEXITSTATUS(status) != 2, "there are no seccomp filters here");
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

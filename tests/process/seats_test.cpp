#include "launcher/os/worker/seats.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "launcher/core/scheduler/seat_words.hpp"
#include "launcher/os/io/packet.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

std::string fresh_name(const char* test) { return fmt::format("torchup.test.{}.{}", test, ::getpid()); }

/// A socket of this name: where somebody waits under it, connected; or waiting there itself. Empty: it cannot be had.
UniqueFd socket_of(const std::string& name, decltype(&::connect) how) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  UniqueFd made{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  if (how(made.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) return {};
  return made;
}

/// Connected as soon as somebody waits there.
UniqueFd connected_to(const std::string& name) {
  for (const auto end = Clock::now() + 60s; Clock::now() < end; std::this_thread::sleep_for(1ms)) {
    if (UniqueFd made = socket_of(name, &::connect)) return made;
  }
  return {};
}

/// A process beside this one.
class Beside {
 public:
  explicit Beside(const std::function<int()>& work) : pid_{::fork()} {
    if (pid_ == 0) ::_exit(work());
  }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;
  ~Beside() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  /// Its exit code.
  int end() {
    int status = -1;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_;
};

/// Ends the test as skipped without root, who alone can be another user.
void need_root() {
  if (::geteuid() == 0) return;
  std::printf("skipped: to be another user needs root\n");
  std::exit(77);
}
bool become_nobody() { return ::setuid(65534) == 0; }

}  // namespace

TEST_CASE("all tasks of a node end with the agent's code", "[process][seats]") {
  const std::string name = fresh_name("all");
  std::array<int, 2> codes{-1, -1};
  {
    const std::jthread first{[&] { codes[0] = sit(name, {1, {1}, "1"}).exit_code; }};
    const std::jthread second{[&] { codes[1] = sit(name, {2, {2}, {}}).exit_code; }};
    Seats seats;
    const auto gathered = seats.gather(name, 3);
    REQUIRE(gathered.has_value());
    REQUIRE(seats.cards().size() == 2);
    seats.tell(7);
  }
  REQUIRE(codes == std::array<int, 2>{7, 7});
}

TEST_CASE("tasks that do not come are named, and those that have come hear of it", "[process][seats]") {
  const std::string name = fresh_name("missing");
  int code = -1;
  {
    const std::jthread third{[&] { code = sit(name, {3, {}, {}}).exit_code; }};
    Seats seats;
    const auto come = seats.gather(name, 2);
    REQUIRE(come.has_value());
    const auto gathered = seats.gather(name, 5, 1ms);
    REQUIRE(gathered.has_error());
    REQUIRE(gathered.error().message() == "of the 5 tasks on this node these have not come within 1 s: 1-2,4");
    seats.tell(66);
  }
  REQUIRE(code == 66);
}

TEST_CASE("a task without an agent ends with 67, one whose agent goes without a word with 70", "[process][seats]") {
  REQUIRE(sit(fresh_name("nobody"), {1, {}, {}}, 100ms).exit_code == 67);
  const std::string name = fresh_name("gone");
  SeatEnd end;
  {
    const std::jthread task{[&] { end = sit(name, {1, {}, {}}); }};
    Seats seats;
    const auto gathered = seats.gather(name, 2);
    REQUIRE(gathered.has_value());
  }
  REQUIRE(end.exit_code == 70);
  REQUIRE_FALSE(end.why.empty());
}

TEST_CASE("two agents of one name are one too many", "[process][seats]") {
  const std::string name = fresh_name("twice");
  const UniqueFd first = socket_of(name, &::bind);
  REQUIRE(first);
  REQUIRE(Seats{}.gather(name, 2).error().code == boost::system::errc::address_in_use);
}

TEST_CASE("who comes and says nothing makes the wait for the others no longer", "[process][seats]") {
  const std::string name = fresh_name("silent");
  std::vector<UniqueFd> silent;
  Duration took{0};
  {
    const std::jthread strangers{[&] {
      for (int i = 0; i < 3; ++i) silent.push_back(connected_to(name));
    }};
    Seats seats;
    const auto begin = Clock::now();
    const auto gathered = seats.gather(name, 2, 2s);
    took = Clock::now() - begin;
    REQUIRE(gathered.error().code == make_error_code(errc::refused));
    REQUIRE(seats.cards().empty());
    const UniqueFd last = socket_of(name, &::bind);  // nobody is left to wait for
    REQUIRE(last);
    REQUIRE(::listen(last.get(), 8) == 0);
  }
  REQUIRE(silent.front());
  REQUIRE(took < 5s);
}

TEST_CASE("an agent that has no descriptor for its tasks says so at once", "[process][seats]") {
  const std::string name = fresh_name("full");
  const Beside task{[&] { return sit(name, {1, {}, {}}).exit_code; }};
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int next = UniqueFd{::dup(STDIN_FILENO)}.get();
  const rlimit one_more{static_cast<rlim_t>(next) + 1, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &one_more) == 0);
  const auto gathered = Seats{}.gather(name, 2);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE(gathered.has_error());
  REQUIRE(gathered.error().code == boost::system::errc::too_many_files_open);
}

TEST_CASE("a task of another user is not heard", "[process][seats]") {
  need_root();
  const std::string name = fresh_name("stranger");
  Beside task{[&] {
    if (!become_nobody()) return 1;
    const UniqueFd agent = connected_to(name);
    if (!agent) return 2;
    static_cast<void>(send_packet(agent.get(), card_text({1, {}, {}})));  // to one who may have gone already
    char nothing = 0;
    return ::recv(agent.get(), &nothing, 1, 0) <= 0 ? 3 : 4;
  }};
  Seats seats;
  const auto gathered = seats.gather(name, 2, 2s);
  REQUIRE(gathered.error().code == make_error_code(errc::refused));
  REQUIRE(seats.cards().empty());
  REQUIRE(task.end() == 3);
}

TEST_CASE("an agent of another user has no seats", "[process][seats]") {
  need_root();
  const std::string name = fresh_name("strange_agent");
  const Beside agent{[&] {
    Seats seats;
    if (!become_nobody() || !seats.gather(name, 2)) return 1;
    seats.tell(0);
    return 0;
  }};
  REQUIRE(connected_to(name));  // it is there
  REQUIRE(sit(name, {1, {}, {}}, 200ms).exit_code == 67);
}

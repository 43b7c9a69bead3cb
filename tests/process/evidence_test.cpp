// What the kernel says of an attempt: in its log, the real one, which everybody on the machine writes to; and of ports.

#include "launcher/os/output/evidence.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "launcher/os/output/circumstances.hpp"

using namespace torchup;

namespace {

bool write_kernel_log(std::string line) {
  line += '\n';  // which ends the record: without it the kernel waits for more
  const UniqueFd log{::open("/dev/kmsg", O_WRONLY | O_CLOEXEC)};
  return log && ::write(log.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size());
}

/// How this process's lines end: another one may run such a test at the same time.
std::string own_end() { return " torchup evidence test of " + std::to_string(::getpid()); }

/// What `evidence` holds of this test's lines.
std::vector<std::string> own_lines(const DeathEvidence& evidence) {
  std::vector<std::string> lines;
  for (const std::string& line : evidence.kernel_lines)
    if (line.ends_with(own_end())) lines.push_back(line);
  return lines;
}

std::string xid(int number) { return "NVRM: Xid " + std::to_string(number) + own_end(); }

bool kernel_log_answers() {
  DeathBaseline probe;
  return write_kernel_log(xid(1)) && !own_lines(probe.collect(::getpid(), 1)).empty();
}

}  // namespace

TEST_CASE("who listens on a port is known by pid and command", "[process][evidence]") {
  UniqueFd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(::bind(socket.get(), name, size) == 0);
  REQUIRE(::getsockname(socket.get(), name, &size) == 0);
  const Port port{ntohs(address.sin_port)};
  REQUIRE(listener_on(port).empty());  // bound, and no more
  REQUIRE(::listen(socket.get(), 1) == 0);
  const std::string who = listener_on(port);
  REQUIRE(who.starts_with("pid " + std::to_string(::getpid()) + " ("));
  REQUIRE(who.find("launcher_machine_tests") != std::string::npos);
}

TEST_CASE("the kernel's log of an attempt ends where the next begins", "[process][evidence]") {
  if (!kernel_log_answers()) {
    WARN("what is written to the kernel's log cannot be read here");
    return;
  }

  DeathBaseline first;
  REQUIRE(write_kernel_log(xid(2)));
  first.next_attempt();
  DeathBaseline second;
  REQUIRE(write_kernel_log(xid(3)));

  // Collected late: the next attempt has left its own lines already.
  CHECK(own_lines(first.collect(::getpid(), 1)) == std::vector{xid(2)});
  CHECK(own_lines(second.collect(::getpid(), 1)) == std::vector{xid(3)});
}

TEST_CASE("the kernel's log of the last attempt goes on to its reading", "[process][evidence]") {
  if (!kernel_log_answers()) {
    WARN("what is written to the kernel's log cannot be read here");
    return;
  }

  DeathBaseline last;
  REQUIRE(write_kernel_log(xid(4)));
  last.next_attempt();  // which leaves no line
  CHECK(own_lines(last.collect(::getpid(), 1)) == std::vector{xid(4)});
}

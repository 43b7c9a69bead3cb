#include "launcher/core/scheduler/hostfile.hpp"

#include <catch2/catch.hpp>

namespace torchup {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using HostVector = std::vector<Host>;

std::string why_no_file(std::string_view text) {
  const auto hosts = parse_hostfile(text, "f");
  return hosts ? "none" : hosts.error().message();
}
std::string why_no_list(std::string_view text) {
  const auto hosts = parse_hosts(text);
  return hosts ? "none" : hosts.error().message();
}

}  // namespace

TEST_CASE("a list of hosts takes names, ranges, users, addresses and slots", "[unit][scheduler]") {
  REQUIRE(*parse_hosts("a,b:2") == HostVector{{"a"}, {"b", 2}});
  REQUIRE(*parse_hosts("gpu[01-02,7]:8, login") == HostVector{{"gpu01", 8}, {"gpu02", 8}, {"gpu7", 8}, {"login"}});
  REQUIRE(*parse_hosts("me@a:3,you@b[1-2]") == HostVector{{"me@a", 3}, {"you@b1"}, {"you@b2"}});
  REQUIRE(*parse_hosts("[fe80::1]:4,me@[::1]") == HostVector{{"fe80::1", 4}, {"me@::1"}});
  REQUIRE(*parse_hosts("10.0.0.1:16384") == HostVector{{"10.0.0.1", 16384}});
}

TEST_CASE("what is wrong with --hosts is said", "[unit][scheduler]") {
  REQUIRE_THAT(why_no_list(""), StartsWith("--hosts: '' names no host"));
  REQUIRE_THAT(why_no_list("a,,b"), StartsWith("--hosts: '' names no host"));
  REQUIRE_THAT(why_no_list("a,b,a"), Contains("the host a comes twice"));
  REQUIRE_THAT(why_no_list("me@a,you@a"), Contains("the host you@a comes twice"));
  REQUIRE_THAT(why_no_list("-oProxyCommand=x"), Contains("begins with a dash"));
  REQUIRE_THAT(why_no_list("a b"), Contains("is no host's name"));
  for (const char* bad :
       {"a:", "a:0", "a:-1", "a:16385", "a:x", "a:8x", "[::1]8", "a[1-2]x]", "a[2-1]", "a[1", "[::1]:"}) {
    CAPTURE(bad);
    REQUIRE_THAT(why_no_list(bad), StartsWith("--hosts: "));
  }
}

TEST_CASE("hostfiles of Open MPI, MPICH, DeepSpeed and Horovod", "[unit][scheduler]") {
  REQUIRE(*parse_hostfile("# cluster\na\n\nb:8 # eight\n\tc slots=4 max_slots=8 addr=10.0.0.3\r\nd slots=2", "f") ==
          HostVector{{"a"}, {"b", 8}, {"c", 4, "10.0.0.3"}, {"d", 2}});
  REQUIRE(*parse_hostfile("n[1-2] slots=4\n", "f") == HostVector{{"n1", 4}, {"n2", 4}});
}

TEST_CASE("what is wrong with a hostfile is said with its line", "[unit][scheduler]") {
  REQUIRE(why_no_file("# none\n\n") == "f: it names no host");
  REQUIRE(why_no_file("a\na slots=2\n") == "f:2: the host a comes twice");
  REQUIRE(why_no_file("a\n\nb cpus=4\n") == "f:3: 'cpus=4' is not known; slots=N, max_slots=N and addr=ADDRESS are");
  REQUIRE(why_no_file("a slots=0\n") == "f:1: '0' is no number of workers from 1 to 16384");
  REQUIRE_THAT(why_no_file("a max_slots=x\n"), StartsWith("f:1: 'x' is no number"));
  REQUIRE(why_no_file("a addr=\n") == "f:1: '' is no address");
  REQUIRE(why_no_file("-l\n") == "f:1: the name '-l' begins with a dash");
  REQUIRE_THAT(why_no_file("a\x1b[2J\n"), StartsWith("f:1: "));
  REQUIRE(why_no_file("a\x1b[2J\n").find('\x1b') == std::string::npos);
}

TEST_CASE("a hostfile has limits: hosts, bytes of a line, bytes in all", "[unit][scheduler]") {
  REQUIRE(parse_hostfile("n[1-1024]\n", "f")->size() == 1024);
  REQUIRE(why_no_file("n[1-1025]\n") == "f:1: there are more than 1024 hosts");
  REQUIRE(parse_hosts("n[1-1024]")->size() == 1024);
  REQUIRE(why_no_list("n[1-1024],m") == "--hosts: there are more than 1024 hosts");
  const std::string longest = "a #" + std::string(hostfile_line_bytes_max - 3, 'x');
  REQUIRE(parse_hostfile(longest, "f")->size() == 1);
  REQUIRE(why_no_file(longest + "x") == "f:1: the line has more than 4096 bytes");
  const std::string largest = "a\n" + std::string(hostfile_bytes_max - 2, '\n');
  REQUIRE(parse_hostfile(largest, "f")->size() == 1);
  REQUIRE(why_no_file(largest + "\n") == "f: a hostfile has at most 1 MiB");
}

}  // namespace torchup

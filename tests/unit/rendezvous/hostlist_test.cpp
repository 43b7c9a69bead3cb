#include "rendezvous/core/text/hostlist.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "rendezvous/core/text/names.hpp"

using namespace torchup;

namespace {

using Names = std::vector<std::string>;

Names expanded(std::string_view text) {
  const auto hosts = expand_hostlist(text);
  if (!hosts) FAIL(hosts.error().message());
  return *hosts;
}
boost::system::error_code refusal(std::string_view text) {
  const auto hosts = expand_hostlist(text);
  return hosts ? boost::system::error_code{} : hosts.error().code;
}

}  // namespace

TEST_CASE("a host list is what Slurm means by it", "[unit][hostlist]") {
  REQUIRE(expanded("").empty());
  REQUIRE(expanded("a") == Names{"a"});
  REQUIRE(expanded("gpu[01-03,7],login") == Names{"gpu01", "gpu02", "gpu03", "gpu7", "login"});
  REQUIRE(expanded("r[1-2]n[9-10]x") == Names{"r1n9x", "r1n10x", "r2n9x", "r2n10x"});
  REQUIRE(expanded("a[0099-100]") == Names{"a0099", "a0100"});
  REQUIRE(expanded("a[18446744073709551615]") == Names{"a18446744073709551615"});
  REQUIRE(expanded("a[18446744073709551614-18446744073709551615]").size() == 2);
}

TEST_CASE("what is no host list is refused", "[unit][hostlist]") {
  for (const char* text : {"a[", "a]", "a[]", "a[1", "a[1-]", "a[-1]", "a[2-1]", "a[x]", "a[1[2]]", ",", "a,,b", "a,,",
                           "a[18446744073709551616]", "a\x1b[1]", "\xff"}) {
    INFO(text);
    REQUIRE(refusal(text) == make_error_code(errc::bad_value));
  }
}

TEST_CASE("a host list has its limits in all that it multiplies", "[unit][hostlist]") {
  const auto limit = make_error_code(errc::limit_exceeded);
  REQUIRE(expanded("a[1-65536]").size() == hostlist_hosts_max);
  REQUIRE(refusal("a[1-65537]") == limit);
  REQUIRE(refusal("a[0-18446744073709551615]") == limit);
  REQUIRE(refusal("a[1-18446744073709551615]") == limit);
  REQUIRE(expanded("a[1-65535,7]").size() == hostlist_hosts_max);
  REQUIRE(refusal("a[1-65536,7]") == limit);
  REQUIRE(refusal("a[1-40000,1-40000]") == limit);
  REQUIRE(expanded("a[1-65535],b").size() == hostlist_hosts_max);
  REQUIRE(refusal("a[1-65536],b") == limit);
  REQUIRE(expanded("a[1-256][1-256]").size() == hostlist_hosts_max);
  REQUIRE(refusal("a[1-256][1-257]") == limit);
  REQUIRE(expanded("a[1-2][1][1][1]").size() == 2);
  REQUIRE(refusal("a[1-2][1][1][1][1]") == limit);

  // The width of a number, of the text beside it, and of both together.
  REQUIRE(expanded("[" + std::string(name_bytes_max - 1, '0') + "1]")[0].size() == name_bytes_max);
  REQUIRE(refusal("[" + std::string(name_bytes_max, '0') + "1]") == limit);
  REQUIRE(refusal("[" + std::string(60000, '0') + "1-60000]") == limit);
  REQUIRE(expanded(std::string(name_bytes_max, 'a'))[0].size() == name_bytes_max);
  REQUIRE(refusal(std::string(name_bytes_max + 1, 'a')) == limit);
  REQUIRE(expanded("[1-9]" + std::string(name_bytes_max - 1, 'a')).size() == 9);
  REQUIRE(refusal("[1-10]" + std::string(name_bytes_max - 1, 'a')) == limit);
  REQUIRE(refusal(std::string(name_bytes_max - 1, 'a') + "[1-10]") == limit);
}

TEST_CASE("the names of a host list have a limit together, and nothing larger is made on the way", "[unit][hostlist]") {
  const auto limit = make_error_code(errc::limit_exceeded);
  const std::string tail(name_bytes_max - 4, 'a');
  constexpr std::size_t names = hostlist_bytes_max / name_bytes_max;
  REQUIRE(expanded(fmt::format("[1000-{}]{}", 1000 + names - 1, tail)).size() == names);
  REQUIRE(refusal(fmt::format("[1000-{}]{}", 1000 + names, tail)) == limit);
  REQUIRE(refusal(fmt::format("[1000-{}]{},b", 1000 + names - 1, tail)) == limit);
  REQUIRE(refusal(fmt::format("{}[1000-{}]", tail, 1000 + names)) == limit);
  REQUIRE(refusal(fmt::format("[{:0>256}-{}]", 1, names + 1)) == limit);
}

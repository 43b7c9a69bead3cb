#include "launcher/core/fan_out/host_address.hpp"

#include <catch2/catch.hpp>

using namespace torchup;
using Addresses = std::vector<std::string>;

TEST_CASE("ssh's variable says at which address it has reached a host", "[unit][fan_out]") {
  REQUIRE(reached_by_ssh("10.0.0.9 51022 10.0.0.5 22") == "10.0.0.5");
  REQUIRE(reached_by_ssh("fe80::9%eth0 51022 fe80::5%eth0 22") == "fe80::5%eth0");
  for (const char* nothing : {"", "10.0.0.9", "10.0.0.9 51022", "10.0.0.9 51022 "}) {
    REQUIRE(reached_by_ssh(nothing).empty());
  }
}

TEST_CASE("a host is told to others by an address that leads there from them", "[unit][fan_out]") {
  const Addresses own{"10.0.0.5", "192.168.0.5"};
  REQUIRE(addresses_for_others("", own) == own);
  REQUIRE(addresses_for_others("192.168.0.5", own) == Addresses{"192.168.0.5", "10.0.0.5"});
  REQUIRE(addresses_for_others("100.64.0.7", own) == Addresses{"100.64.0.7", "10.0.0.5", "192.168.0.5"});
  for (const char* alone : {"127.0.0.1", "127.0.1.1", "::1", "fe80::5%eth0"}) {
    REQUIRE(addresses_for_others(alone, own) == Addresses{"10.0.0.5", "192.168.0.5", alone});
    REQUIRE(addresses_for_others(alone, {}) == Addresses{alone});  // all hosts may be this machine
    REQUIRE_FALSE(leads_from_others(alone));
  }
  REQUIRE_FALSE(leads_from_others(""));
  for (const char* address : {"10.0.0.5", "fd00::5", "2001:db8::5"}) REQUIRE(leads_from_others(address));
}

TEST_CASE("this machine's address is to lead to another host", "[unit][fan_out]") {
  REQUIRE(other_host({{"localhost"}, {"me@gpu7"}, {"gpu8"}}, "login.site") == "gpu7");
  REQUIRE(other_host({{"login"}, {.name = "gpu7", .address = "10.0.0.7"}}, "login.site") == "10.0.0.7");
  REQUIRE(other_host({{"localhost"}, {"login"}}, "login.site").empty());
  REQUIRE(other_host({}, "login.site").empty());
}

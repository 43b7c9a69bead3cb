#include "rendezvous/base/cpu_set.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

TEST_CASE("the kernel's CPU lists are read and written", "[unit][cpu_set]") {
  REQUIRE(parse_cpu_list("0-2,4,6-7\n").value() == CpuSet{0, 1, 2, 4, 6, 7});
  REQUIRE(parse_cpu_list("3").value() == CpuSet{3});
  REQUIRE(parse_cpu_list("").value().empty());
  REQUIRE(parse_cpu_list(" 1 , ,0 \n").value() == CpuSet{0, 1});
  REQUIRE(parse_cpu_list("5-5").value() == CpuSet{5});
  REQUIRE(to_cpu_list({0, 1, 2, 4, 6, 7}) == "0-2,4,6-7");
  REQUIRE(to_cpu_list({0, 1}) == "0-1");
  REQUIRE(to_cpu_list({}).empty());
}

TEST_CASE("a damaged CPU list is an error, not a huge set", "[unit][cpu_set]") {
  for (const char* text : {"a", "1-", "-1", "3-1", "1--2", "0-99999999", "1048576", "1;2", "0x1"}) {
    INFO(text);
    REQUIRE_FALSE(parse_cpu_list(text).has_value());
  }
  REQUIRE(parse_cpu_list("1048575").has_value());
}

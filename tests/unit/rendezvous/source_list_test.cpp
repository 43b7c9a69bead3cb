#include "rendezvous/core/text/source_list.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>

using namespace torchup;

TEST_CASE("networks and addresses of both families", "[unit][source_list]") {
  const SourceList list = *SourceList::read("10.1.0.0/16, fd00::/8 ,192.0.2.7,2001:db8::1/128");
  for (const char* inside : {"10.1.0.0", "10.1.255.255", "::ffff:10.1.2.3", "fd12::9", "192.0.2.7", "2001:db8::1"}) {
    CAPTURE(inside);
    REQUIRE(list.contains(inside));
  }
  for (const char* outside :
       {"10.2.0.0", "10.0.255.255", "fe80::1%eth0", "192.0.2.8", "2001:db8::2", "", "node0", "1"}) {
    CAPTURE(outside);
    REQUIRE_FALSE(list.contains(outside));
  }
}

TEST_CASE("every prefix length ends where it says", "[unit][source_list]") {
  REQUIRE(SourceList::read("0.0.0.0/0")->contains("203.0.113.9"));
  REQUIRE_FALSE(SourceList::read("0.0.0.0/0")->contains("fd00::1"));
  REQUIRE(SourceList::read("::/0")->contains("203.0.113.9"));
  REQUIRE(SourceList::read("10.0.0.128/25")->contains("10.0.0.128"));
  REQUIRE_FALSE(SourceList::read("10.0.0.128/25")->contains("10.0.0.127"));
  REQUIRE(SourceList::read("10.0.0.130/31")->contains("10.0.0.131"));
  REQUIRE_FALSE(SourceList::read("10.0.0.130/31")->contains("10.0.0.132"));
  REQUIRE(SourceList::read("fe80::/10")->contains("febf::1%lo"));
}

TEST_CASE("what is no network is an error that names it", "[unit][source_list]") {
  for (const char* text :
       {"", "node0", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "10.0.0.0/8x", "fd00::/129", "10.0.0",
        "1.2.3.4,,5.6.7.8", "10.0.0.0/8,x", "fe80::1%eth0", "10.0.0.0/99999999999999999999"}) {
    CAPTURE(text);
    REQUIRE(SourceList::read(text).has_error());
    REQUIRE(SourceList::read(text).error().code == errc::bad_value);
  }
  REQUIRE(SourceList::read("10.0.0.0/8,nodé/4").error().message().find("\"nodé/4\"") != std::string::npos);
  std::string many = "10.0.0.1";
  for (std::size_t i = 1; i < SourceList::items_max; ++i) many += ",10.0.0.1";
  REQUIRE(SourceList::read(many).has_value());
  REQUIRE(SourceList::read(many + ",10.0.0.1").error().code == errc::limit_exceeded);
}

TEST_CASE("a cover lists few addresses one by one, and many in as narrow networks as fit", "[unit][source_list]") {
  REQUIRE(SourceList::covering({"10.0.0.2", "node7", "10.0.0.1", "10.0.0.2", "fd00::1", "127.0.0.1"}).texts() ==
          std::vector<std::string>{"10.0.0.1", "10.0.0.2", "127.0.0.1", "fd00::1"});
  REQUIRE(SourceList::covering({"10.0.0.4", "10.0.0.5", "192.0.2.1"}, 2).texts() ==
          std::vector<std::string>{"10.0.0.4/31", "192.0.2.1"});
  std::vector<std::string> cluster;
  for (int i = 0; i < 16'384; ++i) {
    cluster.push_back(fmt::format("10.20.{}.{}", i / 250, i % 250 + 1));
    cluster.push_back(fmt::format("fd00:7::{:x}", i + 1));
  }
  const SourceList list = SourceList::covering(cluster, 256);
  REQUIRE(list.texts().size() <= 256);
  for (const std::string& address : cluster) REQUIRE(list.contains(address));
  REQUIRE_FALSE(list.contains("10.21.0.1"));
  REQUIRE_FALSE(list.contains("192.0.2.1"));
  REQUIRE_FALSE(list.contains("fd00:8::1"));
}

TEST_CASE("a cover of nothing is empty and contains nobody", "[unit][source_list]") {
  REQUIRE(SourceList::covering({}).empty());
  REQUIRE_FALSE(SourceList{}.contains("127.0.0.1"));
}

TEST_CASE("a list is widened by what is not in it", "[unit][source_list]") {
  SourceList list = *SourceList::read("10.0.0.0/24,192.0.2.7");
  list.widen({*read_address("10.0.0.0"), *read_address("10.0.0.9"), *read_address("192.0.2.7")});
  REQUIRE(list.texts() == std::vector<std::string>{"10.0.0.0/24", "192.0.2.7"});
  list.widen({*read_address("192.0.2.8")});
  REQUIRE(list.texts() == std::vector<std::string>{"10.0.0.0/24", "192.0.2.7", "192.0.2.8"});
  list.widen({*read_address("10.0.1.1")}, 3);  // those that are closest become one
  REQUIRE(list.texts() == std::vector<std::string>{"10.0.0.0/24", "10.0.1.1", "192.0.2.0/28"});
}

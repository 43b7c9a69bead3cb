#include "rendezvous/core/membership/seating.hpp"

#include <catch2/catch.hpp>

#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/core/text/hostlist.hpp"

using namespace torchup;

namespace {

Join node(const std::string& host, int workers, const std::string& role = "default") {
  Join join;
  join.node = NodeId{host};
  join.host = host;
  join.local_world_size = workers;
  join.role = role;
  return join;
}

std::vector<std::string> hosts_in_order(const std::vector<Join>& joins, RankOrder order,
                                        std::vector<std::string> list = {}) {
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < joins.size(); ++i) candidates.push_back({&joins[i], i});
  std::vector<std::string> hosts;
  for (const std::size_t index : seat(candidates, order, list).order) hosts.push_back(joins[index].host);
  return hosts;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("ranks are consecutive per node and counted per role", "[unit][seating]") {
  const std::vector<Join> joins{node("a", 2, "trainer"), node("b", 3, "reader"), node("c", 1, "trainer")};
  const std::vector<Candidate> candidates{{&joins[0], 0}, {&joins[1], 1}, {&joins[2], 2}};
  const Seating seating = seat(candidates, RankOrder::address, {});
  REQUIRE(seating.world_size == 6);
  REQUIRE(seating.seats == std::vector<Seat>{{GroupRank{0}, Rank{0}, Rank{0}, 3},
                                             {GroupRank{1}, Rank{2}, Rank{0}, 3},
                                             {GroupRank{2}, Rank{5}, Rank{2}, 3}});
}

TEST_CASE("nodes are ordered as asked", "[unit][seating]") {
  const std::vector<Join> joins{node("n10", 1), node("n9", 1), node("n1", 1)};
  REQUIRE(hosts_in_order(joins, RankOrder::address) == Names{"n1", "n9", "n10"});
  REQUIRE(hosts_in_order(joins, RankOrder::join) == Names{"n10", "n9", "n1"});
  REQUIRE(hosts_in_order(joins, RankOrder::hostlist, {"n9", "n1"}) == Names{"n9", "n1", "n10"});
}

TEST_CASE("a scheduler's index orders nodes, whatever is missing", "[unit][seating]") {
  std::vector<Join> joins{node("a", 1), node("b", 2), node("c", 1)};
  const std::vector<int> indices{7, 3, 12};
  for (std::size_t i = 0; i < joins.size(); ++i) joins[i].group_rank = GroupRank{indices[i]};
  REQUIRE(hosts_in_order(joins, RankOrder::index) == Names{"b", "a", "c"});
  joins[2].group_rank = GroupRank{7};  // one that has come back, beside its former self
  REQUIRE(hosts_in_order(joins, RankOrder::index) == Names{"b", "a", "c"});
  joins[0].group_rank.reset();
  REQUIRE(hosts_in_order(joins, RankOrder::index) == Names{"a", "b", "c"});
}

TEST_CASE("an address that the user gave orders its node, not the host's name", "[unit][seating]") {
  std::vector<Join> joins{node("a", 1), node("b", 1), node("c", 1)};
  const std::vector<std::string> addresses{"10.0.0.12", "10.0.0.11", "10.0.0.9"};
  for (std::size_t i = 0; i < joins.size(); ++i) joins[i].addresses = {addresses[i], "192.168.0.1"};
  REQUIRE(hosts_in_order(joins, RankOrder::address) == Names{"a", "b", "c"});
  for (Join& join : joins) join.address_demanded = true;
  REQUIRE(hosts_in_order(joins, RankOrder::address) == Names{"c", "b", "a"});
}

TEST_CASE("numbers in names count as numbers", "[unit][seating]") {
  REQUIRE(natural_less("10.0.0.9", "10.0.0.10"));
  REQUIRE_FALSE(natural_less("10.0.0.10", "10.0.0.9"));
  REQUIRE(natural_less("node", "node1"));
  REQUIRE(natural_less("node07", "node7") != natural_less("node7", "node07"));
  REQUIRE_FALSE(natural_less("a1", "a1"));
  REQUIRE(natural_less("a99999999999999999998", "a99999999999999999999"));
}

TEST_CASE("a round has as many nodes as the terms allow", "[unit][seating]") {
  const JobTerms terms{.min_nodes = 3, .max_nodes = 8, .nodes_multiple_of = 3};
  REQUIRE(round_size(terms, 2) == 0);
  REQUIRE(round_size(terms, 3) == 3);
  REQUIRE(round_size(terms, 5) == 3);
  REQUIRE(round_size(terms, 100) == 6);
  REQUIRE(round_size({.min_nodes = 4, .max_nodes = 5, .nodes_multiple_of = 3}, 5) == 0);
}

TEST_CASE("host lists are read as Slurm writes them", "[unit][hostlist]") {
  REQUIRE(*expand_hostlist("") == Names{});
  REQUIRE(*expand_hostlist("gpu[01-03,7],login") == Names{"gpu01", "gpu02", "gpu03", "gpu7", "login"});
  REQUIRE(*expand_hostlist("r[1-2]n[8-10]x") == Names{"r1n8x", "r1n9x", "r1n10x", "r2n8x", "r2n9x", "r2n10x"});
  REQUIRE(expand_hostlist("n[1-65536]")->size() == 65536);
  for (const char* bad : {"a,,b", "a[1", "a]1", "a[3-1]", "a[]", "a[x]", "n[1-65537]", "n[0-999][0-999]", "[[1]]"}) {
    INFO(bad);
    REQUIRE(expand_hostlist(bad).has_error());
  }
}

TEST_CASE("endpoints are read as torchrun reads them", "[unit][endpoint]") {
  const Port fallback{123};
  REQUIRE(*parse_endpoint("", fallback) == Endpoint{"localhost", fallback});
  REQUIRE(*parse_endpoint("  ", fallback) == Endpoint{"localhost", fallback});
  REQUIRE(*parse_endpoint("dummy.com", fallback) == Endpoint{"dummy.com", fallback});
  REQUIRE(*parse_endpoint("dummy.com:0\n", fallback) == Endpoint{"dummy.com", Port{0}});
  REQUIRE(*parse_endpoint("[2001:db8::1]", fallback) == Endpoint{"2001:db8::1", fallback});
  REQUIRE(*parse_endpoint("[2001:db8::1]:65535", fallback) == Endpoint{"2001:db8::1", Port{65535}});
  for (const char* bad : {"dummy.com:", "dummy.com:abc", "dummy.com:-123", "dummy.com:65536", "~", "dummy.com :123",
                          ":123", "h : 1", "h:000001", "2001:db8::1", "[::1", "::1"}) {
    INFO(bad);
    REQUIRE(parse_endpoint(bad, fallback).has_error());
  }
  REQUIRE(to_string(Endpoint{"fd00::1", Port{7}}) == "[fd00::1]:7");
}

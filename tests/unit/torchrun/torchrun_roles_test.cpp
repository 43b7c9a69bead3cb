#include "rendezvous/core/torchrun_wire/torchrun_roles.hpp"

#include <catch2/catch.hpp>

namespace torchup {

TEST_CASE("roles and ranks are torchrun's JSON", "[unit][torchrun]") {
  Join join;
  join.local_world_size = 2;
  REQUIRE(write_role(join, 1) == R"({"role":"default","rank":1,"local_world_size":2})");
  const auto role = read_role(R"({"role": "trainer", "rank": 0, "local_world_size": 4})");
  REQUIRE(role.has_value());
  REQUIRE(role->name == "trainer");
  REQUIRE(role->local_world_size == 4);
  REQUIRE(read_ranks(write_ranks({1, 6, 0, 2}), 3, 2).value() == TorchrunRanks{1, 6, 0, 2});
  REQUIRE(read_ranks("[0, 1073741824, 0, 1073741824]", 1, 1).value().world_size == world_size_max);
}

TEST_CASE("what is no role, or no ranks, is refused", "[unit][torchrun]") {
  const auto role = [](const std::string& workers) {
    return read_role(R"({"role": "a", "rank": 0, "local_world_size": )" + workers + "}").has_value();
  };
  REQUIRE(role(std::to_string(torchrun_local_world_max)));
  REQUIRE_FALSE(role(std::to_string(torchrun_local_world_max + 1)));
  for (const char* workers : {"0", "-1", "1.5", "\"1\"", "18446744073709551615", "9223372036854775808", "null", "[]"}) {
    REQUIRE_FALSE(role(workers));
  }
  for (const char* text : {"", "[]", "{}", "1", R"({"role": 1, "local_world_size": 1})", R"({"local_world_size": 1})",
                           "{\"role\": \"\xff\", \"local_world_size\": 1}"}) {
    const auto read = read_role(text);
    REQUIRE_FALSE(read.has_value());
    REQUIRE(read.error().message().find('\xff') == std::string::npos);
  }
  for (const char* text :
       {"", "{}", "[0, 1, 0]", "[0, 1, 0, 1, 1]", "[-1, 1, 0, 1]", "[0, 0, 0, 1]", "[1, 1, 0, 1]", "[0, 1, 1, 1]",
        "[0, 4294967296, 0, 1]", "[0, 1073741825, 0, 1]", "[0, 4, 0, 5]", "[\"0\", 1, 0, 1]"}) {
    REQUIRE_FALSE(read_ranks(text, 1, 1).has_value());
  }
}

TEST_CASE("a role and ranks of any length cost no memory", "[unit][torchrun]") {
  const auto role = [](std::size_t bytes) {
    const std::string head = R"({"local_world_size": 1, "role": ")", tail = "\"}";
    return read_role(head + std::string(bytes - head.size() - tail.size(), 'r') + tail).has_value();
  };
  REQUIRE(role(torchrun_role_bytes_max));
  REQUIRE_FALSE(role(torchrun_role_bytes_max + 1));
  const std::string ranks = "[0, 1, 0, 1]";
  REQUIRE(read_ranks(std::string(torchrun_role_bytes_max - ranks.size(), ' ') + ranks, 1, 1).has_value());
  REQUIRE_FALSE(read_ranks(std::string(torchrun_role_bytes_max, ' ') + ranks, 1, 1).has_value());
}

TEST_CASE("ranks that a node of the round cannot have are refused", "[unit][torchrun]") {
  const auto fits = [](const char* text) { return read_ranks(text, 2, 4).has_value(); };
  REQUIRE(fits("[4, 8, 0, 4]"));
  REQUIRE(fits("[1, 5, 0, 4]"));
  REQUIRE_FALSE(fits("[5, 8, 0, 4]"));  // its last worker would be rank 8 of 8
  REQUIRE_FALSE(fits("[4, 8, 1, 4]"));
  REQUIRE_FALSE(fits("[0, 3, 0, 3]"));
  REQUIRE_FALSE(read_ranks("[0, 1, 0, 1]", 2, 1).has_value());  // two nodes have two workers
}

TEST_CASE("ranks are shared out in the order of group ranks, and by role", "[unit][torchrun]") {
  const std::vector<TorchrunRole> roles{{"a", 2}, {"b", 1}, {"a", 3}};
  REQUIRE(share_ranks(roles) == std::vector<TorchrunRanks>{{0, 6, 0, 5}, {2, 6, 0, 1}, {3, 6, 2, 5}});
  REQUIRE(share_ranks({}).empty());
  const std::vector<TorchrunRole> most(std::size_t{nodes_max}, TorchrunRole{"a", torchrun_local_world_max});
  REQUIRE(share_ranks(most).back() == TorchrunRanks{world_size_max - torchrun_local_world_max, world_size_max,
                                                    world_size_max - torchrun_local_world_max, world_size_max});
}

}  // namespace torchup

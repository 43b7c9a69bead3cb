#include "rendezvous/base/worker_env.hpp"

#include <catch2/catch.hpp>
#include <map>

using namespace torchup;

namespace {

VariableLookup from(std::map<std::string, std::string, std::less<>> variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional{found->second};
  };
}

const std::map<std::string, std::string, std::less<>> by_hand{
    {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}};

}  // namespace

TEST_CASE("what the launcher writes the worker reads back", "[unit][worker_env]") {
  WorkerEnv env;
  env.rank = Rank{5};
  env.local_rank = LocalRank{1};
  env.group_rank = GroupRank{2};
  env.role_rank = Rank{3};
  env.role_name = "trainer";
  env.local_world_size = 2;
  env.world_size = 8;
  env.group_world_size = 4;
  env.role_world_size = 6;
  env.master_addr = "fd00::1";
  env.master_port = Port{40001};
  env.restart_count = 1;
  env.max_restarts = 3;
  env.run_id = "job1";
  env.use_agent_store = true;
  env.error_file = "/tmp/e.json";
  std::map<std::string, std::string, std::less<>> variables;
  for (const auto& [name, value] : to_variables(env)) variables[name] = value;
  REQUIRE(variables["TORCHELASTIC_USE_AGENT_STORE"] == "True");
  const auto read = read_worker_env(from(variables));
  REQUIRE(read.has_value());
  REQUIRE(*read == env);
}

TEST_CASE("a program started alone has no worker environment", "[unit][worker_env]") {
  const auto read = read_worker_env(from({{"LOCAL_RANK", "0"}, {"PATH", "/bin"}}));
  REQUIRE(read.has_value());
  REQUIRE_FALSE(read->has_value());
}

TEST_CASE("the four variables of env:// are enough", "[unit][worker_env]") {
  const auto read = read_worker_env(from(by_hand));
  REQUIRE(read.has_value());
  REQUIRE((*read)->rank == Rank{3});
  REQUIRE((*read)->local_rank == LocalRank{3});
  REQUIRE((*read)->local_world_size == 4);
  REQUIRE_FALSE((*read)->use_agent_store);
}

TEST_CASE("a part of the variables is refused and the missing ones are named", "[unit][worker_env]") {
  const auto read = read_worker_env(from({{"RANK", "0"}, {"MASTER_ADDR", "a"}}));
  REQUIRE(read.has_error());
  REQUIRE(read.error().code == errc::missing_value);
  REQUIRE(read.error().message().find("WORLD_SIZE, MASTER_PORT") != std::string::npos);
}

TEST_CASE("a contradiction is refused and names the variable", "[unit][worker_env]") {
  const auto [name, value] = GENERATE(table<std::string, std::string>({{"RANK", "4"},
                                                                       {"RANK", "-1"},
                                                                       {"RANK", "one"},
                                                                       {"WORLD_SIZE", "0"},
                                                                       {"MASTER_PORT", "65536"},
                                                                       {"LOCAL_RANK", "4"},
                                                                       {"MASTER_ADDR", ""}}));
  auto variables = by_hand;
  variables[name] = value;
  const auto read = read_worker_env(from(variables));
  REQUIRE(read.has_error());
  REQUIRE(read.error().code == errc::bad_value);
  REQUIRE(read.error().message().find(name) != std::string::npos);
}

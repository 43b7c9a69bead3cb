#include <catch2/catch.hpp>

#include "tests/support/fake_machine.hpp"

namespace torchup {
namespace {

/// What is said of `variables` before a job with these options starts; its threads apart.
std::vector<std::string> told(const Texts& options, const Texts& variables) {
  OptionValues values;
  for (const auto& [name, value] : options) values.set(name, value);
  const auto plan = make_plan(values, {"prog"}, false, fake_machine(variables));
  REQUIRE(plan.has_value());
  std::vector<std::string> lines = plan->warnings;
  std::erase_if(lines, [](const std::string& line) { return line.find("OMP_NUM_THREADS") != std::string::npos; });
  return lines;
}

}  // namespace

TEST_CASE("an address or rank that torchrun does not take from the environment is told", "[unit][plan]") {
  const Texts variables{{"MASTER_ADDR", "node7"}, {"MASTER_PORT", "1234"}, {"NODE_RANK", "1"}};
  const auto lines = told({{"nnodes", "2"}}, variables);
  REQUIRE(lines == std::vector<std::string>{
                       "MASTER_ADDR=node7 of the environment has no part in this job, whose nodes meet at "
                       "127.0.0.1:29500: see --master-addr, PET_MASTER_ADDR",
                       "MASTER_PORT=1234 of the environment has no part in this job, whose nodes meet at "
                       "127.0.0.1:29500: see --master-port, PET_MASTER_PORT",
                       "NODE_RANK=1 of the environment has no part in this job, where this node's rank is 0: see "
                       "--node-rank, PET_NODE_RANK"});
  SECTION("not where options say it, or where it is the same") {
    REQUIRE(
        told({{"nnodes", "2"}, {"master-addr", "node7"}, {"master-port", "1"}, {"node-rank", "0"}}, variables).empty());
    REQUIRE(
        told({{"nnodes", "2"}}, {{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}, {"NODE_RANK", "0"}}).empty());
  }
  SECTION("not where nodes meet at an endpoint, or are one") {
    REQUIRE(told({{"nnodes", "2"}, {"rdzv-endpoint", "h:1"}, {"rdzv-backend", "c10d"}}, variables).empty());
    REQUIRE(told({{"nnodes", "2"}, {"rdzv-endpoint", "h:1"}}, variables).empty());
    REQUIRE(told({}, variables).empty());
  }
}

TEST_CASE("the world of another launcher is told", "[unit][plan]") {
  REQUIRE(told({{"nproc-per-node", "2"}}, {{"WORLD_SIZE", "8"}}) ==
          std::vector<std::string>{"WORLD_SIZE=8 of the environment has no part in this job, which has one node with 2 "
                                   "workers: see --nnodes, --nproc-per-node"});
  REQUIRE(told({{"nproc-per-node", "2"}}, {{"WORLD_SIZE", "2"}}).empty());
  REQUIRE(told({}, {{"WORLD_SIZE", "1"}}).empty());
  REQUIRE(told({}, {{"WORLD_SIZE", "8"}, {"TORCHELASTIC_RUN_ID", "outer"}}).empty());
  REQUIRE(told({{"nnodes", "2"}}, {{"WORLD_SIZE", "8"}}).empty());
}

}  // namespace torchup

#include "launcher/core/plan/descriptor_need.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

TEST_CASE("workers that fit the limit of descriptors are started, one more is refused", "[unit][plan]") {
  LaunchConfig plan;
  plan.terms.max_nodes = 2;
  plan.local_world_size = 10;
  const std::uint64_t needed = agent_descriptors + 10 * worker_descriptors + starts_at_once * start_descriptors;
  REQUIRE(descriptors_lacking(plan, needed).empty());
  const std::string lacking = descriptors_lacking(plan, needed - 1);
  REQUIRE(lacking.find("10 workers need 134 open files") != std::string::npos);
  REQUIRE(lacking.find("ulimit -Hn") != std::string::npos);
}

TEST_CASE("one node also holds the workers' store", "[unit][plan]") {
  LaunchConfig plan;
  plan.local_world_size = 10;
  const std::uint64_t needed =
      agent_descriptors + 10 * (worker_descriptors + store_descriptors) + starts_at_once * start_descriptors;
  REQUIRE(descriptors_lacking(plan, needed).empty());
  REQUIRE_FALSE(descriptors_lacking(plan, needed - 1).empty());
}

TEST_CASE("hosts whose links fit the limit of descriptors are started, one more is refused", "[unit][plan]") {
  const std::uint64_t needed = agent_descriptors + 16 * host_descriptors;
  REQUIRE(descriptors_lacking(16, needed).empty());
  REQUIRE(descriptors_lacking(16, needed - 1).find("16 hosts need 160 open files") != std::string::npos);
}

#include "rendezvous/base/slurm_counts.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

TEST_CASE("Slurm's counts of tasks are read by node", "[unit][slurm]") {
  const auto counts = *read_slurm_counts("8(x2),4");
  REQUIRE(counts == std::vector<SlurmCount>{{8, 2}, {4, 1}});
  REQUIRE(tasks_of_node(counts, 1) == 8);
  REQUIRE(tasks_of_node(counts, 2) == 4);
  REQUIRE_FALSE(tasks_of_node(counts, 3));
  for (const char* const wrong :
       {"", ",", "8,", "8(x2", "8(x0)", "8(x-1)", "0", "-1", "+1", " 8", "8 ", "8(x2)4", "8(2)"}) {
    INFO(wrong);
    REQUIRE(read_slurm_counts(wrong).error().code == make_error_code(errc::bad_value));
  }
}

TEST_CASE("Slurm's counts of tasks are those of a job that can be", "[unit][slurm]") {
  REQUIRE(read_slurm_counts("1(x65536)").has_value());
  REQUIRE(read_slurm_counts("1048576").has_value());
  for (const char* const large : {"1(x65537)", "1(x65535),1,1", "1(x2147483647),1(x2147483647)", "1048577"}) {
    INFO(large);
    REQUIRE(read_slurm_counts(large).error().code == make_error_code(errc::limit_exceeded));
  }
}

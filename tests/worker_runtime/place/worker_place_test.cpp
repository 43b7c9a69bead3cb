#include "worker_runtime/place/worker_place.hpp"

#include <catch2/catch.hpp>
#include <map>

using namespace torchup;
using Catch::Contains;

namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

EnvironmentLookup in(Variables variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional{found->second};
  };
}

const Variables launched{{"RANK", "3"},           {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "1"},     {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "node"}, {"MASTER_PORT", "2345"}};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

}  // namespace

TEST_CASE("nothing set and nothing asked is a world of one", "[worker_runtime][worker_place]") {
  CHECK(worker_place_from_environment({}, in({})) == WorkerPlace{});
}

TEST_CASE("a launcher's variables are read, and a scheduler's are not looked at then",
          "[worker_runtime][worker_place]") {
  const auto place = worker_place_from_environment(
      {}, in(with(launched, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}})));
  CHECK(place.rank == 3);
  CHECK(place.local_rank == 1);
  CHECK(place.local_size == 2);
  CHECK(place.master_addr == "node");
  CHECK(place.master_port == 2345);
}

TEST_CASE("a batch script of Slurm runs alone although it has a rank variable", "[worker_runtime][worker_place]") {
  const Variables batch{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_NUM_TASKS", "8"}};
  CHECK(worker_place_from_environment({}, in(batch)) == WorkerPlace{});
}

TEST_CASE("MPI's and Slurm's ranks need a meeting point", "[worker_runtime][worker_place]") {
  const Variables open_mpi{{"OMPI_COMM_WORLD_RANK", "5"},
                           {"OMPI_COMM_WORLD_SIZE", "8"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
  CHECK_THROWS_WITH(worker_place_from_environment({}, in(open_mpi)),
                    Contains("Open MPI") && Contains("MASTER_ADDR and MASTER_PORT"));
  const auto place =
      worker_place_from_environment({}, in(with(open_mpi, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}})));
  CHECK(place.rank == 5);
  CHECK(place.local_rank == 1);
  CHECK(place.launcher == "Open MPI");
  CHECK_THROWS_WITH(worker_place_from_environment({}, in({{"PMI_RANK", "1"}})), Contains("PMI_SIZE"));
  CHECK(worker_place_from_environment({}, in({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}})).world_size == 1);
}

TEST_CASE("a job of srun over several nodes is not taken for one node", "[worker_runtime][worker_place]") {
  const auto local_size = [](const std::string& counts, const std::string& node, const std::string& local_rank = "0") {
    return worker_place_from_environment({}, in({{"SLURM_STEP_ID", "0"},
                                                 {"SLURM_PROCID", "4"},
                                                 {"SLURM_STEP_NUM_TASKS", "64"},
                                                 {"SLURM_LOCALID", local_rank},
                                                 {"SLURM_NODEID", node},
                                                 {"SLURM_STEP_TASKS_PER_NODE", counts},
                                                 {"MASTER_ADDR", "a"},
                                                 {"MASTER_PORT", "1"}}))
        .local_size;
  };
  CHECK(local_size("8(x2)", "0") == 8);
  CHECK(local_size("8(x2)", "1", "7") == 8);
  CHECK(local_size("4,2(x3),1", "0") == 4);
  CHECK(local_size("4,2(x3),1", "3") == 2);
  CHECK(local_size("4,2(x3),1", "4") == 1);
  CHECK(local_size("64", "0") == 64);
  CHECK_THROWS_WITH(local_size("8(x2)", "2"), Contains("SLURM_STEP_TASKS_PER_NODE=8(x2)") && Contains("node 2"));
  CHECK_THROWS_WITH(local_size("4", "0", "4"), Contains("local rank 4 of 4"));
  for (const char* wrong : {"", "x", "8(x", "8(x2", "8(y2)", "8;4", "0", "8(x0)", "-1", "99999999999"})
    CHECK_THROWS_WITH(local_size(wrong, "1"), Contains("SLURM_STEP_TASKS_PER_NODE"));
}

TEST_CASE("where the launcher does not say how many are on a node, one node is not assumed",
          "[worker_runtime][worker_place]") {
  const Variables point{{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
  const Variables slurm = with(point, {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "5"}, {"SLURM_STEP_NUM_TASKS", "8"}});
  CHECK(worker_place_from_environment({}, in(slurm)).local_size == 1);
  CHECK(worker_place_from_environment({}, in(with(slurm, {{"SLURM_STEP_NUM_NODES", "1"}}))).local_size == 8);
  CHECK(worker_place_from_environment({}, in(with(slurm, {{"SLURM_STEP_NUM_NODES", "1"}}))).local_rank == 5);
  CHECK(worker_place_from_environment({}, in(with(slurm, {{"SLURM_STEP_NUM_NODES", "2"}}))).local_size == 1);

  const Variables pmi = with(point, {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}});
  CHECK(worker_place_from_environment({}, in(pmi)).local_size == 1);
  const auto known =
      worker_place_from_environment({}, in(with(pmi, {{"PMI_LOCAL_RANK", "1"}, {"PMI_LOCAL_SIZE", "4"}})));
  CHECK(known.local_rank == 1);
  CHECK(known.local_size == 4);
  const auto half = worker_place_from_environment({}, in(with(pmi, {{"MPI_LOCALRANKID", "3"}})));
  CHECK(half.local_rank == 3);
  CHECK(half.local_size == 4);
  CHECK(worker_place_from_environment({}, in(with(pmi, {{"MPI_LOCALNRANKS", "4"}}))).local_rank == 1);
}

TEST_CASE("some variables are an error that names the others", "[worker_runtime][worker_place]") {
  CHECK_THROWS_WITH(worker_place_from_environment({}, in({{"RANK", "0"}, {"MASTER_ADDR", "a"}})),
                    Contains("WORLD_SIZE") && Contains("MASTER_PORT"));
  CHECK_THROWS_WITH(worker_place_from_environment({}, in({{"MASTER_ADDR", "a"}})), Contains("RANK"));
  CHECK_THROWS_WITH(worker_place_from_environment({.rank = 1}, in({})), Contains("world_size"));
}

TEST_CASE("an argument completes the environment and must not contradict it", "[worker_runtime][worker_place]") {
  CHECK(worker_place_from_environment({.rank = 3, .world_size = 4}, in(launched)).rank == 3);
  CHECK_THROWS_WITH(worker_place_from_environment({.rank = 1}, in(launched)), Contains("LOCAL_RANK passed as rank?"));
  CHECK_THROWS_WITH(worker_place_from_environment({.rank = 2}, in(launched)),
                    Contains("RANK=3") && !Contains("LOCAL_RANK"));
  CHECK_THROWS_WITH(worker_place_from_environment({.world_size = 5}, in(launched)), Contains("WORLD_SIZE=4"));
  auto without_rank = launched;
  without_rank.erase("RANK");
  CHECK(worker_place_from_environment({.rank = 2}, in(without_rank)).rank == 2);
  CHECK(worker_place_from_environment({.local_rank = 0}, in(launched)).local_rank == 0);
}

TEST_CASE("at a given address the arguments win", "[worker_runtime][worker_place]") {
  CHECK(worker_place_at({.rank = 1, .world_size = 2}, in(launched)).rank == 1);
  CHECK(worker_place_at({}, in(launched)).rank == 3);
  CHECK_THROWS_WITH(worker_place_at({.rank = 1}, in({})), Contains("world size"));
  CHECK_THROWS_WITH(worker_place_at({.rank = 2, .world_size = 2}, in({})),
                    Contains("rank 2 is not one of a world of 2"));
}

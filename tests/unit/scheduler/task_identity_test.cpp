#include "launcher/core/scheduler/task_identity.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "launcher/core/plan/worker_environment.hpp"

namespace torchup {
namespace {

/// The environment of a worker, as the kernel gets it: no name may come twice.
std::map<std::string, std::string> environment(const LaunchConfig& config, const std::vector<std::string>& inherited,
                                               const Placement& placement, int local_rank) {
  const WorkerEnvironment builder{config, inherited};
  std::vector<std::string> lines = *builder.common();
  const auto own = builder.own(placement, LocalRank{local_rank}, "");
  lines.insert(lines.end(), own.begin(), own.end());
  std::map<std::string, std::string> variables;
  for (const std::string& line : lines) {
    const auto equals = line.find('=');
    REQUIRE(variables.emplace(line.substr(0, equals), line.substr(equals + 1)).second);
  }
  return variables;
}

const std::vector<std::string> agents_own{
    "PMI_FD=3",          "PMI_RANK=1",          "PMI2_X=1",      "PMIX_NAMESPACE=1", "OMPI_COMM_WORLD_RANK=1",
    "OMPI_MCA_orte_x=1", "OMPI_MCA_ess_base=1", "PALS_RANKID=1", "HYDI_X=1",         "MPI_LOCALRANKID=1",
    "MPI_LOCALNRANKS=2"};
const std::vector<std::string> of_task{"SLURM_PROCID=1",
                                       "SLURM_LOCALID=0",
                                       "SLURM_NODEID=1",
                                       "SLURM_NTASKS=2",
                                       "SLURM_NPROCS=2",
                                       "SLURM_STEP_NUM_TASKS=2",
                                       "SLURM_NTASKS_PER_NODE=1",
                                       "SLURM_TASKS_PER_NODE=1(x2)",
                                       "SLURM_STEP_TASKS_PER_NODE=1(x2)",
                                       "SLURM_TASK_PID=77",
                                       "SLURM_GTIDS=1",
                                       "SLURM_JOB_ID=17",
                                       "SLURM_STEP_ID=0",
                                       "SLURM_NNODES=2"};

/// The second of two nodes with two workers each.
Placement second_node() {
  Placement placement;
  placement.group_rank = GroupRank{1};
  placement.group_world_size = 2;
  placement.first_rank = Rank{2};
  placement.world_size = 4;
  return placement;
}

LaunchConfig in_scheduler(bool asked, bool slurm_step) {
  LaunchConfig config;
  config.local_world_size = 2;
  config.scheduler.asked = asked;
  config.scheduler.slurm_step = slurm_step;
  return config;
}

std::vector<std::string> both() {
  std::vector<std::string> all = agents_own;
  all.insert(all.end(), of_task.begin(), of_task.end());
  all.emplace_back("PMIEXTRA=1");
  all.emplace_back("OMPI_MCA_btl=tcp");
  return all;
}

}  // namespace

TEST_CASE("no worker has our own place among MPI's processes", "[unit][scheduler]") {
  const auto worker = environment(in_scheduler(true, false), both(), second_node(), 0);
  for (const std::string& entry : agents_own) {
    CAPTURE(entry);
    REQUIRE(!worker.contains(entry.substr(0, entry.find('='))));
  }
  REQUIRE(worker.at("PMIEXTRA") == "1");
  REQUIRE(worker.at("OMPI_MCA_btl") == "tcp");
  REQUIRE(worker.at("SLURM_PROCID") == "1");  // not of a step that is believed
  const auto as_torchrun = environment(in_scheduler(false, false), both(), second_node(), 0);
  REQUIRE(as_torchrun.at("PMI_RANK") == "1");
  REQUIRE(as_torchrun.at("MPI_LOCALNRANKS") == "2");
}

TEST_CASE("in a step of Slurm each worker is a task", "[unit][scheduler]") {
  const auto worker = environment(in_scheduler(true, true), both(), second_node(), 1);
  REQUIRE(worker.at("SLURM_PROCID") == "3");
  REQUIRE(worker.at("SLURM_LOCALID") == "1");
  REQUIRE(worker.at("SLURM_NODEID") == "1");
  for (const char* name : {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"}) REQUIRE(worker.at(name) == "4");
  REQUIRE(worker.at("SLURM_NTASKS_PER_NODE") == "2");
  REQUIRE(worker.at("SLURM_TASKS_PER_NODE") == "2(x2)");
  REQUIRE(worker.at("SLURM_STEP_TASKS_PER_NODE") == "2(x2)");
  REQUIRE(!worker.contains("SLURM_TASK_PID"));
  REQUIRE(!worker.contains("SLURM_GTIDS"));
  REQUIRE(worker.at("SLURM_JOB_ID") == "17");
  REQUIRE(worker.at("SLURM_NNODES") == "2");
}

TEST_CASE("what is not set for us is not set for workers, and nodes that differ have no one count",
          "[unit][scheduler]") {
  Placement uneven = second_node();
  uneven.world_size = 5;
  uneven.first_rank = Rank{3};
  const auto worker = environment(in_scheduler(true, true), {"A=b"}, uneven, 0);
  REQUIRE(!worker.contains("SLURM_NTASKS_PER_NODE"));
  REQUIRE(!worker.contains("SLURM_TASKS_PER_NODE"));
  REQUIRE(!worker.contains("SLURM_STEP_TASKS_PER_NODE"));
  REQUIRE(worker.at("SLURM_PROCID") == "3");
  Placement alone;
  alone.world_size = 2;
  REQUIRE(environment(in_scheduler(true, true), {"A=b"}, alone, 0).at("SLURM_TASKS_PER_NODE") == "2");
}

}  // namespace torchup

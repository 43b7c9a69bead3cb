#include <catch2/catch.hpp>

#include "rendezvous/base/slurm_counts.hpp"
#include "tests/unit/scheduler/environments.hpp"

namespace torchup {

using namespace environments;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

TEST_CASE("a step of srun tells nodes, place, hosts and run id", "[unit][scheduler]") {
  const Allocation step = found(slurm_step({{"SLURM_JOB_END_TIME", "1900000000"}, {"SLURM_RESTART_COUNT", "3"}}));
  REQUIRE(step.scheduler == "slurm");
  REQUIRE(step.each);
  REQUIRE(step.nodes == Told<int>{2, "SLURM_STEP_NUM_NODES"});
  REQUIRE(step.node == Told<int>{1, "SLURM_NODEID"});
  REQUIRE(step.tasks == Told<int>{1, "SLURM_STEP_TASKS_PER_NODE"});
  REQUIRE(step.hosts == Told<std::vector<std::string>>{{"n1", "n2"}, "SLURM_STEP_NODELIST"});
  REQUIRE(step.first_host == Told<std::string>{"n1", "SLURM_STEP_NODELIST"});
  REQUIRE(step.own_name == "n2");
  REQUIRE(step.run_id->value == "slurm.c.17.0.3");
  REQUIRE(step.end == Told<std::int64_t>{1'900'000'000, "SLURM_JOB_END_TIME"});
  REQUIRE(!step.gpus);
  REQUIRE(!step.gpus_visible);
}

TEST_CASE("tasks of a node are those of its index", "[unit][scheduler]") {
  const Texts counts{{"SLURM_NTASKS", "5"},           {"SLURM_STEP_NUM_TASKS", "5"},
                     {"SLURM_TASKS_PER_NODE", "2,3"}, {"SLURM_STEP_TASKS_PER_NODE", "2,3"},
                     {"SLURM_LOCALID", "2"},          {"SLURM_PROCID", "4"}};
  const Allocation step = found(slurm_step(counts));
  REQUIRE(step.tasks.value == 3);
  REQUIRE(step.task == 2);
  const auto first = slurm_step(with(counts, {{"SLURM_NODEID", "0"}, {"SLURMD_NODENAME", "n1"}}));
  REQUIRE_THAT(refusal(first), StartsWith("SLURM_LOCALID=2: it is no number from 0 to 1; --scheduler=none"));
}

TEST_CASE("a step is believed only where all says the same", "[unit][scheduler]") {
  REQUIRE(found(slurm_step()).each);
  for (const Texts& stale : std::vector<Texts>{{{"SLURM_STEP_ID", "4294967290"}},
                                               {{"SLURM_STEP_ID", "4294967291"}},
                                               {{"SLURM_NNODES", "1"}},
                                               {{"SLURM_NNODES", "-"}},
                                               {{"SLURM_NTASKS", "1"}},
                                               {{"SLURM_TASKS_PER_NODE", "1"}},
                                               {{"SLURM_STEP_NODELIST", "n[1,4]"}},
                                               {{"SLURM_JOB_NODELIST", "-"}},
                                               {{"SLURMD_NODENAME", "n1"}},
                                               {{"SLURMD_NODENAME", "-"}},
                                               {{"SLURM_NODEID", "2"}},
                                               {{"SLURM_NODEID", "-"}}}) {
    CAPTURE(stale.begin()->first, stale.begin()->second);
    const Allocation job = found(slurm_step(stale));
    REQUIRE(job.scheduler == "slurm");
    REQUIRE(!job.each);
    REQUIRE(!job.nodes);
  }
  REQUIRE(found(slurm_step({{"SLURM_STEP_ID", "4294967289"}})).each);
}

TEST_CASE("a job that is submitted from within a step is not that step", "[unit][scheduler]") {
  // Seen: a batch script of one node that inherits the step of two nodes of whoever submitted it.
  const Texts inherited{{"SLURM_STEP_ID", "0"},
                        {"SLURM_STEP_NUM_NODES", "2"},
                        {"SLURM_STEP_NUM_TASKS", "2"},
                        {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                        {"SLURM_STEP_NODELIST", "n[1-2]"},
                        {"SLURM_JOB_ID", "18"},
                        {"SLURM_JOB_NODELIST", "n1"},
                        {"SLURM_NNODES", "1"},
                        {"SLURM_NTASKS", "1"},
                        {"SLURM_TASKS_PER_NODE", "1"}};
  const Allocation job = found(slurm_batch(inherited));
  REQUIRE(!job.each);
  REQUIRE(job.hosts->value == std::vector<std::string>{"n1"});
  REQUIRE(job.run_id->value == "slurm.c.18.0");
}

TEST_CASE("a batch script knows the job's hosts and runs alone", "[unit][scheduler]") {
  const Allocation job = found(slurm_batch());
  REQUIRE(!job.each);
  REQUIRE(job.hosts->value == std::vector<std::string>{"n1", "n2", "n3"});
  REQUIRE(job.tasks.value == 1);
  REQUIRE(job.own_name == "n1");
}

TEST_CASE("GPUs are those that Slurm shows, or counts", "[unit][scheduler]") {
  REQUIRE(found(slurm_step({{"CUDA_VISIBLE_DEVICES", "0,1"}, {"SLURM_GPUS_ON_NODE", "4"}})).gpus ==
          Told<int>{2, "CUDA_VISIBLE_DEVICES"});
  REQUIRE(found(slurm_step({{"SLURM_GPUS_ON_NODE", "4"}})).gpus == Told<int>{4, "SLURM_GPUS_ON_NODE"});
  for (const char* none : {"", "NoDevFiles", "-1", "-1,0"}) {
    REQUIRE(found(slurm_step({{"CUDA_VISIBLE_DEVICES", none}})).gpus->value == 0);
  }
  REQUIRE(found(slurm_step({{"CUDA_VISIBLE_DEVICES", "GPU-1, MIG-2,x,3"}})).gpus->value == 2);
  REQUIRE_THAT(refusal(slurm_step({{"SLURM_GPUS_ON_NODE", "four"}})), StartsWith("SLURM_GPUS_ON_NODE=four: "));
}

TEST_CASE("a heterogeneous step spans its components under the first one's number", "[unit][scheduler]") {
  const Texts het{{"SLURM_HET_SIZE", "2"},
                  {"SLURM_JOB_ID", "18"},
                  {"SLURM_JOB_ID_HET_GROUP_0", "17"},
                  {"SLURM_JOB_NODELIST", "n2"},
                  {"SLURM_JOB_NODELIST_HET_GROUP_0", "n1"},
                  {"SLURM_JOB_NODELIST_HET_GROUP_1", "n2"}};
  REQUIRE(found(slurm_step(het)).run_id->value == "slurm.c.17.0.0");
  const Texts own{{"SLURM_STEP_NODELIST", "n2"},      {"SLURM_NNODES", "1"},
                  {"SLURM_STEP_NUM_NODES", "1"},      {"SLURM_NTASKS", "1"},
                  {"SLURM_STEP_NUM_TASKS", "1"},      {"SLURM_TASKS_PER_NODE", "1"},
                  {"SLURM_STEP_TASKS_PER_NODE", "1"}, {"SLURM_NODEID", "0"}};
  REQUIRE(found(slurm_step(with(het, own))).run_id->value == "slurm.c.18.0.0");
  REQUIRE_THAT(refusal(slurm_step(with(het, {{"SLURM_HET_SIZE", "129"}}))), StartsWith("SLURM_HET_SIZE=129: "));
}

TEST_CASE("what contradicts itself, or is no number, is refused by name", "[unit][scheduler]") {
  const auto pair = [](const char* name, const char* step_name, const char* value) {
    return refusal(slurm_step({{name, value}, {step_name, value}}));
  };
  REQUIRE_THAT(pair("SLURM_NNODES", "SLURM_STEP_NUM_NODES", "x"),
               StartsWith("SLURM_STEP_NUM_NODES=x: it is no number from 1 to 65536; --scheduler=none"));
  REQUIRE_THAT(pair("SLURM_NNODES", "SLURM_STEP_NUM_NODES", "3"),
               StartsWith("SLURM_STEP_NUM_NODES=3: SLURM_STEP_NODELIST has 2 hosts"));
  REQUIRE_THAT(pair("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE", "1"),
               Contains("it counts 1 nodes, and SLURM_STEP_NUM_NODES=2"));
  REQUIRE_THAT(pair("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE", "1(x2"), Contains("is not a list of counts"));
  REQUIRE_THAT(pair("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "7"),
               Contains("it counts 2 tasks, and SLURM_STEP_NUM_TASKS=7"));
  for (const auto& [name, value] : Texts{{"SLURM_STEP_ID", "zero"},
                                         {"SLURM_STEP_ID", "-1"},
                                         {"SLURM_NODEID", "1x"},
                                         {"SLURM_STEP_NODELIST", "n[1-"},
                                         {"SLURM_JOB_NODELIST", "n[1-70000]"},
                                         {"SLURM_JOB_ID", "0"},
                                         {"SLURM_RESTART_COUNT", "-2"},
                                         {"SLURM_JOB_END_TIME", "tomorrow"}}) {
    CAPTURE(name);
    const std::string why = refusal(slurm_step({{name, value}}));
    REQUIRE_THAT(why, StartsWith(name + "=" + value + ": "));
    REQUIRE_THAT(why, Contains("--scheduler=none"));
    REQUIRE(why.find('\n') == std::string::npos);
    REQUIRE(found(slurm_step({{name, value}}), "none").scheduler == "none");
  }
  REQUIRE_THAT(refusal(slurm_step({{"SLURM_STEP_ID", "1\n\x1b[2J"}})), StartsWith("SLURM_STEP_ID=1\\n\\x1b[2J: "));
}

TEST_CASE("a node has 1024 tasks at most", "[unit][scheduler]") {
  const auto tasks = [](const char* here, const char* all) {
    return slurm_step({{"SLURM_NTASKS", all},
                       {"SLURM_STEP_NUM_TASKS", all},
                       {"SLURM_TASKS_PER_NODE", here},
                       {"SLURM_STEP_TASKS_PER_NODE", here}});
  };
  REQUIRE(found(tasks("1024(x2)", "2048")).tasks.value == 1024);
  REQUIRE_THAT(refusal(tasks("1025(x2)", "2050")), Contains("1025 tasks on a node are more than 1024"));
}

TEST_CASE("counts of tasks as Slurm writes them", "[unit][scheduler]") {
  REQUIRE(*read_slurm_counts("8(x2),4") == std::vector<SlurmCount>{{8, 2}, {4, 1}});
  const std::vector<SlurmCount> counts{{8, 2}, {4, 1}};
  REQUIRE(tasks_of_node(counts, 0) == 8);
  REQUIRE(tasks_of_node(counts, 1) == 8);
  REQUIRE(tasks_of_node(counts, 2) == 4);
  REQUIRE(!tasks_of_node(counts, 3));
  for (const char* bad : {"", ",", "8,", "8(x0)", "0", "-1", "8(2)", "8(x2", "8(x2)4", "8 ", "99999999999", "x"}) {
    CAPTURE(bad);
    REQUIRE(!read_slurm_counts(bad));
  }
  REQUIRE(read_slurm_counts("1(x65536)").has_value());
  REQUIRE(!read_slurm_counts("1(x65536),1"));
  REQUIRE(read_slurm_counts("1048576").has_value());
  REQUIRE(!read_slurm_counts("1048577"));
}

}  // namespace torchup

#include "launcher/core/scheduler/derived_options.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "launcher/core/plan/plan.hpp"
#include "launcher/core/plan/plan_json.hpp"
#include "rendezvous/core/link/agent_codec.hpp"
#include "tests/unit/scheduler/environments.hpp"

namespace torchup {

using namespace environments;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

Result<LaunchConfig> planned_in(const Texts& variables, const Texts& options, const Machine& machine) {
  OptionValues values;
  for (const auto& [name, value] : options) values.set(name, value);
  REQUIRE(values.read_environment(fake_machine(variables).variable).has_value());
  return make_plan(values, {"prog"}, false, machine);
}
Result<LaunchConfig> planned_in(const Texts& variables, const Texts& options = {}) {
  return planned_in(variables, options, fake_machine(variables));
}
LaunchConfig plan_in(const Texts& variables, const Texts& options = {}) {
  auto result = planned_in(variables, options);
  if (!result) FAIL(result.error().message());
  return *result;
}
std::string why_not(const Texts& variables, const Texts& options = {}) {
  const auto result = planned_in(variables, options);
  return result ? "none" : result.error().message();
}
nlohmann::json told(const LaunchConfig& plan) { return nlohmann::json::parse(plan_as_json(plan)); }

/// A machine with so many GPUs; `asked` counts how often its driver was.
Machine with_gpus(const Texts& variables, int count, int& asked) {
  Machine machine = fake_machine(variables);
  machine.gpus = [count, &asked] {
    ++asked;
    Gpus gpus;
    for (int i = 0; i < count; ++i) gpus.list.push_back({"GPU-" + std::to_string(i), "H", "", 0, false, {}});
    return gpus;
  };
  return machine;
}

}  // namespace

TEST_CASE("srun torchup is the whole line", "[unit][scheduler]") {
  const LaunchConfig plan = plan_in(slurm_step({{"SLURM_GPUS_ON_NODE", "4"}, {"OMP_NUM_THREADS", "1"}}));
  REQUIRE(plan.scheduler.name == "slurm");
  REQUIRE(plan.terms.min_nodes == 2);
  REQUIRE(plan.terms.max_nodes == 2);
  REQUIRE(plan.local_world_size == 4);
  REQUIRE(plan.rendezvous.backend == Backend::c10d);
  REQUIRE(plan.rendezvous.run_id == RunId{"slurm.c.17.0.0"});
  REQUIRE(plan.rendezvous.endpoint == Endpoint{"n1", derived_port("slurm.c.17.0.0", 0)});
  REQUIRE(plan.rendezvous.is_host == false);
  REQUIRE(plan.scheduler.further_ports.size() == 3);
  REQUIRE(plan.terms.hostlist == "n1,n2");
  REQUIRE(plan.terms.own_run_id);
  REQUIRE(plan.terms.rank_order == RankOrder::index);
  REQUIRE(plan.rendezvous.group_rank == GroupRank{1});
  REQUIRE(plan.scheduler.own_name == "n2");
  REQUIRE(plan.stop_grace == 25s);
  REQUIRE(plan.warnings.empty());
  const LaunchConfig first = plan_in(slurm_step({{"SLURM_NODEID", "0"}, {"SLURMD_NODENAME", "n1"}}));
  REQUIRE(first.rendezvous.is_host == true);
  REQUIRE(first.local_world_size == 1);
}

TEST_CASE("what is given wins, value by value", "[unit][scheduler]") {
  const Texts step = slurm_step({{"SLURM_GPUS_ON_NODE", "4"}});
  REQUIRE(plan_in(step, {{"nproc-per-node", "2"}}).local_world_size == 2);
  REQUIRE(plan_in(with(step, {{"PET_NPROC_PER_NODE", "3"}})).local_world_size == 3);
  REQUIRE(plan_in(step, {{"rdzv-id", "mine"}}).rendezvous.endpoint->port == derived_port("mine", 0));
  REQUIRE(plan_in(step, {{"rdzv-id", "mine"}}).terms.max_nodes == 2);
  REQUIRE_FALSE(plan_in(step, {{"rdzv-id", "mine"}}).terms.own_run_id);
  REQUIRE(plan_in(step, {{"shutdown-timeout", "7"}}).stop_grace == 7s);
  REQUIRE(plan_in(with(step, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "9"}})).stop_grace == 9s);
  REQUIRE(plan_in(step, {{"rank-order", "join"}}).terms.rank_order == RankOrder::join);
  REQUIRE(plan_in(step, {{"rank-order", "hostlist"}}).rendezvous.group_rank == std::nullopt);
  REQUIRE(plan_in(step, {{"expect-hosts", "n2,n1"}}).terms.hostlist == "n2,n1");
  REQUIRE(plan_in(step, {{"scheduler", "none"}}).scheduler.name.empty());
  REQUIRE(plan_in(step, {{"nnodes", "1:2"}}).terms.min_nodes == 1);
  OptionValues of_file;
  REQUIRE(of_file.read_config("nproc-per-node = 5\n", "f").has_value());
  const auto by_file = make_plan(of_file, {"prog"}, false, fake_machine(step));
  REQUIRE(by_file->local_world_size == 5);
  REQUIRE(told(*by_file)["workers"]["from"] == "--config");
  REQUIRE(why_not(step, {{"nnodes", "3:4"}}) ==
          "--nnodes=3:4: slurm says that there are 2 nodes (SLURM_STEP_NUM_NODES)");
  REQUIRE_THAT(why_not(with(step, {{"PET_NNODES", "3"}})), StartsWith("PET_NNODES=3: "));
}

TEST_CASE("nodes beyond MAX stand by", "[unit][scheduler]") {
  const Texts five{{"SLURM_JOB_NODELIST", "n[1-5]"},
                   {"SLURM_STEP_NODELIST", "n[1-5]"},
                   {"SLURM_NNODES", "5"},
                   {"SLURM_STEP_NUM_NODES", "5"},
                   {"SLURM_NTASKS", "5"},
                   {"SLURM_STEP_NUM_TASKS", "5"},
                   {"SLURM_TASKS_PER_NODE", "1(x5)"},
                   {"SLURM_STEP_TASKS_PER_NODE", "1(x5)"},
                   {"SLURM_NODEID", "4"},
                   {"SLURMD_NODENAME", "n5"}};
  const LaunchConfig spare = plan_in(slurm_step(five), {{"nnodes", "4"}});
  REQUIRE(spare.terms.max_nodes == 4);
  REQUIRE(spare.rendezvous.is_host == false);
  REQUIRE(spare.terms.rank_order == RankOrder::index);  // which is an order, and no place
}

TEST_CASE("with one node that is asked for, every agent is its own job", "[unit][scheduler]") {
  const Texts tasks{{"SLURM_NTASKS", "4"},
                    {"SLURM_STEP_NUM_TASKS", "4"},
                    {"SLURM_TASKS_PER_NODE", "2(x2)"},
                    {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                    {"CUDA_VISIBLE_DEVICES", "0,1,2"}};
  for (const Texts& alone : {Texts{{"standalone", "1"}}, Texts{{"nnodes", "1"}}, Texts{{"nnodes", "1:1"}}}) {
    const LaunchConfig plan = plan_in(slurm_step(tasks), alone);
    REQUIRE(plan.one_node());
    REQUIRE(!plan.rendezvous.endpoint);
    REQUIRE(plan.local_world_size == 3);
    REQUIRE(plan.scheduler.tasks == 1);
    REQUIRE(plan.terms.hostlist.empty());
    REQUIRE(plan.rendezvous.run_id == RunId{"00000000-0000-4000-8000-0000000000ff"});
    REQUIRE(plan.stop_grace == 25s);
  }
  const Texts one{{"SLURM_JOB_NODELIST", "n2"},  {"SLURM_STEP_NODELIST", "n2"},
                  {"SLURM_NNODES", "1"},         {"SLURM_STEP_NUM_NODES", "1"},
                  {"SLURM_NTASKS", "1"},         {"SLURM_STEP_NUM_TASKS", "1"},
                  {"SLURM_TASKS_PER_NODE", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "1"},
                  {"SLURM_NODEID", "0"}};
  const LaunchConfig plan = plan_in(slurm_step(one));
  REQUIRE(plan.one_node());
  REQUIRE(!plan.rendezvous.endpoint);
  REQUIRE(plan.rendezvous.run_id == RunId{"slurm.c.17.0.0"});
  // A script that names a port, or torchupd's host, says so whatever the number of nodes is.
  const LaunchConfig by_port = plan_in(slurm_step(one), {{"rdzv-endpoint", ":7"}});
  REQUIRE(by_port.one_node());
  REQUIRE(by_port.rendezvous.backend == Backend::c10d);
  REQUIRE(by_port.rendezvous.endpoint == Endpoint{"n2", Port{7}});
  REQUIRE(by_port.rendezvous.is_host == true);
  const LaunchConfig elsewhere = plan_in(slurm_step(one), {{"rdzv-endpoint", "h:7"}});
  REQUIRE(elsewhere.rendezvous.backend == Backend::c10d);
  REQUIRE(elsewhere.rendezvous.endpoint == Endpoint{"h", Port{7}});
  REQUIRE(!elsewhere.rendezvous.is_host);
}

TEST_CASE("a meeting point that is given is the meeting point", "[unit][scheduler]") {
  const LaunchConfig c10d = plan_in(slurm_step(), {{"rdzv-endpoint", "h:7"}});
  REQUIRE(c10d.rendezvous.backend == Backend::c10d);
  REQUIRE(c10d.rendezvous.endpoint == Endpoint{"h", Port{7}});
  REQUIRE(!c10d.rendezvous.is_host);
  REQUIRE(c10d.scheduler.further_ports.empty());
  REQUIRE(c10d.rendezvous.run_id == RunId{"slurm.c.17.0.0"});
  REQUIRE(c10d.terms.max_nodes == 2);
  REQUIRE(c10d.warnings.empty());
  const LaunchConfig by_address = plan_in(slurm_step(), {{"master-addr", "h"}});
  REQUIRE(by_address.rendezvous.backend == Backend::static_);
  REQUIRE(by_address.rendezvous.endpoint == Endpoint{"h", Port{29500}});
  REQUIRE(by_address.rendezvous.group_rank == GroupRank{1});
  const LaunchConfig by_port = plan_in(slurm_step(), {{"rdzv-endpoint", ":7"}});
  REQUIRE(by_port.rendezvous.endpoint == Endpoint{"n1", Port{7}});
  REQUIRE(by_port.rendezvous.is_host == false);
  REQUIRE(told(by_port)["endpoint"]["from"] == "--rdzv-endpoint, SLURM_STEP_NODELIST");
  REQUIRE(plan_in(slurm_step(), {{"master-port", "77"}}).rendezvous.endpoint == Endpoint{"n1", Port{77}});
  const LaunchConfig fixed = plan_in(slurm_step(), {{"rdzv-backend", "static"}});
  REQUIRE(fixed.rendezvous.group_rank == GroupRank{1});
  REQUIRE(fixed.rendezvous.endpoint->host == "n1");
  REQUIRE(fixed.scheduler.further_ports.empty());
}

TEST_CASE("a row that does not tell the first host names the ways out", "[unit][scheduler]") {
  REQUIRE_THAT(why_not(mpich()), StartsWith("mpich says that this is node 1 of 2, but not where node 0 is: "));
  REQUIRE(plan_in(mpich({{"MASTER_ADDR", "h"}})).rendezvous.endpoint == Endpoint{"h", derived_port("none", 0)});
  REQUIRE_FALSE(plan_in(with(mpich({{"MASTER_ADDR", "h"}}), slurm_batch())).terms.own_run_id);  // the batch job's
  REQUIRE(plan_in(mpich(), {{"rdzv-endpoint", "h:7"}}).terms.max_nodes == 2);
  REQUIRE(plan_in(mpich(), {{"standalone", "1"}}).one_node());
  REQUIRE(plan_in(mpich({{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}})).one_node());
  REQUIRE_THAT(why_not(kubernetes(), {{"nnodes", "4"}}), StartsWith("kubernetes says that this is node 2, but not "));
  REQUIRE(plan_in(mpich({{"MASTER_ADDR", "fe80::1"}, {"MASTER_PORT", "7"}})).rendezvous.endpoint ==
          Endpoint{"fe80::1", Port{7}});
}

TEST_CASE("node 0 that is not on the first of the batch job's hosts says so", "[unit][scheduler]") {
  const auto on = [](const std::string& host, const Texts& more) {
    Machine machine = fake_machine(with(mpich({{"PMI_RANK", "0"}}), slurm_batch(more)));
    machine.host = host;
    const auto plan = planned_in(with(mpich({{"PMI_RANK", "0"}}), slurm_batch(more)), {}, machine);
    return plan ? to_string(*plan->rendezvous.endpoint).substr(0, 3) : plan.error().message();
  };
  REQUIRE(on("n1.site", {}) == "n1:");
  REQUIRE(on("login", {}) == "n1:");
  REQUIRE_THAT(on("n2", {}),
               StartsWith("mpich says that this is node 0, on n2, and the first of SLURM_JOB_NODELIST is n1: "));
  REQUIRE(on("n2", {{"MASTER_ADDR", "n2"}}) == "n2:");
}

TEST_CASE("a name that a scheduler's variables make and that is none is refused with theirs", "[unit][scheduler]") {
  REQUIRE_THAT(why_not(slurm_step({{"SLURM_CLUSTER_NAME", std::string(256, 'c')}})),
               StartsWith("SLURM_CLUSTER_NAME, SLURM_JOB_ID, SLURM_STEP_ID, SLURM_RESTART_COUNT: the run id cannot be "
                          "used: it is longer than 256 bytes; --rdzv-id gives another, --scheduler=none"));
  REQUIRE_THAT(why_not(slurm_step({{"PET_RDZV_ID", std::string(257, 'c')}})), StartsWith("--rdzv-id cannot be used"));
  REQUIRE_THAT(why_not(mpich({{"MASTER_ADDR", "a b"}, {"MASTER_PORT", "7"}})),
               StartsWith("MASTER_ADDR, MASTER_PORT: The hostname of the rendezvous endpoint 'a b:7' must be "));
  REQUIRE_THAT(why_not(mpich({{"MASTER_ADDR", "a b"}})), Contains("--scheduler=none"));
}

TEST_CASE("Indexed Jobs and Kubeflow need no more than they have", "[unit][scheduler]") {
  const auto in_pod = [](const Texts& variables, const Texts& options) {
    Machine machine = fake_machine(variables);
    machine.host = "train-2";
    const auto plan = planned_in(variables, options, machine);
    if (!plan) FAIL(plan.error().message());
    return *plan;
  };
  const LaunchConfig indexed = in_pod(kubernetes(), {{"nnodes", "4"}});
  REQUIRE(indexed.rendezvous.endpoint == Endpoint{"train-0", Port{29400}});
  REQUIRE(indexed.rendezvous.is_host == false);
  REQUIRE(indexed.scheduler.further_ports.empty());
  REQUIRE(indexed.rendezvous.run_id == RunId{"kubernetes.train"});
  REQUIRE(indexed.terms.rank_order == RankOrder::index);
  REQUIRE(indexed.rendezvous.group_rank == GroupRank{2});
  REQUIRE(indexed.stop_grace == 25s);
  const Texts kubeflow{{"PET_NNODES", "4"},
                       {"PET_NPROC_PER_NODE", "2"},
                       {"PET_NODE_RANK", "2"},
                       {"PET_MASTER_ADDR", "train-0.h"},
                       {"PET_MASTER_PORT", "29400"}};
  const LaunchConfig train_job = in_pod(kubernetes(kubeflow), {});
  REQUIRE(train_job.rendezvous.backend == Backend::static_);
  REQUIRE(train_job.rendezvous.endpoint == Endpoint{"train-0.h", Port{29400}});
  REQUIRE(train_job.rendezvous.group_rank == GroupRank{2});
  REQUIRE(train_job.terms.rank_order == RankOrder::address);
  REQUIRE(train_job.local_world_size == 2);
  REQUIRE(told(train_job)["endpoint"]["from"] == "PET_MASTER_ADDR");
  REQUIRE(in_pod(kubernetes(), {}).one_node());
  REQUIRE(plan_in({{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}}).stop_grace == 25s);
  REQUIRE(plan_in({{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}}).in_pod);
  REQUIRE(plan_in({{"KUBERNETES_SERVICE_HOST", ""}}).stop_grace == 30s);
  REQUIRE_FALSE(plan_in({{"KUBERNETES_SERVICE_HOST", ""}}).in_pod);
}

TEST_CASE("the driver is asked only where nobody counts GPUs, and they matter", "[unit][scheduler]") {
  int asked = 0;
  const auto workers = [&](const Texts& variables, const Texts& options = {}) {
    asked = 0;
    const auto plan = planned_in(variables, options, with_gpus(variables, 3, asked));
    if (!plan) FAIL(plan.error().message());
    return plan->local_world_size;
  };
  const Texts mpi = mpich({{"MASTER_ADDR", "h"}});
  REQUIRE(workers(mpi) == 3);
  REQUIRE(asked == 1);
  REQUIRE(workers(with(mpi, {{"CUDA_VISIBLE_DEVICES", "1"}})) == 1);
  REQUIRE(workers(mpi, {{"nproc-per-node", "2"}}) == 2);
  REQUIRE(asked == 0);
  REQUIRE(workers(slurm_step({{"SLURM_GPUS_ON_NODE", "2"}})) == 2);
  REQUIRE(asked == 0);
  REQUIRE(workers(slurm_step()) == 1);
  REQUIRE(asked == 0);
  REQUIRE(workers({}) == 1);
  REQUIRE(asked == 0);
  REQUIRE(workers(mpi, {{"gpus", "0,2"}}) == 2);
  REQUIRE(workers({{"LSB_JOBID", "1"}, {"LSB_MCPU_HOSTS", "a 2"}}) == 3);
  REQUIRE(workers({{"LSB_JOBID", "1"}, {"LSB_MCPU_HOSTS", "a 2 b 2"}}) == 1);
  REQUIRE(asked == 0);
}

TEST_CASE("one process in a job of several nodes is told so once", "[unit][scheduler]") {
  const LaunchConfig alone = plan_in(slurm_batch({{"SLURM_GPUS_ON_NODE", "4"}}));
  REQUIRE(alone.warnings ==
          std::vector<std::string>{"this Slurm job has 3 nodes and this runs on n1 alone; srun torchup … runs on all"});
  REQUIRE(alone.one_node());
  REQUIRE(alone.local_world_size == 1);
  REQUIRE(plan_in(slurm_batch(), {{"standalone", "1"}}).warnings.empty());
  REQUIRE(plan_in(slurm_batch(), {{"nnodes", "1"}}).warnings.empty());
  const LaunchConfig single =
      plan_in(slurm_batch({{"SLURM_JOB_NODELIST", "n1"}, {"SLURM_GPUS_ON_NODE", "4"}, {"OMP_NUM_THREADS", "1"}}));
  REQUIRE(single.warnings.empty());
  REQUIRE(single.local_world_size == 4);
  const Texts by_hand{{"nnodes", "3"}, {"rdzv-backend", "c10d"}, {"rdzv-endpoint", "n1:7"}};
  REQUIRE(plan_in(slurm_batch(), by_hand).warnings.empty());
  REQUIRE(plan_in(slurm_batch(), by_hand).terms.hostlist == "n1,n2,n3");
  REQUIRE(plan_in(slurm_batch(), with(by_hand, {{"nnodes", "2"}})).terms.hostlist.empty());
  REQUIRE_THAT(plan_in({{"LSB_JOBID", "1"}, {"LSB_MCPU_HOSTS", "a 2 b 2"}}).warnings.at(0),
               StartsWith("this lsf job has 2 nodes and this runs on host alone; torchup --hosts auto"));
  // salloc's shell is on none of them.
  REQUIRE_THAT(plan_in(slurm_batch({{"SLURMD_NODENAME", "-"}})).warnings.at(0), Contains("this runs on host alone"));
}

TEST_CASE("a list of hosts that is too long for the wire is not passed on", "[unit][scheduler]") {
  const auto list = [](int hosts) {
    const std::string count = std::to_string(hosts), tasks = "1(x" + count + ")";
    const std::string all = "a-rather-long-name-of-a-host-of-a-cluster-[1000-" + std::to_string(999 + hosts) + "]";
    return slurm_step({{"SLURM_JOB_NODELIST", all},
                       {"SLURM_STEP_NODELIST", all},
                       {"SLURM_NNODES", count},
                       {"SLURM_STEP_NUM_NODES", count},
                       {"SLURM_NTASKS", count},
                       {"SLURM_STEP_NUM_TASKS", count},
                       {"SLURM_TASKS_PER_NODE", tasks},
                       {"SLURM_STEP_TASKS_PER_NODE", tasks},
                       {"SLURMD_NODENAME", "a-rather-long-name-of-a-host-of-a-cluster-1001"}});
  };
  REQUIRE(plan_in(list(1000)).terms.hostlist.size() < text_bytes_max);
  REQUIRE(!plan_in(list(1000)).terms.hostlist.empty());
  const LaunchConfig large = plan_in(list(2000));
  REQUIRE(large.terms.hostlist.empty());
  REQUIRE(large.terms.rank_order == RankOrder::index);
  REQUIRE(large.terms.max_nodes == 2000);
}

TEST_CASE("each value says where it came from", "[unit][scheduler]") {
  const auto step = told(plan_in(slurm_step({{"SLURM_GPUS_ON_NODE", "4"}, {"SLURM_JOB_END_TIME", "1900000000"}})));
  REQUIRE(step["scheduler"] == "slurm");
  REQUIRE(step["nodes"] == nlohmann::json{{"value", "2"}, {"from", "SLURM_STEP_NUM_NODES"}});
  REQUIRE(step["workers"] == nlohmann::json{{"value", 4}, {"from", "SLURM_GPUS_ON_NODE"}});
  REQUIRE(step["node_rank"] == nlohmann::json{{"value", 1}, {"from", "SLURM_NODEID"}});
  REQUIRE(step["hosts"] == nlohmann::json{{"value", {"n1", "n2"}}, {"from", "SLURM_STEP_NODELIST"}});
  REQUIRE(step["endpoint"]["from"] == "SLURM_STEP_NODELIST");
  REQUIRE(step["endpoint"]["also"].size() == 3);
  REQUIRE(step["run_id"]["value"] == "slurm.c.17.0.0");
  REQUIRE(step["run_id"]["from"] == "SLURM_CLUSTER_NAME, SLURM_JOB_ID, SLURM_STEP_ID, SLURM_RESTART_COUNT");
  REQUIRE(step["shutdown_timeout"] == nlohmann::json{{"value", 25}, {"from", "SLURM_JOB_ID"}});
  REQUIRE(step["deadline"] == nlohmann::json{{"value", 1'900'000'000}, {"from", "SLURM_JOB_END_TIME"}});
  const auto given = told(plan_in(slurm_step({{"PET_RDZV_ID", "r"}}), {{"nnodes", "1:2"}, {"nproc-per-node", "2"}}));
  REQUIRE(given["nodes"] == nlohmann::json{{"value", "1:2"}, {"from", "--nnodes"}});
  REQUIRE(given["workers"] == nlohmann::json{{"value", 2}, {"from", "--nproc-per-node"}});
  REQUIRE(given["run_id"] == nlohmann::json{{"value", "r"}, {"from", "PET_RDZV_ID"}});
  REQUIRE(given["node_rank"] == nlohmann::json{{"value", 1}, {"from", "SLURM_NODEID"}});
  const auto ranked = [](const Texts& options) { return told(plan_in(slurm_step(), options))["node_rank"]; };
  REQUIRE(ranked({{"node-rank", "0"}}) == nlohmann::json{{"value", 1}, {"from", "SLURM_NODEID"}});  // c10d's has none
  REQUIRE(ranked({{"node-rank", "0"}, {"rdzv-backend", "static"}}) ==
          nlohmann::json{{"value", 0}, {"from", "--node-rank"}});
  const auto none = told(plan_in({}));
  REQUIRE(none["scheduler"].is_null());
  REQUIRE(none["nodes"] == nlohmann::json{{"value", "1"}, {"from", "default"}});
  REQUIRE(none["shutdown_timeout"] == nlohmann::json{{"value", 30}, {"from", "default"}});
  for (const char* absent : {"node_rank", "hosts", "endpoint", "deadline"}) REQUIRE(!none.contains(absent));
  REQUIRE(told(plan_in({{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "9"}}))["shutdown_timeout"]["from"] ==
          "TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
}

TEST_CASE("ports are derived below the kernel's own and differ by run", "[unit][scheduler]") {
  REQUIRE(derived_port("", 0) == Port{20000 + 2166136261U % 12288});
  REQUIRE(derived_port("a", 0) == Port{20000 + 0xe40c292cU % 12288});  // the published test vector of FNV-1a
  std::set<std::uint16_t> seen;
  for (int i = 0; i < derived_ports; ++i) seen.insert(derived_port("slurm.c.17.0.0", i).value());
  REQUIRE(seen.size() == 4);
  REQUIRE(derived_port("slurm.c.17.0.0", 0) != derived_port("slurm.c.17.1.0", 0));
  REQUIRE(derived_port("slurm.c.17.0.0", 0) != derived_port("slurm.c.17.0.1", 0));
  REQUIRE(*seen.begin() >= 20'000);
  REQUIRE(*seen.rbegin() < 32'288);
}

TEST_CASE("rehearsed nodes are in no scheduler", "[unit][scheduler]") {
  const LaunchConfig plan = plan_in(slurm_step(), {{"rehearse", "expect exit=0"}, {"rehearse-nodes", "2"}});
  REQUIRE(plan.scheduler.name.empty());
  REQUIRE(plan.rendezvous.endpoint->host == "127.0.0.1");
}

}  // namespace torchup

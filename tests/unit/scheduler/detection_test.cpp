#include "launcher/core/scheduler/detection.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "launcher/core/options/option_table.hpp"
#include "launcher/core/scheduler/told_words.hpp"
#include "launcher/core/text/text.hpp"
#include "rendezvous/core/text/names.hpp"
#include "tests/unit/scheduler/environments.hpp"

namespace torchup {

using namespace environments;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using Hosts = std::vector<std::string>;

TEST_CASE("without a scheduler nothing is found", "[unit][scheduler]") {
  REQUIRE(found(Texts{}).scheduler == "none");
  REQUIRE(found(Texts{{"SLURM_JOB_ID", ""}, {"PBS_NODEFILE", ""}}).scheduler == "none");
  REQUIRE(found(slurm_step(), "none").scheduler == "none");
  REQUIRE(found(Texts{{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}}).scheduler == "none");
  REQUIRE(found(Texts{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}).scheduler == "none");
}

TEST_CASE("each name that may be asked for has its row", "[unit][scheduler]") {
  int names = 0;
  for (const std::string_view name : split(find_option("scheduler")->choices, '|')) {
    if (name == "auto" || name == "none") continue;
    CAPTURE(std::string{name});
    REQUIRE_THAT(refusal(Texts{}, name), StartsWith("--scheduler=" + std::string{name} + ": the environment lacks "));
    ++names;
  }
  REQUIRE(names == 11);
}

TEST_CASE("a worker that starts a launcher of its own is in no scheduler, unless it says so", "[unit][scheduler]") {
  const Texts worker = slurm_step({{"TORCHELASTIC_RUN_ID", "r"}, {"LOCAL_RANK", "0"}});
  REQUIRE(found(worker).scheduler == "none");
  REQUIRE(found(worker, "slurm").scheduler == "slurm");
  REQUIRE(found(slurm_step({{"TORCHELASTIC_RUN_ID", "r"}})).scheduler == "slurm");
  REQUIRE(found(with(worker, {{"TORCHELASTIC_RUN_ID", "slurm.c.17.0.0"}})).scheduler == "none");
  REQUIRE(found(with(worker, {{"SLURM_LOCALID", "7"}})).scheduler == "none");  // as its launcher has set it
}

TEST_CASE("a step that a worker has started, or whose job it has submitted, is none of its launcher's",
          "[unit][scheduler]") {
  const Texts inherited{{"TORCHELASTIC_RUN_ID", "slurm.c.17.0.0"}, {"LOCAL_RANK", "0"}};
  REQUIRE(found(slurm_step(with(inherited, {{"SLURM_STEP_ID", "1"}}))).run_id->value == "slurm.c.17.1.0");
  REQUIRE(found(slurm_step(with(inherited, {{"SLURM_JOB_ID", "18"}}))).run_id->value == "slurm.c.18.0.0");
  REQUIRE(found(slurm_batch(inherited)).scheduler == "none");
}

TEST_CASE("processes of Open MPI: nodes by ranks over local ranks", "[unit][scheduler]") {
  const Allocation mpi = found(openmpi({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}));
  REQUIRE(mpi.scheduler == "openmpi");
  REQUIRE(mpi.each);
  REQUIRE(mpi.nodes == Told<int>{2, "OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_SIZE"});
  REQUIRE(mpi.node->value == 1);
  REQUIRE(mpi.tasks.value == 2);
  REQUIRE(mpi.task == 1);
  REQUIRE(!mpi.first_host);
  REQUIRE(mpi.gpus_visible);
  REQUIRE(mpi.run_id == Told<std::string>{"123.1", "PMIX_NAMESPACE"});
  const Allocation placed = found(openmpi({{"MASTER_ADDR", "h7"}, {"MASTER_PORT", "2345"}}));
  REQUIRE(placed.first_host == Told<std::string>{"h7", "MASTER_ADDR"});
  REQUIRE(placed.port == Told<Port>{Port{2345}, "MASTER_PORT"});
  REQUIRE_THAT(refusal(openmpi({{"OMPI_COMM_WORLD_SIZE", "5"}})),
               StartsWith("OMPI_COMM_WORLD_SIZE=5: it is no multiple of OMPI_COMM_WORLD_LOCAL_SIZE=2"));
  REQUIRE_THAT(refusal(openmpi({{"OMPI_COMM_WORLD_RANK", "1"}})), Contains("ranks do not follow nodes"));
  REQUIRE_THAT(refusal(openmpi({{"OMPI_COMM_WORLD_RANK", "4"}})), StartsWith("OMPI_COMM_WORLD_RANK=4: "));
  REQUIRE_THAT(refusal(openmpi({{"OMPI_COMM_WORLD_LOCAL_SIZE", "-"}})),
               StartsWith("OMPI_COMM_WORLD_LOCAL_SIZE=: it is missing"));
  REQUIRE_THAT(refusal(openmpi({{"MASTER_PORT", "65536"}})), StartsWith("MASTER_PORT=65536: "));
}

TEST_CASE("processes of MPICH and Intel MPI", "[unit][scheduler]") {
  const Allocation mpi = found(mpich());
  REQUIRE(mpi.scheduler == "mpich");
  REQUIRE(mpi.nodes->value == 2);
  REQUIRE(mpi.node->value == 1);
  REQUIRE(mpi.tasks.value == 1);
  REQUIRE(!mpi.run_id);
  REQUIRE(found(mpich({{"MPI_LOCALNRANKS", "-"}})).scheduler == "none");
  REQUIRE_THAT(refusal(mpich({{"PMI_RANK", "2"}})), StartsWith("PMI_RANK=2: it is no number from 0 to 1"));
  REQUIRE_THAT(refusal(mpich({{"PMI_SIZE", "-"}})), StartsWith("PMI_SIZE=: it is missing"));
}

TEST_CASE("MPI gives the processes, the batch job around it hosts, run id and end", "[unit][scheduler]") {
  const Texts job = slurm_batch({{"SLURM_JOB_END_TIME", "1900000000"}, {"SLURM_NODEID", "0"}});
  const Allocation both = found(facts(with(mpich(), job), "n3.site"));
  REQUIRE(both.scheduler == "mpich");
  REQUIRE(both.nodes->value == 2);
  REQUIRE(both.hosts->value == Hosts{"n1", "n2", "n3"});
  REQUIRE(both.first_host == Told<std::string>{"n1", "SLURM_JOB_NODELIST"});
  REQUIRE(both.own_name == "n3");
  REQUIRE(both.run_id->value == "slurm.c.17.0");
  REQUIRE(both.end->value == 1'900'000'000);
  // hydra starts its proxies by srun: then each run of mpiexec has its step.
  REQUIRE(found(with(mpich(), slurm_step())).run_id->value == "slurm.c.17.0.0");
  REQUIRE(found(with(mpich(), slurm_step()), "slurm").scheduler == "slurm");
  REQUIRE(found(with(openmpi(), {{"PBS_NODEFILE", "/f"}}), "pbs").scheduler.starts_with("error: PBS_NODEFILE=/f: "));
  const Allocation in_pbs =
      found(facts(openmpi({{"PBS_NODEFILE", "/f"}, {"PBS_JOBID", "9"}}), "b", {{"/f", "a\na\nb\n"}}));
  REQUIRE(in_pbs.hosts->value == Hosts{"a", "b"});
  REQUIRE(in_pbs.run_id == Told<std::string>{"pbs.9.123.1", "PBS_JOBID, PMIX_NAMESPACE"});
  REQUIRE(in_pbs.own_name == "b");
}

TEST_CASE("processes of Open MPI are in one job of Slurm, whether srun has started their daemon or not",
          "[unit][scheduler]") {
  // mpirun, in the batch script, starts a daemon on each of the other nodes: that is a step.
  const Texts step{{"SLURM_STEP_NODELIST", "n2"},      {"SLURM_NNODES", "1"},
                   {"SLURM_STEP_NUM_NODES", "1"},      {"SLURM_NTASKS", "1"},
                   {"SLURM_STEP_NUM_TASKS", "1"},      {"SLURM_TASKS_PER_NODE", "1"},
                   {"SLURM_STEP_TASKS_PER_NODE", "1"}, {"SLURM_NODEID", "0"}};
  const Allocation first = found(facts(with(openmpi({{"OMPI_COMM_WORLD_RANK", "0"}}), slurm_batch()), "n1"));
  const Allocation second = found(facts(with(openmpi(), slurm_step(step)), "n2"));
  REQUIRE(first.run_id->value == "slurm.c.17.0.123.1");
  REQUIRE(second.run_id == first.run_id);
  REQUIRE(second.hosts == first.hosts);
  REQUIRE(second.first_host == first.first_host);
  REQUIRE(second.own_name == "n2");
  const Texts component{{"SLURM_HET_SIZE", "2"},
                        {"SLURM_JOB_ID", "18"},
                        {"SLURM_JOB_ID_HET_GROUP_0", "17"},
                        {"SLURM_JOB_NODELIST_HET_GROUP_0", "n1"},
                        {"SLURM_JOB_NODELIST_HET_GROUP_1", "n2"}};
  REQUIRE(found(facts(with(openmpi(), slurm_step(with(step, component))), "n2")).run_id == first.run_id);
}

TEST_CASE("runs of mpiexec in one batch job have run ids of their own", "[unit][scheduler]") {
  const Texts other_run{{"PMIX_NAMESPACE", "123.2"}};
  REQUIRE(found(with(openmpi(other_run), slurm_batch())).run_id->value == "slurm.c.17.0.123.2");
  // A command line, with a bar for each zero byte.
  const auto by_hydra = [](const Texts& variables, std::string starter) {
    std::ranges::replace(starter, '|', '\0');
    SchedulerFacts told = facts(variables);
    told.starter = [starter] { return starter; };
    const Allocation allocation = found(told);
    REQUIRE(allocation.own_run == (starter.starts_with("/usr/bin/hydra") || allocation.scheduler == "slurm"));
    return allocation.run_id;
  };
  const std::string proxy = "/usr/bin/hydra_pmi_proxy|--control-port|n1:34613|--rmk|slurm|--proxy-id|1|";
  const Texts in_slurm = with(mpich(), slurm_batch());
  const auto in_job = by_hydra(in_slurm, proxy);
  REQUIRE(in_job->value == "slurm.c.17.0.n1.34613");
  REQUIRE_THAT(in_job->from, Contains("SLURM_JOB_ID") && Contains("--control-port"));
  REQUIRE(by_hydra(mpich(), proxy)->value == "n1.34613");
  for (const char* const other :
       {"", "sh|-c|torchup|", "p|--control-port", "p|--control-port|", "p|--control-port|a\nb|"}) {
    CAPTURE(other);
    REQUIRE(by_hydra(in_slurm, other)->value == "slurm.c.17.0");
  }
  REQUIRE(by_hydra(slurm_step(), proxy)->value == "slurm.c.17.0.0");
  // Below that a batch job's is each of its runs'.
  REQUIRE_FALSE(found(with(mpich(), slurm_step())).own_run);
  REQUIRE_FALSE(found(with(openmpi({{"PMIX_NAMESPACE", "-"}}), slurm_batch())).own_run);
  REQUIRE(found(with(openmpi(), slurm_batch())).own_run);
}

TEST_CASE("the name of a run is left away where it makes the run id longer than it may be", "[unit][scheduler]") {
  const std::string batch = "slurm.c.17.0";
  const auto named = [&](std::size_t length) {
    return found(with(openmpi({{"PMIX_NAMESPACE", std::string(length, 'p')}}), slurm_batch()));
  };
  const Allocation longest = named(name_bytes_max - batch.size() - 1);
  REQUIRE(longest.run_id->value.size() == name_bytes_max);
  REQUIRE(longest.own_run);
  const Allocation unnamed = named(name_bytes_max - batch.size());
  REQUIRE(unnamed.run_id == Told<std::string>{batch, "SLURM_CLUSTER_NAME, SLURM_JOB_ID, SLURM_RESTART_COUNT"});
  REQUIRE_FALSE(unnamed.own_run);
}

TEST_CASE("a list of hosts that lies on the first of them alone is none for MPI's other processes",
          "[unit][scheduler]") {
  const auto on_second = [](const Texts& job) {
    SchedulerFacts second = facts(with(mpich(), job), "b");
    second.file = [](const std::string& path, std::size_t) -> Result<std::string> {
      return system_error(path == "/dark" ? EACCES : ENOENT, path);
    };
    return found(second);
  };
  const Allocation pbs = on_second({{"PBS_NODEFILE", "/f"}, {"PBS_JOBID", "9"}});
  REQUIRE(pbs.scheduler == "mpich");
  REQUIRE(pbs.run_id->value == "pbs.9");
  REQUIRE(!pbs.hosts);
  REQUIRE(!pbs.first_host);
  REQUIRE(on_second({{"PE_HOSTFILE", "/f"}, {"JOB_ID", "9"}, {"MASTER_ADDR", "a"}}).first_host->value == "a");
  REQUIRE_THAT(on_second({{"PBS_NODEFILE", "/dark"}}).scheduler, StartsWith("error: PBS_NODEFILE=/dark: "));
}

TEST_CASE("what a scheduler lists cannot be an option of a remote shell's, or several hosts", "[unit][scheduler]") {
  const Texts files{{"/dash", "a\n-oProxyCommand=x\n"}, {"/range", "a[1-2]\n"}};
  REQUIRE_THAT(refusal(facts(Texts{{"PBS_NODEFILE", "/dash"}}, "h", files)), Contains("it begins with a dash"));
  REQUIRE_THAT(refusal(facts(Texts{{"PBS_NODEFILE", "/range"}}, "h", files)), Contains("a comma or a bracket"));
  REQUIRE_THAT(refusal(slurm_batch({{"SLURM_JOB_NODELIST", "n1,-l[1-2]"}})),
               StartsWith("SLURM_JOB_NODELIST=n1,-l[1-2]: a host's name cannot be used: it begins with a dash"));
  REQUIRE_THAT(refusal(slurm_batch({{"SLURM_JOB_NODELIST", "n1,n 2"}})), Contains("it has a blank"));
  REQUIRE_THAT(refusal(slurm_batch({{"SLURM_JOB_NODELIST", "n[1-2],n2"}})), Contains("it names a host twice"));
  REQUIRE_THAT(refusal(Texts{{"SKYPILOT_NODE_RANK", "0"}, {"SKYPILOT_NODE_IPS", "-p\nb"}}), Contains("a dash"));
  REQUIRE_THAT(refusal(Texts{{"SM_HOSTS", R"(["a,b"])"}, {"SM_CURRENT_HOST", "a,b"}}), Contains("a comma"));
  REQUIRE_THAT(refusal(Texts{{"SM_HOSTS", R"(["a",""])"}, {"SM_CURRENT_HOST", "a"}}), Contains("it is empty"));
}

TEST_CASE("the innermost scheduler is taken", "[unit][scheduler]") {
  REQUIRE(found(with(openmpi(), mpich())).scheduler == "openmpi");
  REQUIRE(found(with(kubernetes(), slurm_step())).scheduler == "slurm");
  REQUIRE(found(with(kubernetes(), slurm_batch())).scheduler == "kubernetes");  // each goes before once
}

TEST_CASE("a pod of an Indexed Job knows its index and the first pod's name", "[unit][scheduler]") {
  const std::string hosts =
      "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"
      "10.1.2.3\ttrain-2.workers.ns.svc.cluster.local\ttrain-2 # train-2.a.much.longer.name.that.is.a.comment.only\n"
      "10.1.2.4\ttrain-20.workers.ns.svc.cluster.local.longer.still\n";
  const Allocation pod = found(facts(kubernetes(), "train-2", {{"/etc/hosts", hosts}}));
  REQUIRE(pod.scheduler == "kubernetes");
  REQUIRE(!pod.nodes);
  REQUIRE(pod.node == Told<int>{2, "JOB_COMPLETION_INDEX"});
  REQUIRE(pod.first_host->value == "train-0.workers.ns.svc.cluster.local");
  REQUIRE(pod.port->value == Port{29400});
  REQUIRE(pod.run_id->value == "kubernetes.train");
  REQUIRE(found(facts(kubernetes(), "train-2")).first_host->value == "train-0");
  REQUIRE(found(facts(kubernetes(), "train-2.x")).first_host->value == "train-0.x");
  const Allocation of_host = found(facts(kubernetes(), "node12"));  // hostNetwork: its machine's name
  REQUIRE(!of_host.first_host);
  REQUIRE(!of_host.run_id);
  REQUIRE_THAT(refusal(kubernetes({{"JOB_COMPLETION_INDEX", "two"}})), StartsWith("JOB_COMPLETION_INDEX=two: "));
}

TEST_CASE("Volcano's plug-in counts pods", "[unit][scheduler]") {
  const Texts volcano{
      {"VC_TASK_INDEX", "1"}, {"MASTER_ADDR", "j-0.j"}, {"MASTER_PORT", "23456"}, {"RANK", "1"}, {"WORLD_SIZE", "4"}};
  const Allocation pod = found(volcano);
  REQUIRE(pod.scheduler == "volcano");
  REQUIRE(pod.nodes->value == 4);
  REQUIRE(pod.node->value == 1);
  REQUIRE(pod.first_host->value == "j-0.j");
  REQUIRE(pod.port->value == Port{23456});
  REQUIRE(pod.run_id->value == "volcano.j-0.j");
  REQUIRE(found(with(volcano, {{"VC_TASK_INDEX", "-"}})).scheduler == "none");
  REQUIRE_THAT(refusal(with(volcano, {{"RANK", "4"}})), StartsWith("RANK=4: it is no number from 0 to 3"));
}

TEST_CASE("SageMaker lists its hosts as JSON", "[unit][scheduler]") {
  const Texts sagemaker{{"SM_HOSTS", R"(["algo-1","algo-2"])"},
                        {"SM_CURRENT_HOST", "algo-2"},
                        {"SM_NUM_GPUS", "8"},
                        {"TRAINING_JOB_NAME", "t"}};
  const Allocation job = found(sagemaker);
  REQUIRE(job.scheduler == "sagemaker");
  REQUIRE(job.nodes->value == 2);
  REQUIRE(job.node->value == 1);
  REQUIRE(job.hosts->value == Hosts{"algo-1", "algo-2"});
  REQUIRE(job.own_name == "algo-2");
  REQUIRE(job.first_host->value == "algo-1");
  REQUIRE(job.gpus == Told<int>{8, "SM_NUM_GPUS"});
  REQUIRE(job.run_id->value == "sagemaker.t");
  REQUIRE_THAT(refusal(with(sagemaker, {{"SM_CURRENT_HOST", "algo-3"}})), StartsWith("SM_CURRENT_HOST=algo-3: "));
  for (const char* bad :
       {"x", "{}", "[]", "null", "[1]", R"({"a":"algo-2"})", R"(["algo-2","algo-2"])", R"(["a\nb"])"}) {
    CAPTURE(bad);
    REQUIRE_THAT(refusal(with(sagemaker, {{"SM_HOSTS", bad}})), StartsWith("SM_HOSTS="));
  }
}

TEST_CASE("Azure ML and SkyPilot", "[unit][scheduler]") {
  const Texts azureml{{"AZUREML_NODE_COUNT", "3"},
                      {"NODE_RANK", "2"},
                      {"MASTER_ADDR", "10.0.0.4"},
                      {"MASTER_PORT", "6105"},
                      {"AZUREML_RUN_ID", "u"}};
  const Allocation azure = found(azureml);
  REQUIRE(azure.scheduler == "azureml");
  REQUIRE(azure.nodes->value == 3);
  REQUIRE(azure.node->value == 2);
  REQUIRE(azure.port->value == Port{6105});
  REQUIRE(azure.run_id->value == "azureml.u");
  REQUIRE_THAT(refusal(with(azureml, {{"NODE_RANK", "3"}})), StartsWith("NODE_RANK=3: "));
  const Texts skypilot{{"SKYPILOT_NODE_RANK", "1"},
                       {"SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2\n"},
                       {"SKYPILOT_TASK_ID", "s"},
                       {"SKYPILOT_NUM_GPUS_PER_NODE", "4"}};
  const Allocation sky = found(skypilot);
  REQUIRE(sky.scheduler == "skypilot");
  REQUIRE(sky.nodes->value == 2);
  REQUIRE(sky.first_host->value == "10.0.0.1");
  REQUIRE(!sky.port);
  REQUIRE(sky.gpus->value == 4);
  REQUIRE(sky.run_id->value == "skypilot.s");
  REQUIRE_THAT(refusal(with(skypilot, {{"SKYPILOT_NODE_IPS", "\n"}})), Contains("it names no host"));
  REQUIRE_THAT(refusal(with(skypilot, {{"SKYPILOT_NODE_RANK", "2"}})), StartsWith("SKYPILOT_NODE_RANK=2: "));
}

TEST_CASE("LSF, PBS and SGE start on the first of their hosts", "[unit][scheduler]") {
  const Texts lsf{{"LSB_JOBID", "5"}, {"LSB_MCPU_HOSTS", "c1 4 c2 4 "}};
  REQUIRE(found(lsf).scheduler == "lsf");
  REQUIRE(found(lsf).hosts == Told<Hosts>{{"c1", "c2"}, "LSB_MCPU_HOSTS"});
  REQUIRE(found(facts(with(lsf, {{"LSB_DJOB_HOSTFILE", "/f"}}), "h", {{"/f", "d1\nd1\nd2\n"}})).hosts->value ==
          Hosts{"d1", "d2"});
  for (const char* bad : {"c1", "c1 4 c2", "c1 x", "c1 4 4"}) {
    CAPTURE(bad);
    REQUIRE_THAT(refusal(with(lsf, {{"LSB_MCPU_HOSTS", bad}})), StartsWith("LSB_MCPU_HOSTS=" + std::string{bad}));
  }
  const Texts files{{"/p", "p1\np2\np1\n"}, {"/s", "s1 2 q@s1 UNDEFINED\ns2 2 q@s2 UNDEFINED\n"}, {"/bad", "a\x01\n"}};
  const Allocation pbs = found(facts(Texts{{"PBS_NODEFILE", "/p"}}, "h", files));
  REQUIRE(pbs.scheduler == "pbs");
  REQUIRE(!pbs.each);
  REQUIRE(pbs.hosts->value == Hosts{"p1", "p2"});
  REQUIRE(found(facts(Texts{{"PE_HOSTFILE", "/s"}}, "h", files)).hosts->value == Hosts{"s1", "s2"});
  REQUIRE_THAT(refusal(facts(Texts{{"PE_HOSTFILE", "/bad"}}, "h", files)),
               StartsWith("PE_HOSTFILE=/bad: a host's name"));
  REQUIRE_THAT(refusal(facts(Texts{{"PBS_NODEFILE", "/none"}}, "h", files)), StartsWith("PBS_NODEFILE=/none: "));
  const auto large =
      facts(Texts{{"PBS_NODEFILE", "/p"}}, "h", {{"/p", std::string(scheduler::node_file_bytes_max + 1, '\n')}});
  REQUIRE_THAT(refusal(large), Contains("more than 16 MiB"));
  std::string many;
  for (std::size_t i = 0; i <= scheduler::node_file_hosts_max; ++i) many += "h" + std::to_string(i) + "\n";
  REQUIRE_THAT(refusal(facts(Texts{{"PBS_NODEFILE", "/p"}}, "h", {{"/p", many}})), Contains("more than 65536 hosts"));
  many.resize(many.rfind('h'));
  REQUIRE(found(facts(Texts{{"PBS_NODEFILE", "/p"}}, "h", {{"/p", many}})).hosts->value.size() == 65536);
}

}  // namespace torchup

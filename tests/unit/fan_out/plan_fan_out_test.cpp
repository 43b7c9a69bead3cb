#include "launcher/core/plan/plan_fan_out.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <nlohmann/json.hpp>

#include "launcher/core/plan/plan_json.hpp"
#include "tests/support/fake_machine.hpp"

using namespace torchup;
using namespace std::chrono_literals;
using Words = std::vector<std::string>;

namespace {

OptionValues options_of(const std::map<std::string, std::string>& values) {
  OptionValues options;
  for (const auto& [name, value] : values) options.set(name, value);
  return options;
}

Result<FrontPlan> plan_of(const std::map<std::string, std::string>& values, const Texts& variables = {}) {
  const Machine machine = fake_machine(variables);
  FanOutFacts facts{{machine.variable, machine.file, machine.host}, {"A=1"}, "/srv", "/opt/torchup", "1"};
  return plan_fan_out(options_of(values), {"train.py", "--lr", "1"}, false, machine, facts);
}

std::string refusal_of(const std::map<std::string, std::string>& values) {
  const auto plan = plan_of(values);
  return plan ? "" : plan.error().message();
}

bool names(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }

/// The plan of the agent on a host that was told this.
Result<LaunchConfig> agent_plan(LinkPlan told, const std::map<std::string, std::string>& values, int gpus,
                                const Texts& variables) {
  Machine machine = fake_machine(variables);
  machine.linked = LinkedNode{std::move(told), [] { return std::string{"10.0.0.7"}; }, 5};
  machine.gpus = [gpus] {
    Gpus found;
    for (int index = 0; index < gpus; ++index) found.list.emplace_back().uuid = "GPU-" + std::to_string(index);
    return found;
  };
  return make_plan(options_of(values), {"/bin/true"}, false, machine);
}
LaunchConfig agent_of(LinkPlan told, const std::map<std::string, std::string>& values, int gpus = 0,
                      const Texts& variables = {}) {
  return agent_plan(std::move(told), values, gpus, variables).value();
}

}  // namespace

TEST_CASE("nodes are as many as hosts unless somebody says otherwise", "[unit][fan_out]") {
  const auto plan = plan_of({{"hosts", "a,b,c"}});
  REQUIRE((plan->job.terms.min_nodes == 3 && plan->job.terms.max_nodes == 3 && plan->hosts.settings.min_nodes == 3));
  REQUIRE(plan->hosts.agents.program == Words{"train.py", "--lr", "1"});
  REQUIRE(std::ranges::find(plan->hosts.agents.arguments, "--nnodes=3") != plan->hosts.agents.arguments.end());
  REQUIRE(plan->hosts.agents.run_id == plan->job.rendezvous.run_id);
  REQUIRE_FALSE(plan->job.rendezvous.endpoint);
  const auto elastic = plan_of({{"hosts", "a,b,c"}, {"nnodes", "1:2"}, {"rdzv-id", "mine"}});
  REQUIRE((elastic->hosts.settings.min_nodes == 1 && elastic->hosts.agents.run_id == RunId{"mine"}));
  const auto json = nlohmann::json::parse(plan_as_json(plan->job));
  REQUIRE(json["nodes"] == nlohmann::json{{"value", "3"}, {"from", "--hosts"}});
  REQUIRE(nlohmann::json::parse(plan_as_json(elastic->job))["nodes"]["from"] == "--nnodes");
  REQUIRE_FALSE(plan_of({{"hosts", "a"}, {"rdzv-id", ""}})->hosts.agents.run_id.value().empty());
  const auto discovered = plan_of({{"host-discovery", "x"}, {"rdzv-conf", "join_timeout=60"}});
  REQUIRE((discovered->job.terms.min_nodes == 1 && discovered->job.terms.max_nodes == 1024));
  REQUIRE(discovered->hosts.settings.join_timeout == 60s);
}

TEST_CASE("what holds for all hosts is refused before any is started", "[unit][fan_out]") {
  REQUIRE(names(refusal_of({{"hosts", "a"}, {"nnodes", "2:3"}}), "--nnodes=2:3: --hosts names 1 hosts"));
  REQUIRE(names(refusal_of({{"hosts", "a"}, {"nnodes", "x"}}), "--nnodes=x"));
  REQUIRE(names(refusal_of({{"hosts", "a"}, {"max-restarts", "-1"}}), "max_restarts"));
  REQUIRE(names(refusal_of({{"hosts", "a"}, {"lease", "0"}}), "--lease"));
}

TEST_CASE("what only a host can say is left to it", "[unit][fan_out]") {
  const auto plan = plan_of({{"hosts", "a,b"}, {"gpus", "0,1"}, {"nproc-per-node", "gpu"}, {"preload", "torch"}});
  REQUIRE(plan.has_value());
  for (const char* word : {"--gpus=0,1", "--nproc-per-node=gpu", "--preload=torch"}) {
    REQUIRE(std::ranges::find(plan->hosts.agents.arguments, word) != plan->hosts.agents.arguments.end());
  }
}

TEST_CASE("the front ends by the signals that end a job", "[unit][fan_out]") {
  const auto plan = plan_of({{"hosts", "a"}, {"signals-to-handle", "SIGTERM"}});
  REQUIRE(plan->hosts.settings.end_signals == std::vector<int>{SIGTERM});
}

TEST_CASE("agents have the time to end that their workers have, and to save before", "[unit][fan_out]") {
  const FanOutSettings settings = plan_of({{"hosts", "a"}, {"shutdown-timeout", "7"}})->hosts.settings;
  REQUIRE((settings.end_told == 24s && settings.end_limit == 74s));
  const FanOutSettings saving =
      plan_of({{"hosts", "a"}, {"shutdown-timeout", "7"}, {"stop-before", "5m"}, {"drain-signals", "SIGUSR1"}})
          ->hosts.settings;
  REQUIRE((saving.end_told == 324s && saving.end_limit == 374s));
  REQUIRE(saving.drain_signals == std::vector<int>{SIGUSR1});
}

TEST_CASE("a host's agent takes its place from the front", "[unit][fan_out]") {
  const LinkPlan told{.name = "b", .node = 1, .run_id = RunId{"job"}};
  const LaunchConfig plan = agent_of(told, {{"nnodes", "2"}, {"rdzv-id", "other"}});
  REQUIRE(plan.rendezvous.run_id == RunId{"job"});
  REQUIRE((plan.rendezvous.connection == 5 && plan.rendezvous.local_addr == "10.0.0.7"));
  REQUIRE((plan.terms.rank_order == RankOrder::index && plan.rendezvous.group_rank == GroupRank{1}));
  REQUIRE((plan.merged_output && !plan.tells_for_all()));
  SECTION("one alone needs no address") { REQUIRE(agent_of(told, {{"nnodes", "1"}}).rendezvous.local_addr.empty()); }
}

TEST_CASE("a host has as many workers as slots, else as GPUs, else one", "[unit][fan_out]") {
  LinkPlan told{.name = "b", .run_id = RunId{"job"}};
  REQUIRE(agent_of(told, {{"nnodes", "2"}}).local_world_size == 1);
  REQUIRE(agent_of(told, {{"nnodes", "2"}}, 4).local_world_size == 4);
  told.workers = 3;
  REQUIRE(agent_of(told, {{"nnodes", "2"}}, 4).local_world_size == 3);
  REQUIRE(agent_of(told, {{"nnodes", "2"}, {"nproc-per-node", "2"}}, 4).local_world_size == 2);
  REQUIRE(agent_of(told, {{"nnodes", "2"}, {"gpus", "0,1,3"}}, 4).local_world_size == 3);
  told.workers = 2;
  REQUIRE(agent_of(told, {{"nnodes", "2"}, {"gpus", "0,1,3"}}, 4).local_world_size == 2);
}

TEST_CASE("an agent's node is its front's, whatever a scheduler says there", "[unit][fan_out]") {
  LinkPlan told{.name = "b", .node = 1, .run_id = RunId{"job"}};
  const Texts job{{"SLURM_JOB_ID", "17"},
                  {"SLURM_JOB_NODELIST", "a,b"},
                  {"SLURM_GPUS_ON_NODE", "8"},
                  {"SLURM_RESTART_COUNT", "2"},
                  {"PMI_RANK", "0"}};
  const LaunchConfig second = agent_of(told, {{"nnodes", "2"}}, 0, job);
  REQUIRE((second.terms.max_nodes == 2 && second.local_world_size == 1 && second.scheduler.name.empty()));
  REQUIRE(second.scheduler.asked);  // so that no worker has the place of a process of MPI's
  SECTION("the first one puts the job back into the queue that its front is in") {
    REQUIRE_FALSE(agent_of(told, {{"nnodes", "2"}, {"requeue", "3"}}, 0, job).requeue);
    told.node = 0;
    REQUIRE(agent_of(told, {{"nnodes", "2"}, {"requeue", "3"}}, 0, job).requeue ==
            RequeueConfig{.most = 3, .restarts = 2, .slurm_job = "17", .scontrol = "/bin/scontrol"});
    REQUIRE_FALSE(agent_plan(told, {{"nnodes", "2"}, {"requeue", "3"}}, 0, {}).has_value());
    const auto unasked = agent_plan(told, {{"nnodes", "2"}, {"requeue", "3"}, {"scheduler", "none"}}, 0, job);
    REQUIRE_FALSE(unasked.has_value());
  }
  SECTION("each asks when its time ends") {
    const auto stop = agent_of(told, {{"nnodes", "2"}, {"stop-before", "5m"}}, 0, job).stop_before;
    REQUIRE((stop->squeue == "/bin/squeue" && stop->slurm_job == "17"));
  }
  SECTION("unless the user wants none of it") {
    REQUIRE_FALSE(agent_of(told, {{"nnodes", "2"}, {"scheduler", "none"}}, 0, job).scheduler.asked);
  }
}

#include <catch2/catch.hpp>
#include <csignal>
#include <nlohmann/json.hpp>

#include "launcher/core/plan/plan.hpp"
#include "launcher/core/plan/plan_json.hpp"
#include "tests/unit/scheduler/environments.hpp"

namespace torchup {

using namespace environments;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;

namespace {

constexpr std::int64_t now = 1'000'000;

struct Asked {
  Texts variables = {};
  Texts options = {};
  std::string squeue = "1:00:00\n";  ///< what it says
  bool slurm_there = true;           ///< its programs are on PATH
};

Result<LaunchConfig> planned(const Asked& asked) {
  OptionValues values;
  for (const auto& [name, value] : asked.options) values.set(name, value);
  Machine machine = fake_machine(asked.variables);
  machine.unix_seconds = [] { return now; };
  machine.time_left = [&](const std::string& path, const std::string&) -> Result<std::string> {
    if (path != "/bin/squeue") return fail(errc::refused, path + ": no");
    return asked.squeue;
  };
  machine.program = [&, program = machine.program](const std::string& name, Where where) {
    const bool slurm = name == "squeue" || name == "scontrol";
    return slurm && !asked.slurm_there ? std::nullopt : program(name, where);
  };
  auto plan = make_plan(values, {"prog"}, false, machine);
  if (!plan) return plan;
  if (auto learned = learn_deadline(machine, *plan); !learned) return learned.error();
  return plan;
}
LaunchConfig plan(const Asked& asked) {
  auto result = planned(asked);
  if (!result) FAIL(result.error().message());
  return *result;
}
std::string why_not(const Asked& asked) {
  const auto result = planned(asked);
  return result ? "none" : result.error().message();
}

}  // namespace

TEST_CASE("the end of the time is an option's, Slurm's variable's, or squeue's", "[unit][scheduler]") {
  const Texts with_end = slurm_step({{"SLURM_JOB_END_TIME", "1000900"}});
  const auto told = [](const LaunchConfig& config) { return nlohmann::json::parse(plan_as_json(config))["deadline"]; };
  const LaunchConfig given = plan({with_end, {{"stop-before", "5m@USR1"}, {"deadline", "1000800"}}});
  REQUIRE(*given.stop_before == StopBefore{.lead = 5min, .signal = SIGUSR1});  // squeue is not asked again
  REQUIRE(told(given) == nlohmann::json{{"value", 1000800}, {"from", "--deadline"}});
  const LaunchConfig by_variable = plan({with_end, {{"stop-before", "5m"}}});
  REQUIRE(told(by_variable) == nlohmann::json{{"value", 1000900}, {"from", "SLURM_JOB_END_TIME"}});
  REQUIRE(by_variable.stop_before->squeue == "/bin/squeue");
  REQUIRE(by_variable.stop_before->slurm_job == "17");
  const LaunchConfig asked = plan({slurm_step(), {{"stop-before", "5m"}}});
  REQUIRE(told(asked) == nlohmann::json{{"value", now + 3600}, {"from", "squeue"}});
  const LaunchConfig endless = plan({slurm_step(), {{"stop-before", "5m"}}, "UNLIMITED\n"});
  REQUIRE(endless.stop_before);
  REQUIRE_FALSE(endless.deadline);
  REQUIRE(plan({{}, {{"stop-before", "10"}, {"deadline", "1000011"}}}).stop_before->squeue.empty());
  REQUIRE_FALSE(plan({with_end, {}}).stop_before);
  REQUIRE(told(plan({with_end, {}}))["value"] == 1000900);
}

TEST_CASE("a time that is not known, or over too soon, is refused before the start", "[unit][scheduler]") {
  REQUIRE_THAT(why_not({{}, {{"stop-before", "5m"}}}), Contains("nobody says when the time of this job ends"));
  REQUIRE_THAT(why_not({{}, {{"stop-before", "5x"}, {"deadline", "1000800"}}}),
               Contains("--stop-before=5x is no time"));
  REQUIRE_THAT(why_not({{}, {{"stop-before", "5m"}, {"deadline", "1000300"}}}),
               Contains("300.0 s is longer than what is left of the time, 300 s (--deadline)"));
  REQUIRE_THAT(why_not({{}, {{"stop-before", "5m"}, {"deadline", "-1"}}}), Contains("--deadline=-1"));
  REQUIRE(why_not({{}, {{"stop-before", "5m"}, {"deadline", "8589934592"}}}) == "none");
  REQUIRE_THAT(why_not({{}, {{"stop-before", "5m"}, {"deadline", "8589934593"}}}), Contains("is no time in seconds"));
  REQUIRE_THAT(why_not({slurm_batch(), {{"stop-before", "2h"}}}), Contains("3600 s (squeue)"));
  REQUIRE_THAT(why_not({slurm_batch(), {{"stop-before", "5m"}}, "INVALID\n"}), Contains("squeue says 'INVALID'"));
  REQUIRE_THAT(why_not({slurm_batch(), {{"stop-before", "5m"}}, "", false}),
               Contains("squeue, which tells it, is not"));
  const Texts of_its_own{{"stop-before", "5m"}, {"nnodes", "1"}};
  REQUIRE_THAT(why_not({slurm_step(), of_its_own, "INVALID\n"}), Contains("squeue says 'INVALID'"));
  // Its own variables are not believed either.
  REQUIRE_THAT(why_not({slurm_step(), {{"stop-before", "5m"}, {"scheduler", "none"}}}), Contains("nobody says"));
}

TEST_CASE("a node that alone does not know when the time ends does without", "[unit][scheduler]") {
  for (const bool slurm_there : {true, false}) {
    const LaunchConfig second = plan({slurm_step(), {{"stop-before", "5m"}}, "INVALID\n", slurm_there});
    REQUIRE(second.stop_before->untold);
    REQUIRE_FALSE(second.deadline);
    REQUIRE(second.warnings.size() == 1);
    REQUIRE_THAT(second.warnings.front(), Contains("is not known: squeue") && Contains("when another one does"));
  }
  REQUIRE_FALSE(plan({slurm_step(), {{"stop-before", "5m"}}, "UNLIMITED\n"}).stop_before->untold);
}

TEST_CASE("where the first of several nodes does not know it, that one tells the others so", "[unit][scheduler]") {
  const Texts first = slurm_step({{"SLURM_NODEID", "0"}, {"SLURMD_NODENAME", "n1"}});
  const LaunchConfig told = plan({first, {{"stop-before", "5m"}}, "INVALID\n"});
  REQUIRE_THAT(told.gives_up, Contains("--stop-before") && Contains("squeue says 'INVALID'"));
  REQUIRE(told.gives_up_code == 2);
  REQUIRE_THAT(plan({first, {{"stop-before", "5m"}}, "", false}).gives_up, Contains("squeue, which tells it, is not"));
  REQUIRE(plan({first, {{"stop-before", "5m"}}}).gives_up.empty());
}

TEST_CASE("a node whose time is over too soon tells the others so, who may not know it", "[unit][scheduler]") {
  for (const Texts& node : {slurm_step({{"SLURM_NODEID", "0"}, {"SLURMD_NODENAME", "n1"}}), slurm_step()}) {
    const LaunchConfig told = plan({node, {{"stop-before", "2h"}}});
    REQUIRE_THAT(told.gives_up, Contains("longer than what is left of the time, 3600 s (squeue)"));
    REQUIRE(told.gives_up_code == 2);
    REQUIRE_FALSE(told.stop_before);
  }
}

TEST_CASE("node 0 puts the job back into the queue", "[unit][scheduler]") {
  const Texts first = slurm_step({{"SLURM_NODEID", "0"}, {"SLURMD_NODENAME", "n1"}, {"SLURM_RESTART_COUNT", "2"}});
  const Texts wanted{{"requeue", "3"}};
  REQUIRE(*plan({first, wanted}).requeue ==
          RequeueConfig{.most = 3, .restarts = 2, .slurm_job = "17", .scontrol = "/bin/scontrol"});
  REQUIRE_FALSE(plan({slurm_step(), wanted}).requeue);
  REQUIRE_FALSE(plan({slurm_step(), wanted, "", false}).requeue);  // and needs no scontrol
  REQUIRE(plan({slurm_batch(), wanted}).requeue);
  // Agents that are each a job of its own: the step's first.
  REQUIRE(plan({first, {{"requeue", "3"}, {"nnodes", "1"}}}).requeue);
  REQUIRE_FALSE(plan({slurm_step(), {{"requeue", "3"}, {"nnodes", "1"}}}).requeue);
  REQUIRE_THAT(why_not({{}, wanted}), Contains("--requeue=3: this is no job of Slurm"));
  REQUIRE_THAT(why_not({with(first, {{"SLURM_JOB_ID", "-"}}), wanted}), Contains("no job of Slurm"));
  const LaunchConfig without = plan({first, wanted, "", false});
  REQUIRE(without.gives_up == "--requeue=3: scontrol, which does it, is not on PATH");
  REQUIRE(without.gives_up_code == 2);
  for (const Asked& alone :
       {Asked{slurm_batch(), wanted, "", false}, Asked{first, {{"requeue", "3"}, {"nnodes", "1"}}, "", false}}) {
    REQUIRE_THAT(why_not(alone), Contains("scontrol"));
  }
  REQUIRE_THAT(why_not({first, {{"requeue", "-1"}}}), Contains("--requeue=-1"));
}

TEST_CASE("where outputs are merged, node 0 tells what is the whole job's", "[unit][scheduler]") {
  const Texts first = slurm_step({{"SLURM_NODEID", "0"}, {"SLURMD_NODENAME", "n1"}});
  const Texts two{{"nproc-per-node", "2"}};
  REQUIRE(plan({first, two}).warnings.size() == 1);  // OMP_NUM_THREADS
  REQUIRE(plan({slurm_step(), two}).warnings.empty());
  REQUIRE_FALSE(plan({slurm_step(), two}).tells_for_all());
  REQUIRE(plan({first, {}}).merged_output);
  REQUIRE_FALSE(plan({slurm_step(), {{"nnodes", "1"}}}).merged_output);
  REQUIRE(plan({slurm_step(), {{"nnodes", "1"}}}).tells_for_all());
  REQUIRE_FALSE(plan({slurm_batch(), {}}).merged_output);
}

}  // namespace torchup

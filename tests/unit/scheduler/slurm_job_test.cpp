#include "launcher/core/scheduler/slurm_job.hpp"

#include <catch2/catch.hpp>

#include "rendezvous/core/link/messages.hpp"
#include "tests/unit/scheduler/environments.hpp"

namespace torchup {

using namespace environments;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;

namespace {

std::optional<SlurmJob> job_in(const Texts& variables) { return *slurm_job(fake_machine(variables).variable); }

/// As Slurm 22.05 shows a job.
constexpr const char* running =
    "JobId=17 JobName=long UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901759 Nice=0 Account=(null) "
    "QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 "
    "RunTime=00:00:05 TimeLimit=01:00:00 TimeMin=N/A PreemptEligibleTime=2026-11-26T17:00:00 PreemptTime=None "
    "Command=/tmp/job WorkDir=/tmp\n";

std::string with_text(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

}  // namespace

TEST_CASE("the number by which Slurm's commands know the job", "[unit][scheduler]") {
  REQUIRE_FALSE(job_in({}));
  REQUIRE(job_in(slurm_step()) == SlurmJob{"17", 0});
  REQUIRE(job_in(slurm_step({{"SLURM_RESTART_COUNT", "3"}})) == SlurmJob{"17", 3});
  // An array's last task has the array's own number.
  REQUIRE(job_in(slurm_step({{"SLURM_ARRAY_JOB_ID", "17"}, {"SLURM_ARRAY_TASK_ID", "2"}})) == SlurmJob{"17_2", 0});
  REQUIRE(job_in(slurm_step({{"SLURM_JOB_ID_HET_GROUP_0", "16"}})) == SlurmJob{"16", 0});
  for (const char* const name : {"SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"}) {
    const auto wrong = slurm_job(fake_machine(slurm_step({{name, "7;x"}})).variable);
    REQUIRE_THAT(wrong.error().message(), Contains(name));
  }
}

TEST_CASE("how long a job may go on", "[unit][scheduler]") {
  REQUIRE(*read_time_left("0:05\n") == 5s);
  REQUIRE(*read_time_left("59:59") == 59min + 59s);
  REQUIRE(*read_time_left("2:03:04\n") == 2h + 184s);
  REQUIRE(*read_time_left("1-02:03:04\n") == 26h + 184s);
  REQUIRE_FALSE((*read_time_left("UNLIMITED\n")).has_value());
  REQUIRE(*read_time_left("2:00\nUNLIMITED\n1:30\n") == 90s);  // a heterogeneous job
  for (const char* const text :
       {"", "\n", "INVALID\n", "NOT_SET\n", "5\n", "1-2:03\n", "1:60\n", "-1:00\n", "1:-1\n", "1:2:3:4\n",
        "366-00:00:00\n", "99999999999999999999-00:00:00", "slurm_load_jobs error"}) {
    CAPTURE(text);
    REQUIRE(read_time_left(text).error().code == make_error_code(errc::bad_value));
  }
  REQUIRE(read_time_left(std::string(slurm_answer_bytes_max + 1, '\n')).has_error());
}

TEST_CASE("whether a job runs, and makes room for another", "[unit][scheduler]") {
  REQUIRE(*read_job_state(running) == SlurmJobState{"RUNNING", false});
  const std::string preempted = with_text(running, "PreemptTime=None", "PreemptTime=2026-11-26T17:20:00");
  REQUIRE(*read_job_state(preempted) == SlurmJobState{"RUNNING", true});
  REQUIRE(read_job_state(with_text(running, "RUNNING", "COMPLETING"))->state == "COMPLETING");
  REQUIRE_FALSE(read_job_state("JobId=17 JobState=RUNNING")->preempted);
  SECTION("whatever its name says") {
    REQUIRE(read_job_state(with_text(running, "=long", "=a JobState=CANCELLED")).has_error());
    REQUIRE_FALSE(read_job_state(with_text(preempted, "=long", "=a PreemptTime=None"))->preempted);
    REQUIRE(read_job_state(with_text(running, "=long", "=xJobState=CANCELLED"))->state == "RUNNING");
  }
  for (const char* const text : {"", "JobState=", "slurm_load_jobs error: Invalid job id specified", "State=RUNNING"}) {
    REQUIRE(read_job_state(text).has_error());
  }
}

TEST_CASE("which jobs go back into the queue", "[unit][scheduler]") {
  const RequeueConfig config{.most = 3, .restarts = 2, .slurm_job = "17", .scontrol = "scontrol"};
  REQUIRE(why_no_requeue(config, {"RUNNING", false}, true).empty());
  REQUIRE(why_no_requeue(config, {"RUNNING", true}, false).empty());
  REQUIRE_THAT(why_no_requeue(config, {"RUNNING", false}, false), Contains("no preemption"));
  for (const char* const state : {"COMPLETING", "CANCELLED", "TIMEOUT"}) {
    REQUIRE_THAT(why_no_requeue(config, {state, true}, true), Contains(state));
  }
  RequeueConfig often = config;
  often.restarts = 3;
  REQUIRE_THAT(why_no_requeue(often, {"RUNNING", false}, true), Contains("--requeue=3"));
}

}  // namespace torchup

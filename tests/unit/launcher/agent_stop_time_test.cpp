#include <catch2/catch.hpp>

#include "tests/unit/launcher/running_agent.hpp"

namespace torchup {

using namespace agent_test;

namespace {

/// Two workers whose job has an hour, and is to save five minutes before that is over.
LaunchConfig timed(int max_restarts = 0) {
  LaunchConfig config = two_workers(max_restarts);
  config.stop_grace = 25s;
  config.stop_before = StopBefore{.lead = 5min, .signal = SIGUSR2};
  return config;
}
constexpr TimePoint asked = t0 + 55min;

/// Of another node, whose time it is; or on which a worker has saved by itself.
const FromCoordinator others_time{
    End{{.exit_code = 75, .reason = "the time of this job ends", .stop_signal = 0, .time_ends = true}}};
const FromCoordinator others_save{End{{.exit_code = 75, .reason = "rank 0 has saved", .stop_signal = 0}}};

struct Timed : Running {
  explicit Timed(const LaunchConfig& config = timed()) : Running{config} {
    static_cast<void>(agent.step(EndOfTime{t0 + 1h}, t0));
  }
};

}  // namespace

TEST_CASE("before the end of the time workers are asked to save, and the job ends with 75", "[unit][agent]") {
  Timed job;
  REQUIRE(job.agent.deadline() == asked);
  REQUIRE(job.agent.step(Wake{}, asked - 1ns).empty());
  const auto actions = job.agent.step(Wake{}, asked);
  REQUIRE(*find<DrainWorkers>(actions) == DrainWorkers{SIGUSR2, false});
  REQUIRE_FALSE(find<SignalWorkers>(actions));
  REQUIRE(find_event<event::TimeEnds>(actions)->left_s == 300);
  const Leave& word = *find_sent<Leave>(actions);
  REQUIRE(word.ends_job);
  REQUIRE(word.exit_code == 75);
  REQUIRE(word.stop_signal == 0);
  REQUIRE(word.time_ends);
  SECTION("whatever their codes are") {
    REQUIRE_FALSE(find_sent<WorkersFailed>(job.agent.step(ended(0, 1), asked + 1s)));
    REQUIRE_FALSE(find_sent<WorkersSucceeded>(job.agent.step(ended(1, 0), asked + 2s)));
    static_cast<void>(job.agent.step(FromCoordinator{End{verdict_of(word)}}, asked + 2s));
    REQUIRE(find<Finish>(job.agent.step(DescendantsGone{}, asked + 2s))->verdict.exit_code == 75);
  }
  SECTION("who does not hear it over a page gets the signal a second later") {
    REQUIRE(*find<DrainWorkers>(job.agent.step(Wake{}, asked + drain_patience)) == DrainWorkers{SIGUSR2, true});
  }
  SECTION("who has not saved half a minute before the end gets TERM, then KILL") {
    static_cast<void>(job.agent.step(Wake{}, asked + drain_patience));
    REQUIRE(deeds(job.agent.step(Wake{}, t0 + 1h - 30s - 1ns)) == 0);
    REQUIRE(find<SignalWorkers>(job.agent.step(Wake{}, t0 + 1h - 30s))->number == SIGTERM);
    REQUIRE(deeds(job.agent.step(Wake{}, t0 + 1h - 5s - 1ns)) == 0);
    REQUIRE(find<KillWorkers>(job.agent.step(Wake{}, t0 + 1h - 5s))->workers == both);
  }
  SECTION("Slurm's own TERM in between is a stop like any other") {
    REQUIRE(find<SignalWorkers>(job.agent.step(SignalArrived{SIGTERM}, asked + 10s))->number == SIGTERM);
    REQUIRE(find<KillWorkers>(job.agent.step(Wake{}, asked + 35s)));
  }
}

TEST_CASE("another node's time is this one's, where it is near", "[unit][agent]") {
  Timed job;
  SECTION("a clock that is ahead") {
    const auto actions = job.agent.step(others_time, asked - 5s);
    REQUIRE(*find<DrainWorkers>(actions) == DrainWorkers{SIGUSR2, false});
    REQUIRE_FALSE(find_sent<Leave>(actions));
    static_cast<void>(job.agent.step(Wake{}, asked + 1s));
    REQUIRE(job.agent.deadline() == t0 + 1h - 30s);  // and not only the grace
  }
  SECTION("one that ends much sooner than it was told here") {
    REQUIRE(find<DrainWorkers>(job.agent.step(others_time, t0 + 10min)));
    static_cast<void>(job.agent.step(Wake{}, t0 + 10min + drain_patience));
    REQUIRE(job.agent.deadline() == t0 + 15min - 30s);
  }
  SECTION("but a worker that saves by itself ends the job as ever, also shortly before that") {
    const TimePoint then = GENERATE(t0 + 10min, asked - 5s);
    REQUIRE_FALSE(find<DrainWorkers>(job.agent.step(others_save, then)));
    REQUIRE(job.agent.deadline() == then + 25s);
  }
  SECTION("Slurm's answer that this job may go on for ever comes too late, and takes no time from who saves") {
    static_cast<void>(job.agent.step(others_time, asked - 5s));
    static_cast<void>(job.agent.step(EndOfTime{}, asked - 4s));
    static_cast<void>(job.agent.step(Wake{}, asked + 1s));
    REQUIRE(find<SignalWorkers>(job.agent.step(Wake{}, t0 + 1h - 30s))->number == SIGTERM);
    REQUIRE(job.agent.deadline() == t0 + 1h - 5s);
  }
}

TEST_CASE("workers of a node to which nobody tells the end save when another node's time ends", "[unit][agent]") {
  LaunchConfig config = timed();
  config.stop_before->untold = true;
  Running job{config};
  REQUIRE_FALSE(job.agent.deadline());
  SECTION("for which they have as long as the others") {
    REQUIRE(*find<DrainWorkers>(job.agent.step(others_time, asked)) == DrainWorkers{SIGUSR2, false});
    static_cast<void>(job.agent.step(Wake{}, asked + drain_patience));
    REQUIRE(job.agent.deadline() == t0 + 1h - 30s);
  }
  SECTION("and are let when a worker of another node has saved by itself") {
    REQUIRE_FALSE(find<DrainWorkers>(job.agent.step(others_save, asked)));
    REQUIRE(job.agent.deadline() == asked + 25s);
  }
}

TEST_CASE("a node to which nobody has told the end asks again", "[unit][agent]") {
  LaunchConfig config = timed();
  config.stop_before->untold = true;
  config.stop_before->squeue = "/bin/squeue";
  Running job{config};
  REQUIRE(job.agent.deadline() == t0 + 1min);
  REQUIRE(find<AskEndOfTime>(job.agent.step(Wake{}, t0 + 1min)));
  REQUIRE(job.agent.deadline() == t0 + 2min);
  static_cast<void>(job.agent.step(EndOfTime{t0 + 1h}, t0 + 1min + 1s));
  REQUIRE(job.agent.deadline() == asked - 1min);
  REQUIRE(find<AskEndOfTime>(job.agent.step(Wake{}, asked - 1min)));
  REQUIRE(find_sent<Leave>(job.agent.step(Wake{}, asked))->time_ends);
}

TEST_CASE("workers that are being started when another node's time ends are asked too", "[unit][agent]") {
  Agent agent{timed(), AgentIdentity{NodeId{"n"}, "host", {}, {}}};
  static_cast<void>(agent.step(Begin{}, t0));
  static_cast<void>(agent.step(EndOfTime{t0 + 1h}, t0));
  static_cast<void>(agent.step(FromCoordinator{placed()}, asked - 6s));
  REQUIRE(find<DrainWorkers>(agent.step(others_time, asked - 5s)));
  static_cast<void>(agent.step(WorkerStarted{LocalRank{0}, 100}, asked - 1s));
  REQUIRE(*find<DrainWorkers>(agent.step(Wake{}, asked - 1s + drain_patience)) == DrainWorkers{SIGUSR2, true});
}

TEST_CASE("a job that is decided before its time is left alone", "[unit][agent]") {
  Timed job;
  SECTION("its workers have succeeded here, and others go on") {
    static_cast<void>(job.agent.step(ended(0, 0), t0));
    static_cast<void>(job.agent.step(ended(1, 0), t0));
    REQUIRE_FALSE(find_sent<Leave>(job.agent.step(Wake{}, asked)));
    static_cast<void>(job.agent.step(DescendantsGone{}, asked));
    REQUIRE(find<Finish>(job.agent.step(FromCoordinator{End{verdict(0)}}, asked + 1s))->verdict.exit_code == 0);
  }
  SECTION("one has failed for good") {
    REQUIRE(find_sent<WorkersFailed>(job.agent.step(ended(0, 1), asked - 1ns)));
    REQUIRE_FALSE(find_sent<Leave>(job.agent.step(Wake{}, asked)));
  }
  SECTION("it is being stopped") {
    static_cast<void>(job.agent.step(SignalArrived{SIGTERM}, asked - 1s));
    REQUIRE_FALSE(find<DrainWorkers>(job.agent.step(Wake{}, asked)));
  }
}

TEST_CASE("a time that ends while no worker runs ends the job, to be started again", "[unit][agent]") {
  SECTION("during a restart") {
    Timed job{timed(3)};
    static_cast<void>(job.agent.step(ended(0, 1), asked - 1ns));
    REQUIRE(find_sent<Leave>(job.agent.step(Wake{}, asked))->exit_code == 75);
  }
  SECTION("while nodes are awaited; and if others work by then, they save") {
    Agent agent{timed(), AgentIdentity{NodeId{"n"}, "host", {}, {}}};
    static_cast<void>(agent.step(Begin{}, t0));
    static_cast<void>(agent.step(EndOfTime{t0 + 1h}, t0));
    const auto actions = agent.step(Wake{}, asked);
    REQUIRE(find_sent<Leave>(actions)->exit_code == 75);
    REQUIRE(find_sent<Leave>(actions)->stop_signal == 0);
    REQUIRE(find<Finish>(agent.step(Wake{}, asked + 2s))->verdict.exit_code == 75);
  }
}

TEST_CASE("Slurm is asked a minute before whether the time is still the same", "[unit][agent]") {
  LaunchConfig config = timed();
  config.stop_before->squeue = "/bin/squeue";
  Timed job{config};
  REQUIRE(job.agent.deadline() == asked - 1min);
  const auto actions = job.agent.step(Wake{}, asked - 1min);
  REQUIRE(find<AskEndOfTime>(actions));
  REQUIRE(deeds(actions) == 1);
  static_cast<void>(job.agent.step(EndOfTime{t0 + 2h}, asked - 50s));
  REQUIRE(deeds(job.agent.step(Wake{}, asked)) == 0);
  REQUIRE(job.agent.deadline() == t0 + 114min);
}

TEST_CASE("without --stop-before the end of the time is nobody's matter", "[unit][agent]") {
  Running job;
  REQUIRE(job.agent.step(EndOfTime{t0 + 1h}, t0).empty());
  REQUIRE_FALSE(job.agent.deadline());
}

}  // namespace torchup

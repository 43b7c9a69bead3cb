#include <catch2/catch.hpp>

#include "tests/unit/launcher/running_agent.hpp"

namespace torchup {

using namespace agent_test;

namespace {

WorkerEnded said(int local_rank, std::string words, int exit_code = 1) {
  WorkerEnded event = ended(local_rank, exit_code);
  event.lines = {std::move(words)};
  return event;
}

constexpr const char* lost = "RuntimeError: Connection closed by peer [127.0.0.1]:5231";

}  // namespace

TEST_CASE("a failure that is a consequence waits for its cause", "[unit][agent][cause]") {
  Running job{two_workers(1)};
  const auto first = job.agent.step(said(0, lost), t0 + 1s);
  REQUIRE_FALSE(find_sent<WorkersFailed>(first));
  REQUIRE_FALSE(find<SignalWorkers>(first));
  REQUIRE(find_event<event::WorkerExited>(first)->consequence);
  REQUIRE(find_event<event::WorkerExited>(first)->end == WorkerEnd::failed);
  REQUIRE(job.agent.deadline() == t0 + 1s + cause_patience);
  SECTION("which is told of as soon as it is there") {
    const auto second = job.agent.step(said(1, "ValueError: bad"), t0 + 1s + 100ms);
    const auto* const told = find_sent<WorkersFailed>(second);
    REQUIRE(told);
    REQUIRE(told->failures.size() == 2);
    REQUIRE(root_cause(told->failures) == 1);
    REQUIRE(find_event<event::Stopping>(second)->reason == "rank 1 failed with exit code 1");
  }
  SECTION("for so long") {
    REQUIRE(job.agent.step(Wake{}, t0 + 1s + cause_patience - 1ns).empty());
    const auto due = job.agent.step(Wake{}, t0 + 1s + cause_patience);
    REQUIRE(find_sent<WorkersFailed>(due)->failures.size() == 1);
    REQUIRE(find<SignalWorkers>(due)->workers == std::vector{LocalRank{1}});
    SECTION("and who is ended then is no cause") {
      const auto over = job.agent.step(ended(1, -SIGTERM), t0 + 2s);
      REQUIRE(find_event<event::WorkerExited>(over)->consequence);
    }
  }
  SECTION("while somebody is left who could be it") {
    const auto second = job.agent.step(said(1, lost), t0 + 1s + 100ms);
    REQUIRE(find_sent<WorkersFailed>(second)->failures.size() == 2);
    REQUIRE(root_cause(find_sent<WorkersFailed>(second)->failures) == 0);
  }
  SECTION("and a success is none") {
    const auto second = job.agent.step(ended(1, 0), t0 + 1s + 100ms);
    REQUIRE(find_sent<WorkersFailed>(second));
    REQUIRE_FALSE(find_sent<WorkersSucceeded>(second));
  }
  SECTION("unless the coordinator knows it, from another node") {
    const auto stop =
        job.agent.step(FromCoordinator{StopWorkers{Round{0}, StopCause::worker_failure, "rank 3 on b exited with 1"}},
                       t0 + 1s + 100ms);
    REQUIRE(find<SignalWorkers>(stop));
    REQUIRE_FALSE(find_sent<WorkersFailed>(job.agent.step(Wake{}, t0 + 1s + cause_patience)));
  }
  SECTION("unless the user ends the job") {
    REQUIRE(find<SignalWorkers>(job.agent.step(SignalArrived{SIGTERM}, t0 + 1s + 100ms)));
    REQUIRE_FALSE(find_sent<WorkersFailed>(job.agent.step(Wake{}, t0 + 1s + cause_patience)));
  }
}

TEST_CASE("a cause waits for nobody", "[unit][agent][cause]") {
  Running job{two_workers(1)};
  SECTION("an exception of its own") {
    REQUIRE(find_sent<WorkersFailed>(job.agent.step(said(0, "ValueError: bad"), t0)));
  }
  SECTION("a signal, whatever was said before") {
    const auto died = job.agent.step(said(0, lost, -SIGKILL), t0);
    REQUIRE_FALSE(find_sent<WorkersFailed>(died)->failures.front().consequence);
  }
  SECTION("no word at all") { REQUIRE(find_sent<WorkersFailed>(job.agent.step(ended(0, 1), t0))); }
}

TEST_CASE("a program that gives up by SIGABRT for another's end is no cause", "[unit][agent][cause]") {
  Running job{two_workers(1)};
  REQUIRE_FALSE(
      find_sent<WorkersFailed>(job.agent.step(said(0, "  what():  NCCL communicator was aborted", -SIGABRT), t0)));
}

TEST_CASE("on several nodes the cause may be elsewhere", "[unit][agent][cause]") {
  Agent agent{two_workers(1), AgentIdentity{NodeId{"n"}, "host", {}, {}}};
  static_cast<void>(agent.step(Begin{}, t0));
  Placed place = placed();
  place.placement.group_world_size = 2;
  place.placement.world_size = 4;
  static_cast<void>(agent.step(FromCoordinator{place}, t0));
  static_cast<void>(agent.step(WorkerStarted{LocalRank{0}, 100}, t0));
  static_cast<void>(agent.step(WorkerStarted{LocalRank{1}, 101}, t0));
  static_cast<void>(agent.step(said(0, lost), t0));
  REQUIRE_FALSE(find_sent<WorkersFailed>(agent.step(said(1, lost), t0)));
  const auto due = agent.step(Wake{}, t0 + cause_patience);
  REQUIRE(find_sent<WorkersFailed>(due)->failures.size() == 2);
  REQUIRE(find<SweepDescendants>(due));
}

TEST_CASE("who saves and ends meanwhile is not cut off by a cause that does not come", "[unit][agent][cause]") {
  SECTION("the last one here") {
    Running job{two_workers(1)};
    static_cast<void>(job.agent.step(said(0, lost), t0));
    const auto saved = job.agent.step(ended(1, 75), t0 + 100ms);
    REQUIRE(find<SweepDescendants>(saved));
    REQUIRE(find_sent<Leave>(saved)->exit_code == 75);
    REQUIRE_FALSE(find_sent<WorkersFailed>(saved));
  }
  SECTION("while another one still writes") {
    LaunchConfig config = two_workers(1);
    config.local_world_size = 3;
    Running job{config};
    static_cast<void>(job.agent.step(WorkerStarted{LocalRank{2}, 102}, t0));
    static_cast<void>(job.agent.step(said(0, lost), t0));
    static_cast<void>(job.agent.step(ended(1, 75), t0 + 100ms));
    REQUIRE(deeds(job.agent.step(Wake{}, t0 + cause_patience)) == 0);
    REQUIRE(find<SweepDescendants>(job.agent.step(ended(2, 75), t0 + 5s)));
  }
  SECTION("on another node") {
    Running job{two_workers(1)};
    static_cast<void>(job.agent.step(said(0, lost), t0));
    End end{verdict(75)};
    end.verdict.stop_signal = 0;
    static_cast<void>(job.agent.step(FromCoordinator{end}, t0 + 100ms));
    REQUIRE(deeds(job.agent.step(Wake{}, t0 + cause_patience)) == 0);
    REQUIRE(find<SweepDescendants>(job.agent.step(ended(1, 75), t0 + 5s)));
  }
}

TEST_CASE("who had failed before the first failure was seen is the cause though it outlived the stop",
          "[unit][agent][cause]") {
  Running job{two_workers(1)};
  WorkerEnded first = said(0, lost);
  first.time_us = 100'000'000;
  static_cast<void>(job.agent.step(first, t0));
  static_cast<void>(job.agent.step(Wake{}, t0 + cause_patience));
  WorkerEnded late = said(1, "ValueError: bad");
  late.error_file = "/e";
  SECTION("by its error file") {
    late.time_us = 99'000'000;
    REQUIRE_FALSE(find_event<event::WorkerExited>(job.agent.step(late, t0 + 1s))->consequence);
  }
  SECTION("which is from before") {
    late.time_us = 100'900'000;
    REQUIRE(find_event<event::WorkerExited>(job.agent.step(late, t0 + 1s))->consequence);
  }
}

namespace {

/// Rank 1 lives, and an exception has left its program.
ExceptionSeen raised(std::string words, std::int64_t at_ns) {
  ExceptionSeen event{LocalRank{1}, at_ns, 100'000'000, words, "/logs/1/error.json", {}};
  event.lines = {std::move(words)};
  return event;
}

std::int64_t nanoseconds(TimePoint time) { return time.time_since_epoch().count(); }

}  // namespace

TEST_CASE("an exception in a worker that lives on ends the wait for the cause", "[unit][agent][cause]") {
  Running job{two_workers(1)};
  REQUIRE(find<SeekCause>(job.agent.step(said(0, lost), t0 + 1s)));
  SECTION("and is it") {
    const auto told = job.agent.step(raised("ValueError: bad", nanoseconds(t0 + 900ms)), t0 + 1s + 20ms);
    const auto* const failed = find_sent<WorkersFailed>(told);
    REQUIRE(failed);
    REQUIRE(failed->failures.size() == 2);
    REQUIRE(root_cause(failed->failures) == 1);
    REQUIRE(failed->failures[1].rank == Rank{1});
    REQUIRE(failed->failures[1].exit_code == 1);
    REQUIRE(failed->failures[1].error_file == "/logs/1/error.json");
    REQUIRE(find_event<event::Stopping>(told)->reason == "rank 1 failed with exit code 1");
    REQUIRE(find<SignalWorkers>(told)->workers == std::vector{LocalRank{1}});
    SECTION("whatever its process ends with") {
      const int code = GENERATE(-SIGTERM, 1, 7);
      const auto end = job.agent.step(ended(1, code), t0 + 2s);
      CHECK_FALSE(find_event<event::WorkerExited>(end)->consequence);
      static_cast<void>(job.agent.step(FromCoordinator{End{verdict(1)}}, t0 + 2s));
      const auto over = job.agent.step(DescendantsGone{}, t0 + 2s);
      const auto& failures = find<Finish>(over)->local_failures;
      REQUIRE(failures.size() == 2);
      CHECK(failures[root_cause(failures)].rank == Rank{1});
      CHECK(failures[root_cause(failures)].exit_code == (code > 0 ? code : 1));
    }
  }
  SECTION("unless it tells of others itself") {
    REQUIRE(job.agent.step(raised(lost, nanoseconds(t0 + 900ms)), t0 + 1s + 20ms).empty());
    REQUIRE(find_sent<WorkersFailed>(job.agent.step(Wake{}, t0 + 1s + cause_patience))->failures.size() == 1);
  }
  SECTION("for which it is sought once") { REQUIRE_FALSE(find<SeekCause>(job.agent.step(said(1, lost), t0 + 1s))); }
}

TEST_CASE("of a worker's exceptions the last one counts", "[unit][agent][cause]") {
  Running job{two_workers(1)};
  REQUIRE(job.agent.step(raised("ValueError: bad", nanoseconds(t0 + 1s)), t0 + 1s).empty());
  SECTION("be it of another's end") {
    REQUIRE(job.agent.step(raised(lost, nanoseconds(t0 + 2s)), t0 + 2s).empty());
    const auto first = job.agent.step(said(0, lost), t0 + 3s);
    REQUIRE_FALSE(find_sent<WorkersFailed>(first));
    REQUIRE(find<SeekCause>(first));
  }
  SECTION("or its own") {
    REQUIRE(job.agent.step(raised("KeyError: 1", nanoseconds(t0 + 2s)), t0 + 2s).empty());
    const auto told = job.agent.step(said(0, lost), t0 + 3s);
    const auto& failures = find_sent<WorkersFailed>(told)->failures;
    REQUIRE(failures[root_cause(failures)].message == "KeyError: 1");
  }
}

TEST_CASE("an exception that was seen before anybody ended is a cause when somebody does", "[unit][agent][cause]") {
  Running job{two_workers(1)};
  REQUIRE(job.agent.step(raised("ValueError: bad", nanoseconds(t0 + 1s)), t0 + 1s).empty());
  SECTION("of that end") {
    const auto told = job.agent.step(said(0, lost), t0 + 2s);
    REQUIRE(root_cause(find_sent<WorkersFailed>(told)->failures) == 1);
    REQUIRE_FALSE(find<SeekCause>(told));
  }
  SECTION("which came later, though it ended first") {
    WorkerEnded other = said(0, "KeyError: 'x'");
    other.time_us = GENERATE(100'500'000, 99'900'000);  // whenever its error file was written
    other.raised_at_ns = nanoseconds(t0 + 1500ms);
    auto failures = find_sent<WorkersFailed>(job.agent.step(other, t0 + 2s))->failures;
    REQUIRE(failures.size() == 2);
    REQUIRE(failures.front().rank == Rank{1});
    for (WorkerFailure& failure : failures) failure.raised_at_ns = 0;  // which no coordinator is told
    REQUIRE(root_cause(failures) == 0);
  }
  SECTION("and not of one that came earlier") {
    WorkerEnded other = said(0, "KeyError: 'x'");
    other.time_us = 100'500'000;
    other.raised_at_ns = nanoseconds(t0 + 500ms);
    REQUIRE(find_sent<WorkersFailed>(job.agent.step(other, t0 + 2s))->failures.size() == 1);
  }
}

}  // namespace torchup

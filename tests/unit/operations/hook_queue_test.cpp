#include "launcher/core/record/hook_queue.hpp"

#include <catch2/catch.hpp>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

const TimePoint t0{};
const EventHookOptions options{"notify", {"restarting", "worker_hung", "hook_failed"}};

hook::Happened restarting(const std::string& line = "{}") { return {"restarting", line, true}; }
hook::Happened hung(const std::string& line = "{}") { return {"worker_hung", line, false}; }

using Actions = std::vector<hook::Action>;

}  // namespace

TEST_CASE("a hook is told one event after the other", "[unit][hook]") {
  HookQueue queue{options, JobTeller::here};
  CHECK_FALSE(queue.deadline());
  CHECK(queue.step(restarting("a"), t0) == Actions{hook::Start{"restarting", "a"}});
  CHECK(queue.step(hung("b"), t0 + 1s).empty());
  CHECK(queue.deadline() == t0 + 10s);
  CHECK(queue.step(hook::Ended{}, t0 + 2s) == Actions{hook::Start{"worker_hung", "b"}});
  CHECK(queue.deadline() == t0 + 12s);
  CHECK(queue.step(hook::Ended{}, t0 + 3s).empty());
  CHECK(queue.idle());
}

TEST_CASE("a hook hears of the events that it wants, and not of its own failures", "[unit][hook]") {
  HookQueue queue{options, JobTeller::here};
  CHECK(queue.step(hook::Happened{"job_ended", "{}", true}, t0).empty());
  CHECK(queue.step(hook::Happened{"hook_failed", "{}", false}, t0).empty());
}

TEST_CASE("what concerns the job is told on one node", "[unit][hook]") {
  const bool first = GENERATE(false, true);
  HookQueue queue{options, first ? JobTeller::elsewhere : JobTeller::here};
  CHECK(queue.step(restarting(), t0).empty() == first);
  static_cast<void>(queue.step(hook::Ended{}, t0));
  static_cast<void>(queue.step(hook::Placed{GroupRank{first ? 0 : 1}}, t0));
  CHECK(queue.tells_of_job() == first);
  CHECK(queue.step(restarting(), t0).empty() != first);
  static_cast<void>(queue.step(hook::Ended{}, t0));
  CHECK_FALSE(queue.step(hung(), t0).empty());
  CHECK(concerns_job(event::JobEnded{}));
  CHECK(concerns_job(event::Restarting{}));
  CHECK_FALSE(concerns_job(event::WorkerHung{}));
  CHECK_FALSE(concerns_job(event::IncidentRecorded{}));
  CHECK_FALSE(concerns_job(event::OrderReceived{}));  // the node that makes the rounds alone hears of it
}

TEST_CASE("before the first round the node that hosts tells of the job", "[unit][hook]") {
  HookQueue queue{options, JobTeller::unknown};
  CHECK(queue.tells_of_job());
  CHECK(queue.step(restarting("a"), t0).empty());
  SECTION("it does") {
    CHECK(queue.step(hook::Hosts{}, t0) == Actions{hook::Start{"restarting", "a"}});
    static_cast<void>(queue.step(hook::Ended{}, t0));
    static_cast<void>(queue.step(hook::Placed{GroupRank{1}}, t0));
    CHECK(queue.step(restarting("b"), t0).empty());
  }
  SECTION("it is the first in the round") {
    CHECK(queue.step(hook::Placed{GroupRank{0}}, t0) == Actions{hook::Start{"restarting", "a"}});
  }
  SECTION("another is") {
    CHECK(queue.step(hook::Placed{GroupRank{1}}, t0).empty());
    CHECK_FALSE(queue.tells_of_job());
  }
  SECTION("who was told that another is the first hosts, and leaves it to that one") {
    HookQueue second{options, JobTeller::elsewhere};
    CHECK(second.step(hook::Hosts{}, t0).empty());
    CHECK(second.step(restarting(), t0).empty());
  }
}

TEST_CASE("where nobody knows who is the first a node tells of its own end alone", "[unit][hook]") {
  HookQueue queue{{"notify", {"restarting", "job_ended"}}, JobTeller::unknown};
  for (std::size_t i = 0; i < hook_waiting_max - 1; ++i) CHECK(queue.step(restarting(), t0).empty());
  CHECK(queue.step(hook::Happened{"job_ended", "end", true}, t0).empty());
  CHECK(queue.step(hook::JobEnds{}, t0) == Actions{hook::Start{"job_ended", "end"}});
  CHECK(queue.step(hook::Ended{}, t0).empty());
  CHECK(queue.idle());
}

TEST_CASE("who tells of a job without a round is known by the plan, or is not", "[unit][hook]") {
  LaunchConfig config;
  config.terms.max_nodes = 1;
  CHECK(job_teller(config) == JobTeller::here);
  config.terms.max_nodes = 2;
  CHECK(job_teller(config) == JobTeller::unknown);
  config.rendezvous.is_host = true;  // it still has to find the port free
  CHECK(job_teller(config) == JobTeller::unknown);
  config.rendezvous.is_host = false;
  CHECK(job_teller(config) == JobTeller::elsewhere);
  config.scheduler.node = 0;  // at a torchupd
  CHECK(job_teller(config) == JobTeller::here);
  config.scheduler.node = 1;
  CHECK(job_teller(config) == JobTeller::elsewhere);
}

TEST_CASE("a hook that fails is told of, and the next one is started", "[unit][hook]") {
  HookQueue queue{options, JobTeller::here};
  static_cast<void>(queue.step(restarting("a"), t0));
  static_cast<void>(queue.step(restarting("b"), t0));
  CHECK(queue.step(hook::Ended{"exit code 3"}, t0) ==
        Actions{hook::Failed{"told of restarting: exit code 3"}, hook::Start{"restarting", "b"}});
}

TEST_CASE("a hook that does not end is killed", "[unit][hook]") {
  HookQueue queue{options, JobTeller::here};
  static_cast<void>(queue.step(restarting("a"), t0));
  static_cast<void>(queue.step(hung("b"), t0 + 1s));
  CHECK(queue.step(hook::Wake{}, t0 + 10s - 1ns).empty());
  CHECK(queue.step(hook::Wake{}, t0 + 10s) ==
        Actions{hook::Failed{"told of restarting: it has not ended within 10 s, and was killed"}, hook::Kill{},
                hook::Start{"worker_hung", "b"}});
}

TEST_CASE("so many events wait, and no more", "[unit][hook]") {
  HookQueue queue{options, JobTeller::here};
  for (std::size_t i = 0; i <= hook_waiting_max; ++i) {
    CHECK(queue.step(restarting(), t0) == (i == 0 ? Actions{hook::Start{"restarting", "{}"}} : Actions{}));
  }
  const Actions full{hook::Failed{"it is not told of restarting and what follows: 64 events wait for it"}};
  CHECK(queue.step(restarting(), t0) == full);
  CHECK(queue.step(restarting(), t0).empty());
  static_cast<void>(queue.step(hook::Ended{}, t0));
  CHECK(queue.step(restarting(), t0).empty());
  CHECK(queue.step(restarting(), t0) == full);
}

TEST_CASE("at the end of the job a hook has five seconds", "[unit][hook]") {
  HookQueue queue{options, JobTeller::here};
  static_cast<void>(queue.step(restarting("a"), t0));
  for (int i = 0; i < 3; ++i) static_cast<void>(queue.step(hung("b"), t0));
  static_cast<void>(queue.step(hook::JobEnds{}, t0 + 1s));
  CHECK(queue.deadline() == t0 + 6s);
  CHECK(queue.step(hook::Ended{}, t0 + 2s) == Actions{hook::Start{"worker_hung", "b"}});
  CHECK(queue.deadline() == t0 + 6s);
  CHECK(queue.step(hook::Wake{}, t0 + 6s) ==
        Actions{hook::Failed{"told of worker_hung: it has not ended 5 s after the job, and was killed"}, hook::Kill{},
                hook::Failed{"it was not told of 2 events: the job is over"}});
  CHECK(queue.idle());
  CHECK_FALSE(queue.deadline());
}

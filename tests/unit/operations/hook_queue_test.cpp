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
  HookQueue queue{options, true};
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
  HookQueue queue{options, true};
  CHECK(queue.step(hook::Happened{"job_ended", "{}", true}, t0).empty());
  CHECK(queue.step(hook::Happened{"hook_failed", "{}", false}, t0).empty());
}

TEST_CASE("what concerns the job is told on one node", "[unit][hook]") {
  const bool hosts = GENERATE(false, true);
  HookQueue queue{options, hosts};
  CHECK(queue.step(restarting(), t0).empty() != hosts);
  static_cast<void>(queue.step(hook::Ended{}, t0));
  queue.placed(GroupRank{hosts ? 1 : 0});
  CHECK(queue.step(restarting(), t0).empty() == hosts);
  static_cast<void>(queue.step(hook::Ended{}, t0));
  CHECK_FALSE(queue.step(hung(), t0).empty());
  CHECK(concerns_job(event::JobEnded{}));
  CHECK(concerns_job(event::Restarting{}));
  CHECK_FALSE(concerns_job(event::WorkerHung{}));
  CHECK_FALSE(concerns_job(event::IncidentRecorded{}));
}

TEST_CASE("a hook that fails is told of, and the next one is started", "[unit][hook]") {
  HookQueue queue{options, true};
  static_cast<void>(queue.step(restarting("a"), t0));
  static_cast<void>(queue.step(restarting("b"), t0));
  CHECK(queue.step(hook::Ended{"exit code 3"}, t0) ==
        Actions{hook::Failed{"told of restarting: exit code 3"}, hook::Start{"restarting", "b"}});
}

TEST_CASE("a hook that does not end is killed", "[unit][hook]") {
  HookQueue queue{options, true};
  static_cast<void>(queue.step(restarting("a"), t0));
  static_cast<void>(queue.step(hung("b"), t0 + 1s));
  CHECK(queue.step(hook::Wake{}, t0 + 10s - 1ns).empty());
  CHECK(queue.step(hook::Wake{}, t0 + 10s) ==
        Actions{hook::Failed{"told of restarting: it has not ended within 10 s, and was killed"}, hook::Kill{},
                hook::Start{"worker_hung", "b"}});
}

TEST_CASE("so many events wait, and no more", "[unit][hook]") {
  HookQueue queue{options, true};
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
  HookQueue queue{options, true};
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

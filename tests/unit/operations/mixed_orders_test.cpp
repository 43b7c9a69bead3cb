// Orders in a job that torchrun's agents share.
#include <catch2/catch.hpp>

#include "tests/support/mixed_job.hpp"

namespace torchup {
namespace {

using namespace std::chrono_literals;

using test::Mixed;

std::optional<Verdict> verdict_in(const std::vector<RendezvousAction>& actions) {
  for (const RendezvousAction& action : actions) {
    const auto* tell = std::get_if<Tell>(&action);
    if (const auto* end = tell ? std::get_if<End>(&tell->message) : nullptr) return end->verdict;
  }
  return {};
}

}  // namespace

TEST_CASE("of a job with torchrun's agents nothing can be ordered but its end", "[unit][mixed]") {
  Mixed mixed;
  for (const Order& order : {Order{order::Restart{}}, Order{order::Drain{"a"}}, Order{order::Undrain{"a"}},
                             Order{order::Resize{1, 4}}, Order{order::Stop{.save = true}}}) {
    REQUIRE_FALSE(mixed.job.answer(order).accepted);
    REQUIRE(mixed.job.answer(order).text.find("torchrun") != std::string::npos);
    REQUIRE(mixed.step(Ordered{order, "ada"}).empty());
  }
}

TEST_CASE("a job with torchrun's agents ends when that is ordered", "[unit][mixed]") {
  Mixed mixed;
  const bool at_once = GENERATE(false, true);
  const Order stop = order::Stop{.now = at_once};
  REQUIRE(mixed.job.answer(stop).accepted);
  auto actions = mixed.step(Ordered{stop, "ada"});
  REQUIRE(std::get<Note>(actions.front()) == Note{OrderReceived{"stop", "ada"}});
  std::optional<Verdict> verdict = verdict_in(actions);
  for (int i = 0; i < 50 && !verdict; ++i) verdict = verdict_in(mixed.pass(100ms));
  REQUIRE(verdict.has_value());
  REQUIRE(verdict->exit_code == 143);
  REQUIRE(verdict->reason == "stopped by ada");
  REQUIRE(verdict->kill_now == at_once);
  SECTION("once") {
    for (const Order& more : {Order{order::Restart{}}, Order{order::Resize{1, 4}}, Order{order::Stop{}}}) {
      REQUIRE_FALSE(mixed.job.answer(more).accepted);
      REQUIRE(mixed.job.answer(more).text == "the job has ended: stopped by ada (phase: ended)");
    }
  }
}

}  // namespace torchup

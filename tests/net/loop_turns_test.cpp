#include "rendezvous/net/io/loop_turns.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <catch2/catch.hpp>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

std::uint64_t longer_than(Duration limit, const TurnHistogram& turns) {
  std::uint64_t count = turns.count(TurnHistogram::steps.size());
  for (std::size_t step = 0; step < TurnHistogram::steps.size(); ++step) {
    if (TurnHistogram::steps[step].ns > std::chrono::nanoseconds{limit}.count()) count += turns.count(step);
  }
  return count;
}

void work_until(auto clock, Duration longer) {
  const auto end = clock() + longer;
  while (clock() < end) continue;
}

}  // namespace

TEST_CASE("a loop's turns are told with their times", "[net][loop_turns]") {
  boost::asio::io_context loop{1};
  TurnHistogram turns;
  boost::asio::steady_timer timer{loop, 2ms};
  timer.async_wait([&](boost::system::error_code) {  // the loop has slept before
    work_until(thread_time, 30ms);
    for (int i = 0; i < 3; ++i) boost::asio::post(loop, [] {});
    boost::asio::post(loop, [] { work_until(std::chrono::steady_clock::now, 30ms); });
  });
  run_turns(loop, turns);  // to the end of its work
  REQUIRE(longer_than(25ms, turns) >= 2);
  REQUIRE(turns.sum_s() >= 0.06);
  std::uint64_t all = turns.count(TurnHistogram::steps.size());
  for (std::size_t step = 0; step < TurnHistogram::steps.size(); ++step) all += turns.count(step);
  REQUIRE(all == 5);
}

TEST_CASE("turns end where the loop is stopped, whatever is left", "[net][loop_turns]") {
  boost::asio::io_context loop{1};
  const auto guard = boost::asio::make_work_guard(loop);
  TurnHistogram turns;
  int ran = 0;
  boost::asio::post(loop, [&] {
    ++ran;
    boost::asio::post(loop, [&] { ++ran; });
    loop.stop();
  });
  run_turns(loop, turns);
  REQUIRE(ran == 1);
}

#include "rendezvous/net/coordinator.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <catch2/catch.hpp>
#include <functional>
#include <vector>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

/// One agent's side: what it heard so far.
struct Agent {
  Agent(Coordinator& coordinator, const std::string& run_id)
      : link{coordinator.connect(RunId{run_id}, [this](LinkEvent event) { heard.push_back(std::move(event)); })} {}
  template <class T>
  const T* last() const {
    if (heard.empty()) return nullptr;
    const auto* message = std::get_if<CoordinatorMessage>(&heard.back());
    return message ? std::get_if<T>(message) : nullptr;
  }
  std::vector<LinkEvent> heard;
  std::unique_ptr<AgentLink> link;
};

Join join_of(const std::string& host, JobTerms terms) {
  Join join;
  join.host = host;
  join.local_world_size = 2;
  join.terms = std::move(terms);
  return join;
}

/// Runs the loop until `condition` holds; false after five seconds.
bool run_until(boost::asio::io_context& loop, const std::function<bool()>& condition) {
  const auto limit = std::chrono::steady_clock::now() + 5s;
  while (!condition() && std::chrono::steady_clock::now() < limit) {
    loop.restart();
    loop.run_one_for(50ms);
  }
  return condition();
}

}  // namespace

TEST_CASE("an agent meets the coordinator of its own process", "[net][coordinator]") {
  boost::asio::io_context loop;
  Coordinator coordinator{loop};
  Agent agent{coordinator, "job"};
  agent.link->send(join_of("a", {.max_restarts = 1}));
  REQUIRE(agent.heard.empty());  // never from within send
  REQUIRE(run_until(loop, [&] { return agent.last<HostStore>() != nullptr; }));
  agent.link->send(StoreReady{Round{0}, Port{4000}});
  REQUIRE(run_until(loop, [&] { return agent.last<Placed>() != nullptr; }));
  REQUIRE(agent.last<Placed>()->placement.world_size == 2);
  REQUIRE(agent.last<Placed>()->placement.master_addr == "127.0.0.1");

  WorkersFailed failed{.round = Round{0}};
  failed.failures.push_back({.exit_code = 3, .host = "a"});
  agent.link->send(failed);
  REQUIRE(run_until(loop, [&] { return agent.last<StopWorkers>() != nullptr; }));
  agent.link->send(join_of("a", {.max_restarts = 1}));
  REQUIRE(run_until(loop, [&] { return agent.last<HostStore>() != nullptr; }));
  agent.link->send(StoreReady{Round{1}, Port{4001}});
  REQUIRE(run_until(loop, [&] { return agent.last<Placed>() != nullptr; }));
  REQUIRE(agent.last<Placed>()->placement.restart_count == 1);
  agent.link->send(WorkersSucceeded{Round{1}});
  REQUIRE(run_until(loop, [&] { return agent.last<End>() != nullptr; }));
  REQUIRE(agent.last<End>()->verdict.exit_code == 0);

  bool done = false;
  agent.link->finish(1min, [&] { done = true; });
  REQUIRE(run_until(loop, [&] { return done; }));
}

TEST_CASE("jobs of one coordinator do not know each other", "[net][coordinator]") {
  boost::asio::io_context loop;
  Coordinator coordinator{loop};
  Agent one{coordinator, "one"}, other{coordinator, "other"};
  one.link->send(join_of("a", {}));
  other.link->send(join_of("b", {.min_nodes = 2, .max_nodes = 2}));
  REQUIRE(run_until(loop, [&] { return one.last<HostStore>() != nullptr; }));
  REQUIRE(coordinator.job_count() == 2);
  other.link->send(Leave{.exit_code = 130, .reason = "interrupted"});
  REQUIRE(run_until(loop, [&] { return other.last<End>() != nullptr; }));
  REQUIRE(one.last<End>() == nullptr);
}

TEST_CASE("deadlines come without any event", "[net][coordinator]") {
  boost::asio::io_context loop;
  Coordinator coordinator{loop};
  Agent agent{coordinator, "job"};
  agent.link->send(join_of("a", {.min_nodes = 2, .max_nodes = 2, .join_timeout = 50ms}));
  REQUIRE(run_until(loop, [&] { return agent.last<End>() != nullptr; }));
  REQUIRE(agent.last<End>()->verdict.exit_code == 66);
}

TEST_CASE("the handler may destroy its link, and hears nothing after that", "[net][coordinator]") {
  boost::asio::io_context loop;
  Coordinator coordinator{loop};
  int calls = 0;
  std::unique_ptr<AgentLink> link;
  link = coordinator.connect(RunId{"job"}, [&](const LinkEvent&) {
    ++calls;
    link.reset();
  });
  link->send(join_of("a", {.max_restarts = 1}));
  REQUIRE(run_until(loop, [&] { return calls == 1; }));
  loop.restart();
  loop.run_for(20ms);
  REQUIRE(calls == 1);
}

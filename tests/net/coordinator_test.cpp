#include "rendezvous/net/coordinator/coordinator.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <catch2/catch.hpp>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/core/text/names.hpp"
#include "tests/support/long_running.hpp"

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

/// Runs the loop until `condition` holds; false after a minute.
bool run_until(boost::asio::io_context& loop, const std::function<bool()>& condition) {
  const auto limit = std::chrono::steady_clock::now() + 60s;
  while (!condition() && std::chrono::steady_clock::now() < limit) {
    loop.restart();
    loop.run_one_for(50ms);
  }
  return condition();
}

}  // namespace

TEST_CASE("an agent meets the coordinator of its own process", "[net][coordinator]") {
  boost::asio::io_context loop;
  Coordinator coordinator{loop, {}, test::long_running()};
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

TEST_CASE("what an agent tells the coordinator of its own process is cut as what others tell", "[net][coordinator]") {
  boost::asio::io_context loop;
  Coordinator coordinator{loop, {}, test::long_running()};
  Agent agent{coordinator, "job"};
  Join join = join_of("one\nnode", {});
  SECTION("within the limits it is cut and cleaned") {
    join.addresses = {std::string(10'000, 'x')};
    join.address_demanded = true;
    agent.link->send(join);
    REQUIRE(run_until(loop, [&] { return agent.last<HostStore>() != nullptr; }));
    agent.link->send(StoreReady{Round{0}, Port{4000}});
    REQUIRE(run_until(loop, [&] { return agent.last<Placed>() != nullptr; }));
    REQUIRE(agent.last<Placed>()->placement.master_addr == std::string(name_bytes_max, 'x'));
    REQUIRE(coordinator.jobs().front().second.nodes.front().host.find('\n') == std::string::npos);
  }
  SECTION("beyond them it is refused") {
    join.local_world_size = 0;
    agent.link->send(join);
    REQUIRE(run_until(loop, [&] { return !agent.heard.empty(); }));
    REQUIRE(std::get<LinkLost>(agent.heard.back()).exit_code == 68);
  }
}

TEST_CASE("jobs of one coordinator do not know each other", "[net][coordinator]") {
  boost::asio::io_context loop;
  Coordinator coordinator{loop, {}, test::long_running()};
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
  Coordinator coordinator{loop, {}, test::long_running()};
  Agent agent{coordinator, "job"};
  agent.link->send(join_of("a", {.min_nodes = 2, .max_nodes = 2, .join_timeout = 50ms}));
  REQUIRE(run_until(loop, [&] { return agent.last<End>() != nullptr; }));
  REQUIRE(agent.last<End>()->verdict.exit_code == 66);
}

TEST_CASE("agents that gave a suspended coordinator up are not put aside for it", "[net][coordinator]") {
  struct Deaf : Coordinator::Listener {
    void tell(CoordinatorMessage) override {}
    void refuse(int, std::string reason) override { FAIL(reason); }
    void let_go(std::string reason) override { FAIL(reason); }
  };
  boost::asio::io_context loop;
  Duration suspended{0};
  Coordinator coordinator{loop, {}, test::long_running(), [&] { return lasting_now() + suspended; }};
  Deaf agent;
  const JobTerms terms{.min_nodes = 3, .max_nodes = 3};
  auto stays = coordinator.open(RunId{"job"}, {.observed = "10.0.0.2"}, agent);
  Join other = join_of("b", terms);
  other.node = NodeId{"b_1_0"};
  stays->said(other);
  // Longer than the lease: the agent gives us up, and ends its connection.
  const Duration each_time = GENERATE(0s, 20s);
  const int losses_max = RendezvousSettings{}.losses_max;
  for (int life = 0; life <= losses_max; ++life) {
    auto attendance = coordinator.open(RunId{"job"}, {.observed = "10.0.0.1"}, agent);
    Join join = join_of("a", terms);
    join.node = NodeId{"a_1_" + std::to_string(life)};
    attendance->said(join);
    const bool aside = each_time == 0s && life == losses_max;  // then it is the agent that always ends
    REQUIRE(coordinator.jobs().front().second.nodes.front().state == (aside ? "aside" : "ready"));
    suspended += each_time;
  }
}

TEST_CASE("the handler may destroy its link, and hears nothing after that", "[net][coordinator]") {
  boost::asio::io_context loop;
  Coordinator coordinator{loop, {}, test::long_running()};
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

namespace {

/// An agent of another process, whose connection fails us once where it is told to.
struct FaultyListener final : Coordinator::Listener {
  FaultyListener(Coordinator& coordinator, const std::string& run_id)
      : attendance{coordinator.open(RunId{run_id}, {.observed = "10.0.0.1", .coordinator = "10.0.0.100"}, *this)} {}
  void tell(CoordinatorMessage message) override {
    if (std::exchange(fails_next, false)) throw std::runtime_error{"a fault of ours"};
    heard.push_back(std::move(message));
  }
  void refuse(int, std::string) override {}
  void let_go(std::string) override {}
  [[nodiscard]] const End* end() const { return heard.empty() ? nullptr : std::get_if<End>(&heard.back()); }

  bool fails_next = false;
  std::vector<CoordinatorMessage> heard;
  std::unique_ptr<Coordinator::Attendance> attendance;
};

Join remote_join(const std::string& host) {
  Join join = join_of(host, {});
  join.node = NodeId{host + "_1_0"};
  return join;
}

}  // namespace

TEST_CASE("a fault of ours ends its job, with a reason, and no other", "[net][coordinator]") {
  boost::asio::io_context loop;
  std::vector<std::string> log;
  Coordinator coordinator{loop, [&](const LogLine& line) { log.push_back(line.text); }, test::long_running()};
  FaultyListener faulty{coordinator, "faulty"}, sound{coordinator, "sound"};
  sound.attendance->said(remote_join("s"));
  REQUIRE(run_until(loop, [&] { return !sound.heard.empty(); }));
  faulty.fails_next = true;
  faulty.attendance->said(remote_join("f"));
  REQUIRE(run_until(loop, [&] { return faulty.end() != nullptr; }));
  REQUIRE(faulty.end()->verdict.exit_code == 70);
  REQUIRE(faulty.end()->verdict.reason == "internal fault of the coordinator: a fault of ours");
  REQUIRE(std::any_of(log.begin(), log.end(), [](const std::string& line) {
    return line == "the job ends with 70: internal fault of the coordinator: a fault of ours";
  }));
  SECTION("who comes later is told the same, until all have gone") {
    FaultyListener late{coordinator, "faulty"};
    late.attendance->said(remote_join("l"));
    REQUIRE(late.end());
    REQUIRE(late.end()->verdict.exit_code == 70);
    REQUIRE(coordinator.job_count() == 2);
    late.attendance.reset();
    faulty.attendance.reset();
    REQUIRE(coordinator.job_count() == 1);
    FaultyListener anew{coordinator, "faulty"};
    anew.attendance->said(remote_join("n"));
    REQUIRE(std::holds_alternative<HostStore>(anew.heard.back()));
  }
  sound.attendance->said(StoreReady{Round{0}, Port{4000}});
  REQUIRE(std::holds_alternative<Placed>(sound.heard.back()));
}

namespace {

/// An agent of another process, as the coordinator sees it.
struct Visitor final : Coordinator::Listener {
  Visitor(Coordinator& coordinator, const std::string& run_id)
      : attendance{coordinator.open(RunId{run_id}, {.observed = "10.0.0.1", .coordinator = "10.0.0.254"}, *this)} {}
  void tell(CoordinatorMessage message) override { heard.push_back(std::move(message)); }
  void refuse(int, std::string reason) override { refusal = std::move(reason); }
  void let_go(std::string) override { was_let_go = true; }
  template <class T>
  const T* last() const {
    return heard.empty() ? nullptr : std::get_if<T>(&heard.back());
  }
  /// Joins alone, runs, and succeeds; then it hangs up.
  void run_through(const std::string& node) {
    Join join = join_of("a", {});
    join.node = NodeId{node};
    attendance->said(join);
    REQUIRE(last<HostStore>());
    const Round round = last<HostStore>()->round;
    attendance->said(StoreReady{round, Port{4000}});
    REQUIRE(last<Placed>());
    attendance->said(WorkersSucceeded{round});
    REQUIRE(last<End>());
    REQUIRE(last<End>()->verdict.exit_code == 0);
    attendance->gone(true);
  }
  std::vector<CoordinatorMessage> heard;
  std::string refusal;
  bool was_let_go = false;
  std::unique_ptr<Coordinator::Attendance> attendance;
};

}  // namespace

TEST_CASE("a run id may be used again after its job has ended", "[net][coordinator]") {
  boost::asio::io_context loop;
  Coordinator coordinator{loop, {}, test::long_running()};
  for (int run = 0; run < 3; ++run) {
    Visitor agent{coordinator, "none"};
    agent.run_through("a_7_0");  // in containers, process ids are the same each time
  }
  REQUIRE(coordinator.job_count() == 1);
}

TEST_CASE("a job that nobody has joined goes with its last connection", "[net][coordinator]") {
  boost::asio::io_context loop;
  Coordinator coordinator{loop, {}, test::long_running()};
  auto first = std::make_unique<Visitor>(coordinator, "job"), second = std::make_unique<Visitor>(coordinator, "job");
  first.reset();
  REQUIRE(coordinator.job_count() == 1);
  second.reset();
  REQUIRE(coordinator.job_count() == 0);
  for (std::size_t i = 0; i < 2 * jobs_max; ++i) REQUIRE(Visitor{coordinator, std::to_string(i)}.attendance);
  REQUIRE(coordinator.job_count() == 0);
}

TEST_CASE("a coordinator holds so many jobs, and makes room where nobody is", "[net][coordinator]") {
  boost::asio::io_context loop;
  Coordinator coordinator{loop, {}, test::long_running()};
  std::vector<std::unique_ptr<Visitor>> present;
  for (std::size_t i = 0; i + 2 < jobs_max; ++i) {
    present.push_back(std::make_unique<Visitor>(coordinator, "present " + std::to_string(i)));
  }
  for (const char* run_id : {"ended first", "ended second"}) {
    Visitor agent{coordinator, run_id};
    agent.run_through("a_1_0");
  }
  REQUIRE(coordinator.job_count() == jobs_max);
  const auto holds = [&](const std::string& run_id) {
    for (const auto& [id, view] : coordinator.jobs()) {
      if (id == RunId{run_id}) return true;
    }
    return false;
  };
  Visitor one{coordinator, "one more"};
  REQUIRE(one.attendance);
  REQUIRE(coordinator.job_count() == jobs_max);
  REQUIRE_FALSE(holds("ended first"));
  REQUIRE(holds("ended second"));
  Visitor two{coordinator, "two more"};
  REQUIRE(two.attendance);
  REQUIRE(holds("present 0"));
  REQUIRE(Visitor{coordinator, "present 0"}.attendance);  // one that is there already
}

TEST_CASE("jobs that nobody has joined give way to others, the oldest first", "[net][coordinator]") {
  boost::asio::io_context loop;
  Coordinator coordinator{loop};
  std::vector<std::unique_ptr<Visitor>> visitors;
  const auto come = [&] {
    visitors.push_back(std::make_unique<Visitor>(coordinator, "job " + std::to_string(visitors.size())));
    return visitors.back()->attendance != nullptr;
  };
  const auto join = [&](std::size_t which) {
    Join said = join_of("a", {});
    said.node = NodeId{"a_1_0"};
    visitors[which]->attendance->said(said);
  };
  while (visitors.size() < jobs_max) REQUIRE(come());
  join(0);
  REQUIRE(come());
  REQUIRE_FALSE(visitors[0]->was_let_go);
  REQUIRE(visitors[1]->was_let_go);
  REQUIRE_FALSE(visitors[2]->was_let_go);
  REQUIRE(coordinator.job_count() == jobs_max);
  visitors[1]->attendance.reset();  // as its connection is closed
  REQUIRE(coordinator.job_count() == jobs_max);
  for (std::size_t i = 2; i < visitors.size(); ++i) join(i);
  REQUIRE_FALSE(come());
}

// What a coordinator does for those who look at its jobs and steer them.
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/net/coordinator/coordinator.hpp"
#include "tests/support/long_running.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

const RunId run_id{"job"};

/// An agent of another process.
struct Agent final : Coordinator::Listener {
  explicit Agent(Coordinator& coordinator) : attendance{coordinator.open(run_id, {.observed = "10.0.0.1"}, *this)} {}
  void tell(CoordinatorMessage message) override { heard.push_back(std::move(message)); }
  void refuse(int, std::string) override {}
  void let_go(std::string) override {}
  void join(const std::string& host) {
    Join join;
    join.host = host;
    join.node = NodeId{host + "_1_0"};
    join.terms = {.min_nodes = 2, .max_nodes = 2};
    attendance->said(join);
  }

  std::vector<CoordinatorMessage> heard = {};
  std::unique_ptr<Coordinator::Attendance> attendance;
};

/// A job of a and b whose round runs, and what its onlooker hears.
struct Looked {
  struct Word {
    NodeId node;
    Coordinator::NodeWord word;
  };
  Looked() {
    Coordinator::Onlooker onlooker;
    onlooker.heard = [this](const RunId& id, const NodeId& node, Coordinator::NodeWord word) {
      REQUIRE(id == run_id);
      words.push_back({node, std::move(word)});
    };
    onlooker.noted = [this](const RunId&, const Note& note) { notes.push_back(note); };
    coordinator.set_onlooker(std::move(onlooker));
    a = std::make_unique<Agent>(coordinator);
    b = std::make_unique<Agent>(coordinator);
    a->join("a");
    b->join("b");
    a->attendance->said(StoreReady{Round{0}, Port{4000}});
    notes.clear();
    a->heard.clear();
    b->heard.clear();
  }

  boost::asio::io_context loop;
  Coordinator coordinator{loop, {}, test::long_running()};
  std::vector<Word> words;
  std::vector<Note> notes;
  std::unique_ptr<Agent> a, b;
};

}  // namespace

TEST_CASE("an order reaches the agents of its job", "[net][coordinator]") {
  Looked job;
  const auto answer = job.coordinator.order(run_id, order::Restart{}, "ada");
  REQUIRE((answer && answer->accepted));
  REQUIRE(job.notes.front() == Note{OrderReceived{"restart", "ada"}});
  for (const auto* agent : {job.a.get(), job.b.get()}) {
    REQUIRE(std::get<StopWorkers>(agent->heard.at(0)).save);
  }
  SECTION("one that cannot be done reaches nobody") {
    job.notes.clear();
    job.a->heard.clear();
    const auto again = job.coordinator.order(run_id, order::Restart{}, "ada");
    REQUIRE((again && !again->accepted));
    REQUIRE(again->text.find("phase: gathering") != std::string::npos);
    REQUIRE(job.notes.empty());
    REQUIRE(job.a->heard.empty());
  }
  SECTION("of a job that is none nothing becomes") {
    REQUIRE_FALSE(job.coordinator.order(RunId{"another"}, order::Restart{}, "ada"));
    REQUIRE(job.coordinator.job_count() == 1);
  }
}

TEST_CASE("onlookers hear what members say, and what others say they do not", "[net][coordinator]") {
  Looked job;
  const NodeReport report{.ranks = "r", .beats = 3};
  Agent stranger{job.coordinator};
  for (Agent* agent : {&stranger, job.a.get()}) {
    agent->attendance->reported(report);
    agent->attendance->said(NodeEvent{"{}", 1});
    agent->attendance->said(Ask{.number = 4, .target = "/v1/jobs"});
    agent->attendance->said(Answer{.number = 9});
  }
  REQUIRE(job.words.size() == 4);
  for (const auto& each : job.words) REQUIRE(each.node == NodeId{"a_1_0"});
  REQUIRE(std::get<NodeReport>(job.words.at(0).word) == report);
  REQUIRE(std::get<NodeEvent>(job.words.at(1).word) == NodeEvent{"{}", 1});
  REQUIRE(std::get<Ask>(job.words.at(2).word).target == "/v1/jobs");
  REQUIRE(std::get<Answer>(job.words.at(3).word).number == 9);
}

TEST_CASE("a node is told what it is asked, while it is there", "[net][coordinator]") {
  Looked job;
  const Ask ask{.number = 1, .target = "/v1/jobs/job/ranks/1/log"};
  REQUIRE(job.coordinator.tell_node(run_id, NodeId{"b_1_0"}, ask));
  REQUIRE(job.b->heard == std::vector<CoordinatorMessage>{ask});
  REQUIRE(job.a->heard.empty());
  REQUIRE_FALSE(job.coordinator.tell_node(run_id, NodeId{"c_1_0"}, ask));
  REQUIRE_FALSE(job.coordinator.tell_node(RunId{"another"}, NodeId{"b_1_0"}, ask));
  job.b->attendance->gone(false);
  REQUIRE_FALSE(job.coordinator.tell_node(run_id, NodeId{"b_1_0"}, ask));
}

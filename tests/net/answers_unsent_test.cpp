// Answers for those who look at a job go by the connection that the job's rounds need: they never fill it.
#include <algorithm>
#include <variant>
#include <vector>

#include "tests/net/agents.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t questions = 64;

Answer long_answer(std::uint64_t number) {
  return {.number = number, .type = "text/plain", .body = std::string(answer_body_bytes_max, 'x')};
}

/// One agent and its coordinator, each on a loop of its own: while that does not run, it does not read.
struct Apart {
  Apart() {
    Coordinator::Onlooker onlooker;
    onlooker.heard = [this](const RunId&, const NodeId& id, Coordinator::NodeWord word) {
      node = id;
      if (auto* const answer = std::get_if<Answer>(&word)) answered.push_back(std::move(*answer));
    };
    daemon.coordinator.set_onlooker(std::move(onlooker));
    agent.link->send(join_of("a", {.min_nodes = 1, .max_nodes = 1}));
    REQUIRE(until([&] { return agent.last<HostStore>() != nullptr; }));
    agent.link->send(Ask{.number = 1, .method = "GET", .target = "/"});  // it is a member, whose id is told with this
    REQUIRE(until([&] { return !node.value().empty(); }));
  }
  bool until(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + 60s;
    while (!condition() && std::chrono::steady_clock::now() < end) {
      for (auto* loop : {&far, &near}) loop->restart();
      if (far.poll() + near.poll() == 0) far.run_one_for(1ms);
    }
    return condition();
  }
  template <class T>
  [[nodiscard]] std::vector<T> heard() const {
    std::vector<T> list;
    for (const LinkEvent& event : agent.heard) {
      const auto* message = std::get_if<CoordinatorMessage>(&event);
      if (const auto* said = message ? std::get_if<T>(message) : nullptr) list.push_back(*said);
    }
    return list;
  }

  boost::asio::io_context far, near;
  Daemon daemon{near};
  Agent agent = Agent::over_tcp(far, daemon.endpoint);
  NodeId node{""};
  std::vector<Answer> answered;
};

void require_some_busy(const std::vector<Answer>& answers) {
  REQUIRE(answers.size() == questions);
  REQUIRE(answers.front().status == 200);
  REQUIRE(answers.front().body.size() == answer_body_bytes_max);
  REQUIRE(answers.back().status == 503);
}

}  // namespace

TEST_CASE("a node that is slow to read its answers keeps its connection", "[net][answers]") {
  Apart it;
  for (std::uint64_t number = 1; number <= questions; ++number) {
    REQUIRE(it.daemon.coordinator.tell_node(RunId{"job"}, it.node, long_answer(number)));
  }
  REQUIRE(it.until([&] { return it.heard<Answer>().size() == questions; }));
  require_some_busy(it.heard<Answer>());
  REQUIRE(it.daemon.sessions.count() == 1);
  REQUIRE(std::ranges::none_of(it.daemon.lines,
                               [](const LogLine& line) { return line.text.find("cut off") != line.text.npos; }));
}

TEST_CASE("a node whose coordinator is slow to read what it answers keeps its connection", "[net][answers]") {
  Apart it;
  for (std::uint64_t number = 1; number <= questions; ++number) {
    REQUIRE(
        it.daemon.coordinator.tell_node(RunId{"job"}, it.node, Ask{.number = number, .method = "GET", .target = "/"}));
  }
  REQUIRE(it.until([&] { return it.heard<Ask>().size() == questions; }));
  for (std::uint64_t number = 1; number <= questions; ++number) it.agent.link->send(long_answer(number));
  REQUIRE(it.until([&] { return it.answered.size() == questions; }));
  require_some_busy(it.answered);
  REQUIRE_FALSE(it.agent.lost());
  REQUIRE(it.daemon.sessions.count() == 1);
}

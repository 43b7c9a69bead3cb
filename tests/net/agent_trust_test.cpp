// Whom an agent believes, and whom a coordinator.
#include <algorithm>
#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <list>

#include "agents.hpp"
#include "rendezvous/net/io/token.hpp"

using namespace torchup;
using namespace std::chrono_literals;
namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

/// Whether people were told something with that word in it.
bool told_of(const Agent& agent, const std::string& word) {
  return std::any_of(agent.heard.begin(), agent.heard.end(), [&](const LinkEvent& event) {
    const auto* message = std::get_if<CoordinatorMessage>(&event);
    const auto* waiting = message ? std::get_if<Waiting>(message) : nullptr;
    return waiting && waiting->roster.find(word) != std::string::npos;
  });
}

}  // namespace

TEST_CASE("agents and coordinator prove the token to each other", "[net][agent_link]") {
  asio::io_context loop;
  std::vector<std::string> log;
  Daemon daemon{loop, {.token = "secret", .log = [&](const LogLine& line) { log.push_back(line.text); }}};
  SECTION("the same one") {
    Agent a = Agent::over_tcp(loop, daemon.endpoint, "secret");
    a.link->send(join_of("a", {}));
    REQUIRE(run_until(loop, [&] { return a.last<HostStore>() != nullptr; }));
    REQUIRE(log.empty());
  }
  SECTION("none") {
    Agent a = Agent::over_tcp(loop, daemon.endpoint);
    REQUIRE(run_until(loop, [&] { return a.lost() != nullptr; }));
    REQUIRE(a.lost()->exit_code == 68);
    REQUIRE(log.size() == 1);
  }
  SECTION("another one: both sides say so, and it is over after the join timeout") {
    const auto begin = std::chrono::steady_clock::now();
    Agent a = Agent::over_tcp(loop, daemon.endpoint, "other", 3s);
    REQUIRE(run_until(loop, [&] { return a.lost() != nullptr; }));
    REQUIRE(std::chrono::steady_clock::now() - begin >= 3s);
    REQUIRE(a.lost()->exit_code == 68);
    REQUIRE(a.lost()->reason.find("the token") != std::string::npos);
    REQUIRE(told_of(a, "the token"));  // long before it ends
    REQUIRE_FALSE(log.empty());
    REQUIRE(log.front().find("token") != std::string::npos);
    REQUIRE(daemon.coordinator.job_count() == 0);
  }
  SECTION("an agent that has one has no use for a coordinator that has none") {
    Daemon open{loop};
    const auto begin = std::chrono::steady_clock::now();
    Agent a = Agent::over_tcp(loop, open.endpoint, "secret", 1s);
    a.link->send(join_of("a", {}));
    REQUIRE(run_until(loop, [&] { return a.lost() != nullptr; }));
    REQUIRE(std::chrono::steady_clock::now() - begin >= 1s);
    REQUIRE(a.lost()->exit_code == 68);
    REQUIRE(open.coordinator.job_count() == 0);
  }
}

TEST_CASE("with a token, who speaks without TLS is refused, and nothing else is done for it", "[net][agent_link]") {
  asio::io_context loop;
  Daemon daemon{loop, {.token = "secret"}};
  tcp::socket socket{loop};
  socket.connect({asio::ip::address_v4::loopback(), daemon.endpoint.port.value()});
  const bool says_so = GENERATE(false, true);
  const std::string lie = std::string{agent_preface} +
                          encode(AgentFrame{Hello{.has_token = says_so, .run_id = RunId{"job"}}});
  asio::write(socket, asio::buffer(lie));
  std::string answer;
  std::array<char, 4096> buffer{};
  std::function<void()> read = [&] {
    socket.async_read_some(asio::buffer(buffer), [&](const boost::system::error_code& error, std::size_t count) {
      answer.append(buffer.data(), count);
      if (!error) read();
    });
  };
  read();
  std::optional<CoordinatorFrame> last;
  REQUIRE(run_until(loop, [&] {
    std::string_view input = answer;
    while (true) {
      auto frame = take_coordinator_frame(input);
      if (!frame || !frame->has_value()) break;
      last = **frame;
    }
    return last && std::get_if<Refused>(&*last);
  }));
  REQUIRE(std::get<Refused>(*last).exit_code == 68);
  REQUIRE(daemon.coordinator.job_count() == 0);
}

TEST_CASE("another program at the endpoint is told from a coordinator", "[net][agent_link]") {
  asio::io_context loop;
  const std::string greeting = "HTTP/1.1 400 Bad Request\r\n\r\n";
  tcp::acceptor other{loop, {asio::ip::address_v4::loopback(), 0}};
  std::list<tcp::socket> held;
  std::function<void()> accept = [&] {
    other.async_accept([&](const boost::system::error_code& error, tcp::socket socket) {
      if (error) return;
      held.push_back(std::move(socket));
      boost::system::error_code ignored;
      asio::write(held.back(), asio::buffer(greeting), ignored);
      accept();
    });
  };
  accept();
  Agent a = Agent::over_tcp(loop, {"127.0.0.1", Port{other.local_endpoint().port()}}, "", 1min);
  REQUIRE(run_until(loop, [&] { return a.lost() != nullptr; }));
  REQUIRE(a.lost()->exit_code == 67);
  REQUIRE(a.lost()->reason.find("no torchup coordinator") != std::string::npos);
}

TEST_CASE("an endpoint that closes without a word may be a coordinator without a descriptor", "[net][agent_link]") {
  asio::io_context loop;
  tcp::acceptor other{loop, {asio::ip::address_v4::loopback(), 0}};
  std::function<void()> hang_up = [&] {
    other.async_accept([&](const boost::system::error_code& error, tcp::socket) {
      if (!error) hang_up();
    });
  };
  hang_up();
  const auto begin = std::chrono::steady_clock::now();
  Agent a = Agent::over_tcp(loop, {"127.0.0.1", Port{other.local_endpoint().port()}}, "", 6s);
  REQUIRE(run_until(
      loop, [&] { return a.lost() != nullptr; }, 12s));
  REQUIRE(std::chrono::steady_clock::now() - begin >= 6s);
  REQUIRE(a.lost()->exit_code == 67);
}

namespace {

std::vector<CoordinatorFrame> every_frame() {
  const Placement place{.round = Round{0}, .world_size = 2, .master_addr = "10.6.6.6", .master_port = Port{666}};
  return {Welcome{},
          KeepAliveAnswer{1},
          Refused{0, "go home"},
          HostStore{Round{0}},
          Placed{place},
          StopWorkers{Round{0}, StopCause::fenced, "stop"},
          StopWorkers{Round{0}, StopCause::membership_change, "stop"},
          End{{.exit_code = 0}},
          Waiting{"wait"},
          Examine{},
          HangTold{"told"},
          Busy{}};
}

/// A coordinator without the token: says `script` in answer to the agent's first words, then holds the connection, or
/// closes it.
class FakeCoordinator {
 public:
  FakeCoordinator(asio::io_context& loop, std::vector<CoordinatorFrame> script, bool closes, std::uint16_t port = 0)
      : acceptor_{loop, {asio::ip::address_v4::loopback(), port}}, closes_{closes} {
    for (const CoordinatorFrame& frame : script) bytes_ += encode(frame);
    accept();
  }
  [[nodiscard]] Endpoint endpoint() const { return {"127.0.0.1", Port{acceptor_.local_endpoint().port()}}; }
  int visits = 0;

 private:
  void accept() {
    acceptor_.async_accept(
        [this, alive = std::weak_ptr{alive_}](const boost::system::error_code& error, tcp::socket socket) {
          if (error || alive.expired()) return;
          ++visits;
          sockets_.push_back(std::move(socket));
          answer(sockets_.back());
          accept();
        });
  }
  /// Once to the hello, and again to whatever the agent says to that.
  void answer(tcp::socket& socket) {
    socket.async_read_some(asio::buffer(buffer_), [this, &socket, alive = std::weak_ptr{alive_}](
                                                      const boost::system::error_code& error, std::size_t) {
      boost::system::error_code ignored;
      if (error || alive.expired()) return;
      asio::write(socket, asio::buffer(bytes_), ignored);
      if (closes_) return static_cast<void>(socket.close(ignored));
      answer(socket);
    });
  }

  tcp::acceptor acceptor_;
  bool closes_;
  std::string bytes_;
  std::array<char, 4096> buffer_{};
  std::list<tcp::socket> sockets_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  ///< an answer may be under way when we are destroyed
};

bool only_waited(const std::vector<LinkEvent>& heard) {
  return std::all_of(heard.begin(), heard.end(), [](const LinkEvent& event) {
    const auto* message = std::get_if<CoordinatorMessage>(&event);
    return message && std::holds_alternative<Waiting>(*message);
  });
}

}  // namespace

TEST_CASE("whoever has not proved the token starts nothing and ends nothing", "[net][agent_link]") {
  asio::io_context loop;
  std::list<FakeCoordinator> fakes;
  std::list<Agent> agents;
  const auto begin = std::chrono::steady_clock::now();
  for (const CoordinatorFrame& frame : every_frame()) {
    for (const bool closes : {false, true}) {
      for (const bool welcomes : {false, true}) {
        std::vector<CoordinatorFrame> script{frame};
        if (welcomes) script.insert(script.begin(), Welcome{});
        const auto& fake = fakes.emplace_back(loop, script, closes);
        agents.emplace_back([&](AgentLink::Handler handler) {
          return connect_agent(
              loop, {.endpoint = fake.endpoint(), .run_id = RunId{"job"}, .token = "secret", .join_timeout = 2s},
              std::move(handler));
        });
        agents.back().link->send(join_of("a", {}));
      }
    }
  }
  const auto ended = [](const Agent& agent) { return agent.lost() != nullptr; };
  REQUIRE(run_until(loop, [&] { return std::any_of(agents.begin(), agents.end(), ended); }));
  REQUIRE(std::chrono::steady_clock::now() - begin >= 2s);
  REQUIRE(run_until(loop, [&] { return std::all_of(agents.begin(), agents.end(), ended); }));
  for (const FakeCoordinator& fake : fakes) REQUIRE(fake.visits > 0);
  for (Agent& agent : agents) {
    REQUIRE((agent.lost()->exit_code == 67 || agent.lost()->exit_code == 68));
    agent.heard.pop_back();
    REQUIRE(only_waited(agent.heard));
  }
}

TEST_CASE("a running agent obeys nobody who took its coordinator's place", "[net][agent_link]") {
  asio::io_context loop;
  auto daemon = std::make_unique<Daemon>(loop, AgentSessionsOptions{.token = "secret"});
  const Endpoint endpoint = daemon->endpoint;
  Agent a = Agent::over_tcp(loop, endpoint, "secret", 1min);
  Agent b = Agent::over_tcp(loop, endpoint, "secret", 1min);
  run_round(loop, a, b, {.min_nodes = 2, .max_nodes = 2, .lease = 10s});
  const auto heard = a.heard.size();
  daemon.reset();
  for (const CoordinatorFrame& frame : every_frame()) {
    FakeCoordinator fake{loop, {Welcome{}, frame}, true, endpoint.port.value()};
    REQUIRE(run_until(loop, [&] { return fake.visits >= 2; }));
  }
  REQUIRE(only_waited({a.heard.begin() + static_cast<std::ptrdiff_t>(heard), a.heard.end()}));
  daemon = std::make_unique<Daemon>(loop, AgentSessionsOptions{.token = "secret"}, endpoint.port);
  REQUIRE(run_until(loop, [&] { return daemon->sessions.count() == 2; }));
  a.link->send(WorkersSucceeded{Round{0}});
  b.link->send(WorkersSucceeded{Round{0}});
  REQUIRE(run_until(loop, [&] { return a.last<End>() && b.last<End>(); }));
  REQUIRE(a.last<End>()->verdict.exit_code == 0);
}

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "rendezvous/core/link/agent_codec.hpp"
#include "rendezvous/net/agent/agent_client.hpp"
#include "rendezvous/net/agent/attach.hpp"
#include "rendezvous/net/coordinator/agent_sessions.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/io/frame_socket.hpp"
#include "rendezvous/net/io/lasting_clock.hpp"
#include "rendezvous/net/io/token.hpp"
#include "rendezvous/net/store/store_server.hpp"

#include "agents.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace torchup;
using namespace std::chrono_literals;
namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

/// Between agents and a coordinator: passes bytes on until it is told to be a bad network.
class Relay {
 public:
  Relay(asio::io_context& loop, Endpoint to)
      : loop_{loop}, acceptor_{loop, tcp::endpoint{asio::ip::address_v4::loopback(), 0}}, to_{asio::ip::make_address(
                                                                                                  to.host),
                                                                                              to.port.value()} {
    accept();
  }
  [[nodiscard]] Endpoint endpoint() const { return {"127.0.0.1", Port{acceptor_.local_endpoint().port()}}; }
  int connections = 0;

  /// Both sides get a reset.
  void cut() {
    for (auto& pair : pairs_) {
      for (auto* socket : {&pair->agent, &pair->coordinator}) {
        boost::system::error_code ignored;
        socket->set_option(asio::socket_base::linger{true, 0}, ignored);
        socket->close(ignored);
      }
    }
    pairs_.clear();
  }
  /// Connections stay, new ones are accepted, and nothing comes through any more.
  void freeze() { frozen_ = true; }

 private:
  struct Pair {
    explicit Pair(asio::io_context& loop) : agent{loop}, coordinator{loop} {}
    tcp::socket agent, coordinator;
    std::array<char, 4096> up{}, down{};
  };

  void accept() {
    auto pair = std::make_shared<Pair>(loop_);
    acceptor_.async_accept(pair->agent, [this, pair](const boost::system::error_code& error) {
      if (error) return;
      ++connections;
      pair->coordinator.connect(to_);
      pairs_.push_back(pair);
      pass(pair, pair->agent, pair->coordinator, pair->up);
      pass(pair, pair->coordinator, pair->agent, pair->down);
      accept();
    });
  }
  void pass(const std::shared_ptr<Pair>& pair, tcp::socket& from, tcp::socket& to, std::array<char, 4096>& buffer) {
    from.async_read_some(asio::buffer(buffer),
                         [this, pair, &from, &to, &buffer](const boost::system::error_code& error, std::size_t count) {
                           boost::system::error_code ignored;
                           if (error) {
                             if (to.is_open()) to.shutdown(tcp::socket::shutdown_send, ignored);
                             return;
                           }
                           if (frozen_) return;
                           asio::write(to, asio::buffer(buffer, count), ignored);
                           pass(pair, from, to, buffer);
                         });
  }

  asio::io_context& loop_;
  tcp::acceptor acceptor_;
  tcp::endpoint to_;
  std::list<std::shared_ptr<Pair>> pairs_;
  bool frozen_ = false;
};

}  // namespace

TEST_CASE("two agents run a job over sockets, and hear the same verdict", "[net][agent_link]") {
  asio::io_context loop;
  Daemon daemon{loop};
  Agent a = Agent::over_tcp(loop, daemon.endpoint);
  Agent b = Agent::over_tcp(loop, daemon.endpoint);
  run_round(loop, a, b, {.min_nodes = 2, .max_nodes = 2});
  REQUIRE(a.last<Placed>()->placement.group_rank == GroupRank{0});
  REQUIRE(b.last<Placed>()->placement.first_rank == Rank{2});
  REQUIRE(b.last<Placed>()->placement.master_addr == "127.0.0.1");
  WorkersFailed failed{.round = Round{0}};
  failed.failures.push_back({.rank = Rank{3}, .exit_code = 7, .host = "b", .message = "boom"});
  b.link->send(failed);
  REQUIRE(run_until(loop, [&] { return a.last<End>() && b.last<End>(); }));
  REQUIRE(a.last<End>()->verdict == b.last<End>()->verdict);
  REQUIRE(a.last<End>()->verdict.exit_code == 1);
  REQUIRE(a.last<End>()->verdict.failures.at(0).message == "boom");
  int done = 0;
  a.link->finish(5s, [&] { ++done; });
  b.link->finish(5s, [&] { ++done; });
  REQUIRE(run_until(loop, [&] { return done == 2; }));
  REQUIRE(run_until(loop, [&] { return daemon.sessions.count() == 0; }));
}

TEST_CASE("an agent may be given its connection, and ends with it", "[net][agent_link]") {
  asio::io_context loop;
  Daemon daemon{loop, {.embedded = true, .only_job = "job"}};
  const auto given = [&] {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
    daemon.sessions.serve(UniqueFd{ends[1]});
    return [&loop, connection = ends[0]](AgentLink::Handler handler) {
      const Endpoint nowhere{"the front", Port{1}};
      return attach(loop, {.run_id = RunId{"job"}, .endpoint = nowhere, .connection = connection}, std::move(handler));
    };
  };
  Agent a{given()};
  Agent b{given()};
  run_round(loop, a, b, {.min_nodes = 2, .max_nodes = 2});
  REQUIRE(a.last<Placed>()->placement.master_addr == "127.0.0.1");
  daemon.sessions.set_cut(true);
  REQUIRE(run_until(loop, [&] { return a.lost() && b.lost(); }));
  REQUIRE(a.lost()->exit_code == 67);
}

TEST_CASE("the agent that hosts waits until the others have the verdict", "[net][agent_link]") {
  asio::io_context loop;
  Daemon daemon{loop, {.embedded = true}};
  Agent own{[&](AgentLink::Handler handler) { return daemon.coordinator.connect(RunId{"job"}, std::move(handler)); }};
  Agent other = Agent::over_tcp(loop, daemon.endpoint);
  run_round(loop, own, other, {.min_nodes = 2, .max_nodes = 2});
  own.link->send(
      Leave{.ends_job = false, .exit_code = 143, .reason = "terminated"});  // the job cannot go on without it
  REQUIRE(run_until(loop, [&] { return own.last<End>() && other.last<End>(); }));
  REQUIRE(other.last<End>()->verdict.exit_code == 143);
  bool own_done = false, other_done = false;
  own.link->finish(30s, [&] { own_done = true; });
  loop.restart();
  loop.run_for(30ms);
  REQUIRE_FALSE(own_done);
  other.link->finish(5s, [&] { other_done = true; });
  REQUIRE(run_until(loop, [&] { return own_done && other_done; }));
}

TEST_CASE("an agent whose process ends is missed at once", "[net][agent_link]") {
  asio::io_context loop;
  Daemon daemon{loop};
  Agent a = Agent::over_tcp(loop, daemon.endpoint);
  {
    Agent second = Agent::over_tcp(loop, daemon.endpoint);
    run_round(loop, a, second, {.min_nodes = 1, .max_nodes = 2, .max_restarts = 0, .lease = 120s});
  }
  REQUIRE(run_until(loop, [&] { return a.last<StopWorkers>() != nullptr; }));
  REQUIRE(a.last<StopWorkers>()->cause == StopCause::membership_change);
}

TEST_CASE("a cut connection is healed and nobody loses a place", "[net][agent_link]") {
  asio::io_context loop;
  Daemon daemon{loop};
  Relay relay{loop, daemon.endpoint};
  Agent a = Agent::over_tcp(loop, daemon.endpoint);
  Agent b = Agent::over_tcp(loop, relay.endpoint());
  run_round(loop, a, b, {.min_nodes = 2, .max_nodes = 2, .lease = 20s});
  relay.cut();
  REQUIRE(run_until(loop, [&] { return relay.connections >= 2; }));
  SECTION("the job goes on") {
    a.link->send(WorkersSucceeded{Round{0}});
    b.link->send(WorkersSucceeded{Round{0}});
    REQUIRE(run_until(loop, [&] { return a.last<End>() && b.last<End>(); }));
    REQUIRE(b.last<End>()->verdict.exit_code == 0);
  }
  SECTION("what was said while it was cut is heard") {
    relay.cut();
    b.link->send(WorkersSucceeded{Round{0}});
    a.link->send(WorkersSucceeded{Round{0}});
    REQUIRE(run_until(loop, [&] { return a.last<End>() && b.last<End>(); }));
  }
}

TEST_CASE("a link that is cut on purpose is not made again until it is mended", "[net][agent_link]") {
  asio::io_context loop;
  Daemon daemon{loop};
  Relay relay{loop, daemon.endpoint};
  Agent a = Agent::over_tcp(loop, daemon.endpoint);
  Agent b = Agent::over_tcp(loop, relay.endpoint());
  run_round(loop, a, b, {.min_nodes = 1, .max_nodes = 2, .lease = 1s});
  REQUIRE(relay.connections == 1);
  REQUIRE(b.link->set_cut(true));
  REQUIRE(run_until(loop, [&] { return a.last<StopWorkers>() && b.last<StopWorkers>(); }));
  REQUIRE(a.last<StopWorkers>()->cause == StopCause::membership_change);
  REQUIRE(b.last<StopWorkers>()->cause == StopCause::fenced);
  REQUIRE(relay.connections == 1);
  REQUIRE(b.link->set_cut(false));
  b.link->send(join_of("b", {.min_nodes = 1, .max_nodes = 2, .lease = 1s}));
  REQUIRE(run_until(loop, [&] { return daemon.sessions.count() == 2; }));
  REQUIRE(relay.connections == 2);
}

TEST_CASE("what was said while a link was cut on purpose is heard when it is mended", "[net][agent_link]") {
  asio::io_context loop;
  Daemon daemon{loop};
  Agent a = Agent::over_tcp(loop, daemon.endpoint);
  Agent b = Agent::over_tcp(loop, daemon.endpoint);
  run_round(loop, a, b, {.min_nodes = 2, .max_nodes = 2, .lease = 20s});
  REQUIRE(b.link->set_cut(true));
  b.link->send(WorkersSucceeded{Round{0}});
  a.link->send(WorkersSucceeded{Round{0}});
  REQUIRE(b.link->set_cut(false));
  REQUIRE(run_until(loop, [&] { return a.last<End>() && b.last<End>(); }));
  REQUIRE(b.last<End>()->verdict.exit_code == 0);
}

TEST_CASE("a coordinator that is cut off hears of no agent, and they do not hammer on it", "[net][agent_link]") {
  asio::io_context loop;
  Daemon daemon{loop, {.embedded = true}};
  Relay relay{loop, daemon.endpoint};
  Agent own{[&](AgentLink::Handler handler) { return daemon.coordinator.connect(RunId{"job"}, std::move(handler)); }};
  Agent other = Agent::over_tcp(loop, relay.endpoint());
  run_round(loop, own, other, {.min_nodes = 1, .max_nodes = 2, .lease = 1s});
  daemon.sessions.set_cut(true);
  REQUIRE(run_until(loop, [&] { return own.last<StopWorkers>() && other.last<StopWorkers>(); }));
  REQUIRE(own.last<StopWorkers>()->cause == StopCause::membership_change);
  REQUIRE(other.last<StopWorkers>()->cause == StopCause::fenced);
  REQUIRE(daemon.sessions.count() == 0);
  REQUIRE(relay.connections < 50);
  daemon.sessions.set_cut(false);
  REQUIRE(run_until(loop, [&] { return daemon.sessions.count() == 1; }));
}

TEST_CASE("the coordinator's own agent has no way that could be cut", "[net][agent_link]") {
  asio::io_context loop;
  Daemon daemon{loop, {.embedded = true}};
  Agent own{[&](AgentLink::Handler handler) { return daemon.coordinator.connect(RunId{"job"}, std::move(handler)); }};
  REQUIRE_FALSE(own.link->set_cut(true));
}

TEST_CASE("a silent network fences the agent before the coordinator gives it up", "[net][agent_link]") {
  asio::io_context loop;
  Daemon daemon{loop};
  Relay relay{loop, daemon.endpoint};
  Agent a = Agent::over_tcp(loop, daemon.endpoint);
  Agent b = Agent::over_tcp(loop, relay.endpoint());
  run_round(loop, a, b, {.min_nodes = 1, .max_nodes = 2, .lease = 1s});
  relay.freeze();
  REQUIRE(run_until(loop, [&] { return b.last<StopWorkers>() != nullptr; }));
  REQUIRE(b.last<StopWorkers>()->cause == StopCause::fenced);
  REQUIRE(a.last<Placed>() != nullptr);  // not yet told: we fence first
  REQUIRE(run_until(loop, [&] { return a.last<StopWorkers>() != nullptr; }));
  REQUIRE(a.last<StopWorkers>()->cause == StopCause::membership_change);
}

TEST_CASE("an agent whose machine was suspended for its lease stops its workers before it obeys", "[net][agent_link]") {
  asio::io_context loop;
  Daemon daemon{loop};
  Duration suspended{0};
  Agent a = Agent::over_tcp(loop, daemon.endpoint);
  Agent b{[&](AgentLink::Handler handler) {
    return connect_agent(
        loop, {.endpoint = daemon.endpoint, .run_id = RunId{"job"}, .clock = [&] { return lasting_now() + suspended; }},
        std::move(handler));
  }};
  run_round(loop, a, b, {.min_nodes = 2, .max_nodes = 2, .lease = 20s});
  suspended = GENERATE(0s, 19s);
  a.link->send(Leave{.exit_code = 130, .reason = "interrupted"});  // what b finds unread when it wakes
  REQUIRE(run_until(loop, [&] { return b.last<End>() || b.last<StopWorkers>(); }));
  if (suspended == 0s) {
    REQUIRE(b.last<End>() != nullptr);
    return;
  }
  REQUIRE(b.last<StopWorkers>() != nullptr);
  REQUIRE(b.last<StopWorkers>()->cause == StopCause::fenced);
}

TEST_CASE("a timer that outlasts suspensions is called once, for the last time it was set to", "[net][agent_link]") {
  asio::io_context loop;
  LastingTimer timer{loop};
  int first = 0, second = 0;
  timer.start(0ms, [&] { ++first; });
  timer.start(1ms, [&] { ++second; });
  loop.run();
  REQUIRE(first == 0);
  REQUIRE(second == 1);
  timer.start(1h, [&] { ++second; });
  timer.cancel();
  loop.restart();
  loop.run();  // waits for nothing
  REQUIRE(second == 1);
}

TEST_CASE("a timer that outlasts suspensions is one of the clock that goes on meanwhile", "[net][agent_link]") {
  asio::io_context loop;
  const auto timers = [] {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fdinfo"}) {
      std::ifstream info{entry.path()};
      for (std::string line; std::getline(info, line);) count += line == fmt::format("clockid: {}", CLOCK_BOOTTIME);
    }
    return count;
  };
  const int before = timers();
  const LastingTimer timer{loop};
  REQUIRE(timers() == before + 1);
}

TEST_CASE("an agent's link goes by the clock that outlasts suspensions", "[net][agent_link]") {
  const AgentClientSettings settings;
  const auto* const clock = settings.clock.target<TimePoint (*)()>();
  REQUIRE(clock);
  REQUIRE(*clock == &lasting_now);
}

TEST_CASE("a coordinator that starts again goes on with the running job", "[net][agent_link]") {
  asio::io_context loop;
  auto daemon = std::make_unique<Daemon>(loop);
  const Endpoint endpoint = daemon->endpoint;
  Agent a = Agent::over_tcp(loop, endpoint);
  Agent b = Agent::over_tcp(loop, endpoint);
  run_round(loop, a, b, {.min_nodes = 2, .max_nodes = 2, .lease = 20s});
  const auto heard = a.heard.size();
  daemon.reset();
  loop.restart();
  loop.run_for(200ms);
  daemon = std::make_unique<Daemon>(loop, AgentSessionsOptions{}, endpoint.port);
  REQUIRE(run_until(loop, [&] { return daemon->sessions.count() == 2; }));
  a.link->send(WorkersSucceeded{Round{0}});
  b.link->send(WorkersSucceeded{Round{0}});
  REQUIRE(run_until(loop, [&] { return a.last<End>() && b.last<End>(); }));
  REQUIRE(a.last<End>()->verdict.exit_code == 0);
  for (std::size_t i = heard; i + 1 < a.heard.size(); ++i) {  // workers were not disturbed
    REQUIRE(std::get_if<Waiting>(&std::get<CoordinatorMessage>(a.heard[i])));
  }
}

TEST_CASE("when the process that hosts is gone, workers stop at once", "[net][agent_link]") {
  asio::io_context loop;
  auto daemon = std::make_unique<Daemon>(loop, AgentSessionsOptions{.embedded = true});
  const Endpoint endpoint = daemon->endpoint;
  Agent a = Agent::over_tcp(loop, endpoint, "", 2s);
  Agent b = Agent::over_tcp(loop, endpoint, "", 2s);
  run_round(loop, a, b, {.min_nodes = 2, .max_nodes = 2, .lease = 120s});
  daemon.reset();
  REQUIRE(run_until(loop, [&] { return a.last<StopWorkers>() && b.last<StopWorkers>(); }));
  REQUIRE(a.last<StopWorkers>()->cause == StopCause::fenced);
  SECTION("it comes back: the job goes on") {
    daemon = std::make_unique<Daemon>(loop, AgentSessionsOptions{.embedded = true}, endpoint.port);
    a.link->send(join_of("a", {.min_nodes = 2, .max_nodes = 2}));
    b.link->send(join_of("b", {.min_nodes = 2, .max_nodes = 2}));
    REQUIRE(run_until(loop, [&] { return a.last<HostStore>() != nullptr; }));
  }
  SECTION("it does not: 67 after the join timeout") {
    REQUIRE(run_until(loop, [&] { return a.lost() && b.lost(); }));
    REQUIRE(a.lost()->exit_code == 67);
  }
}

TEST_CASE("an end of file is told from a reset, also by whoever writes first", "[net][agent_link]") {
  asio::io_context loop;
  tcp::acceptor acceptor{loop, {asio::ip::address_v4::loopback(), 0}};
  tcp::socket near{loop}, far{loop};
  near.connect(acceptor.local_endpoint());
  acceptor.accept(far);
  const auto socket = std::make_shared<FrameSocket>(std::move(near));
  std::string heard;
  std::optional<boost::system::error_code> closed;
  socket->start(
      [&](std::string_view& input) {
        heard += input;
        input = {};
        return FrameSocket::Rest::more;
      },
      [&](const boost::system::error_code& error) { closed = error; });
  asio::write(far, asio::buffer("last word", 9));
  const bool in_good_order = GENERATE(true, false);
  if (!in_good_order) far.set_option(asio::socket_base::linger{true, 0});
  far.close();
  socket->write("one");
  socket->write("two");  // meets the answer to the first
  REQUIRE(run_until(loop, [&] { return closed.has_value(); }));
  REQUIRE(!*closed == in_good_order);
  REQUIRE((!in_good_order || heard == "last word"));
}

TEST_CASE("nobody at the endpoint is 67 after the join timeout, and said before", "[net][agent_link]") {
  asio::io_context loop;
  tcp::acceptor bound{loop, tcp::v4()};
  bound.bind({asio::ip::address_v4::loopback(), 0});  // bound and not listening: refused
  Agent a = Agent::over_tcp(loop, {"127.0.0.1", Port{bound.local_endpoint().port()}}, "", 1s);
  a.link->send(join_of("a", {}));
  REQUIRE(run_until(loop, [&] { return a.lost() != nullptr; }));
  REQUIRE(a.lost()->exit_code == 67);
  const auto* first = std::get_if<CoordinatorMessage>(&a.heard.front());
  REQUIRE(first);
  REQUIRE(std::get<Waiting>(*first).roster.find("refused") != std::string::npos);
}

TEST_CASE("a leave needs no coordinator", "[net][agent_link]") {
  asio::io_context loop;
  tcp::acceptor bound{loop, tcp::v4()};
  bound.bind({asio::ip::address_v4::loopback(), 0});
  Agent a = Agent::over_tcp(loop, {"127.0.0.1", Port{bound.local_endpoint().port()}}, "", 1min);
  a.link->send(join_of("a", {}));
  a.link->send(Leave{.exit_code = 130, .reason = "interrupted"});
  REQUIRE(run_until(
      loop, [&] { return a.last<End>() != nullptr; }, 1s));
  REQUIRE(a.last<End>()->verdict.exit_code == 130);
}

TEST_CASE("a token file that others could read is refused", "[net][token]") {
  const test::TemporaryFolder folder;
  const std::string name = folder.path / "token";
  const UniqueFd file{::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
  REQUIRE(file);
  const auto write_token = [&](const std::string& text) {
    REQUIRE(::ftruncate(file.get(), 0) == 0);
    REQUIRE(::pwrite(file.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  };
  write_token("a token of 23 characters\n");
  REQUIRE(*read_token_file(name) == "a token of 23 characters");
  ::fchmod(file.get(), 0604);  // of groups: token_test.cpp
  REQUIRE(read_token_file(name).has_error());
  ::fchmod(file.get(), 0600);
  write_token("\n");
  REQUIRE(read_token_file(name).has_error());
  write_token(std::string(4097, 'x'));
  REQUIRE(read_token_file(name).has_error());
  ::unlink(name.c_str());
  REQUIRE(read_token_file(name).has_error());
  REQUIRE(read_token_file("/dev/zero").has_error());
}

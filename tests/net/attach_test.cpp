#include "rendezvous/net/agent/attach.hpp"

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>

#include "agents.hpp"

using namespace torchup;
using namespace std::chrono_literals;
namespace asio = boost::asio;
using asio::ip::tcp;

TEST_CASE("of agents on one machine with one endpoint the first hosts and the others connect", "[net][attach]") {
  asio::io_context loop;
  Port port{0};
  {
    tcp::acceptor free{loop, {asio::ip::address_v4::loopback(), 0}};
    port = Port{free.local_endpoint().port()};
  }
  std::vector<std::string> log;
  const auto make = [&](AgentLink::Handler handler) {
    return attach(loop,
                  {.run_id = RunId{"job"},
                   .endpoint = Endpoint{"localhost", port},
                   .join_timeout = 10s,
                   .log = [&](const LogLine& line) { log.push_back(line.text); }},
                  std::move(handler));
  };
  Agent a{make}, b{make};
  run_round(loop, a, b, {.min_nodes = 2, .max_nodes = 2});
  REQUIRE(std::count_if(log.begin(), log.end(),
                        [](const auto& line) { return line.find("hosted here") != std::string::npos; }) == 1);
  a.link->send(WorkersSucceeded{Round{0}});
  b.link->send(WorkersSucceeded{Round{0}});
  REQUIRE(run_until(loop, [&] { return a.last<End>() && b.last<End>(); }));
}

TEST_CASE("an agent whose port was taken hosts after all when its holder goes without an answer", "[net][attach]") {
  asio::io_context loop;
  auto former = std::make_unique<tcp::acceptor>(loop, tcp::endpoint{asio::ip::address_v4::loopback(), 0});
  const Port port{former->local_endpoint().port()};
  Agent a{[&](AgentLink::Handler handler) {
    return attach(loop, {.run_id = RunId{"job"}, .endpoint = Endpoint{"127.0.0.1", port}, .join_timeout = 10s},
                  std::move(handler));
  }};
  a.link->send(join_of("a", {}));
  REQUIRE_FALSE(run_until(
      loop, [&] { return a.last<HostStore>() != nullptr; }, 100ms));
  former.reset();
  REQUIRE(run_until(
      loop, [&] { return a.last<HostStore>() != nullptr; }, 3s));
}

TEST_CASE("an agent that must host waits a little for its port", "[net][attach]") {
  asio::io_context loop;
  auto former = std::make_unique<tcp::acceptor>(loop, tcp::endpoint{asio::ip::address_v4::loopback(), 0});
  const Endpoint endpoint{"127.0.0.1", Port{former->local_endpoint().port()}};
  Agent a{[&](AgentLink::Handler handler) {
    return attach(loop, {.run_id = RunId{"job"}, .endpoint = endpoint, .is_host = true}, std::move(handler));
  }};
  a.link->send(join_of("a", {}));
  const auto told_why = [&] {
    return std::any_of(a.heard.begin(), a.heard.end(), [&](const LinkEvent& event) {
      const auto* message = std::get_if<CoordinatorMessage>(&event);
      const auto* waiting = message ? std::get_if<Waiting>(message) : nullptr;
      return waiting && waiting->roster.find(to_string(endpoint)) != std::string::npos;
    });
  };
  REQUIRE(run_until(loop, told_why));
  SECTION("which is free again") {
    former.reset();
    REQUIRE(run_until(
        loop, [&] { return a.last<HostStore>() != nullptr; }, 3s));
  }
  SECTION("which somebody keeps") {
    REQUIRE(run_until(loop, [&] { return a.lost() != nullptr; }));
    REQUIRE(a.lost()->exit_code == 67);
    REQUIRE(a.lost()->reason == "the rendezvous cannot be hosted here: cannot listen on " + to_string(endpoint) +
                                    ": Address already in use");
  }
  SECTION("or whose user gives up") {
    a.link->send(Leave{.exit_code = 130, .reason = "SIGINT"});
    REQUIRE(run_until(
        loop, [&] { return a.last<End>() != nullptr; }, 1s));
    REQUIRE_FALSE(run_until(
        loop, [&] { return a.lost() != nullptr; }, 500ms));
  }
}

TEST_CASE("one node needs no socket", "[net][attach]") {
  asio::io_context loop;
  Agent a{[&](AgentLink::Handler handler) { return attach(loop, {.run_id = RunId{"job"}}, std::move(handler)); }};
  a.link->send(join_of("a", {}));
  REQUIRE(run_until(loop, [&] { return a.last<HostStore>() != nullptr; }));
  a.link->send(StoreReady{Round{0}, Port{1}});
  REQUIRE(run_until(loop, [&] { return a.last<Placed>() != nullptr; }));
  REQUIRE(a.last<Placed>()->placement.master_addr == "127.0.0.1");
}

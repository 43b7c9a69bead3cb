#pragma once

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/core/link/agent_codec.hpp"
#include "rendezvous/net/agent/agent_client.hpp"
#include "rendezvous/net/coordinator/agent_sessions.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/store/store_server.hpp"
#include "tests/support/long_running.hpp"

/// What the tests of agents' links share: a coordinator with a port, agents that note what they hear.
namespace torchup {

/// A coordinator with a port on loopback, as torchupd has it.
struct Daemon {
  explicit Daemon(boost::asio::io_context& loop, AgentSessionsOptions options = {}, Port port = Port{0})
      : coordinator{loop, [this](LogLine line) { lines.push_back(std::move(line)); }, test::long_running()},
        sessions{loop, coordinator, std::move(options)} {
    StoreServerOptions server_options;
    server_options.bind = "127.0.0.1";
    server_options.port = port;
    server_options.other_language = [this](unsigned char first_byte, UniqueFd& socket) {
      if (!begins_agent(first_byte)) return false;
      sessions.serve(std::move(socket));
      return true;
    };
    server = std::make_unique<StoreServer>(loop, std::move(server_options));
    const auto listening = server->listen();
    REQUIRE(listening.has_value());
    endpoint = {"127.0.0.1", *listening};
  }
  std::vector<LogLine> lines;  ///< that the coordinator has logged
  Coordinator coordinator;
  AgentSessions sessions;
  std::unique_ptr<StoreServer> server;
  Endpoint endpoint;
};

/// One agent's side: what it heard so far. `make` gives the link.
struct Agent {
  explicit Agent(const std::function<std::unique_ptr<AgentLink>(AgentLink::Handler)>& make)
      : link{make([this](LinkEvent event) { heard.push_back(std::move(event)); })} {}
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  static Agent over_tcp(boost::asio::io_context& loop, Endpoint endpoint, std::string token = {},
                        Duration join_timeout = std::chrono::seconds{10}) {
    return Agent{[&](AgentLink::Handler handler) {
      return connect_agent(loop,
                           {.endpoint = endpoint, .run_id = RunId{"job"}, .token = token, .join_timeout = join_timeout},
                           std::move(handler));
    }};
  }
  template <class T>
  const T* last() const {
    for (auto event = heard.rbegin(); event != heard.rend(); ++event) {
      const auto* message = std::get_if<CoordinatorMessage>(&*event);
      if (!message || std::get_if<Waiting>(message)) continue;  // what people are told may come at any time
      return std::get_if<T>(message);
    }
    return nullptr;
  }
  const LinkLost* lost() const { return heard.empty() ? nullptr : std::get_if<LinkLost>(&heard.back()); }

  std::vector<LinkEvent> heard;
  std::unique_ptr<AgentLink> link;
};

inline bool run_until(boost::asio::io_context& loop, const std::function<bool()>& condition,
                      Duration limit = std::chrono::seconds{60}) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!condition() && std::chrono::steady_clock::now() < until) {
    loop.restart();
    loop.run_one_for(std::chrono::milliseconds{20});
  }
  return condition();
}

inline Join join_of(const std::string& host, JobTerms terms) {
  Join join;
  join.host = host;
  join.local_world_size = 2;
  join.terms = std::move(terms);
  return join;
}

/// Two agents in a running round; `first` has group rank 0.
inline void run_round(boost::asio::io_context& loop, Agent& first, Agent& second, JobTerms terms) {
  first.link->send(join_of("a", terms));
  second.link->send(join_of("b", terms));
  REQUIRE(run_until(loop, [&] { return first.last<HostStore>() != nullptr; }));
  first.link->send(StoreReady{first.last<HostStore>()->round, Port{4000}});
  REQUIRE(run_until(loop, [&] { return first.last<Placed>() && second.last<Placed>(); }));
}

}  // namespace torchup

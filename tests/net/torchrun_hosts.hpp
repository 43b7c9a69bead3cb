#pragma once

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/core/text/base64.hpp"
#include "rendezvous/core/torchrun_wire/torchrun_state.hpp"
#include "rendezvous/net/coordinator/torchrun_host.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "rendezvous/net/store/store_server.hpp"
#include "tests/support/store_harness.hpp"
#include "tests/support/store_peers.hpp"

namespace torchup::test {

/// A store with torchrun's meetings in it.
struct Host {
  explicit Host(TorchrunHostOptions options = {}) : with{std::move(options)} {
    const auto opened = server.listen();
    REQUIRE(opened.has_value());
    port = *opened;
  }
  static StoreServerOptions options() {
    StoreServerOptions options;
    options.bind = "127.0.0.1";
    return options;
  }
  /// As an agent does that is the first to come.
  void meet(const UniqueFd& socket, const std::string& run_id) {
    TorchrunState state;
    state.participants[{"a", 1, 0}] = 0;
    state.last_heartbeats[{"a", 1, 0}] = UtcTime{} + std::chrono::hours{1};
    write(socket, run_id, "", to_base64(write_torchrun_state(state)));
  }
  void write(const UniqueFd& socket, const std::string& run_id, const std::string& expected, const std::string& text) {
    send_all(socket, test::request(Query::compare_set, {"/torch.rendezvous." + run_id}, {expected, text}));
  }
  /// Until the store holds what was written.
  void write_whole(const UniqueFd& socket, const std::string& run_id, const std::string& expected,
                   const std::string& text) {
    const std::string request = test::request(Query::compare_set, {"/torch.rendezvous." + run_id}, {expected, text});
    std::string_view rest = request;
    run_until(loop, [&] {
      const ssize_t sent = ::send(socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent > 0) rest.remove_prefix(static_cast<std::size_t>(sent));
      const Value* const value = server.store().find("/torch.rendezvous." + run_id);
      return value && value->view() == text;
    });
  }
  void turn(Duration at) { host.turn(TimePoint{} + at, UtcTime{} + std::chrono::hours{1}); }

  boost::asio::io_context loop;
  StoreServer server{loop, options()};
  std::vector<std::string> log, faults;
  std::function<void(const std::string& line)> on_log;
  TorchrunHostOptions with;
  TorchrunHost host{
      loop, server, with,
      [this](const RunId& run_id, const std::string& line) {
        log.push_back(run_id.value() + ": " + line);
        if (on_log) on_log(log.back());
      },
      [this](const RunId& run_id, const std::string& what) { faults.push_back(run_id.value() + ": " + what); }};
  Port port{0};
};

}  // namespace torchup::test

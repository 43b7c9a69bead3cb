#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "rendezvous/net/store/store_gate.hpp"
#include "rendezvous/net/store/store_proxy.hpp"
#include "rendezvous/net/store/store_server.hpp"

namespace torchup::test {

/// Our server, on a thread of its own. With TORCHUP_TEST_STORE_PROXY its port is a store proxy's, which reaches it by a
/// link: with that variable's value as token, where it is not "plain".
class ServerThread {
 public:
  explicit ServerThread(Port port = Port{0}) {
    StoreServerOptions options;
    options.bind = "localhost";
    options.port = port;
    server_ = std::make_unique<StoreServer>(loop_, std::move(options));
    port_ = *server_->listen();
    if (const char* const secret = std::getenv("TORCHUP_TEST_STORE_PROXY")) stand_between(secret);
    thread_ = std::thread{[this] { loop_.run(); }};
  }
  ~ServerThread() {
    loop_.stop();
    thread_.join();
  }
  [[nodiscard]] Port port() const { return port_; }
  [[nodiscard]] StoreServerStatus status() {
    std::promise<StoreServerStatus> promise;
    boost::asio::post(loop_, [&] { promise.set_value(server_->status()); });
    return promise.get_future().get();
  }
  /// Returns when so many clients wait for keys or at barriers.
  void until_waiting(std::size_t count) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{20};
    while (status().waiting != count && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  }

 private:
  void stand_between(const std::string& secret) {
    const std::string token = secret == "plain" ? "" : secret;
    const StoreKey key{1, 2, 3};
    gate_ =
        std::make_unique<StoreGate>(loop_, *server_, StoreGateOptions{.bind = "127.0.0.1", .key = key, .token = token});
    const Port gate = *gate_->listen();
    proxy_ = std::make_unique<StoreProxy>(
        loop_, StoreProxyOptions{.store = Endpoint{"127.0.0.1", gate}, .key = key, .token = token});
    port_ = *proxy_->listen();
  }

  boost::asio::io_context loop_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{loop_.get_executor()};
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<StoreGate> gate_;
  std::unique_ptr<StoreProxy> proxy_;
  Port port_{0};
  std::thread thread_;
};

inline bool ok(const Result<>& result) {
  INFO((result ? "" : result.error().message()));
  CHECK(result.has_value());
  return result.has_value();
}

inline std::string text(const Result<Value>& value) {
  return value ? std::string{value->view()} : "error: " + value.error().message();
}

}  // namespace torchup::test

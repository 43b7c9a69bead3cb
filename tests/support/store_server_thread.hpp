#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "rendezvous/net/store/store_server.hpp"

namespace torchup::test {

/// Our server, on a thread of its own.
class ServerThread {
 public:
  explicit ServerThread(Port port = Port{0}) {
    StoreServerOptions options;
    options.bind = "localhost";
    options.port = port;
    server_ = std::make_unique<StoreServer>(loop_, std::move(options));
    port_ = *server_->listen();
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
  boost::asio::io_context loop_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{loop_.get_executor()};
  std::unique_ptr<StoreServer> server_;
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

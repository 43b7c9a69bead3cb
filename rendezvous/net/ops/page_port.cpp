#include "rendezvous/net/ops/page_port.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <boost/asio/io_context.hpp>
#include <utility>

#include "rendezvous/core/text/percent.hpp"
#include "rendezvous/net/io/listen.hpp"
#include "rendezvous/net/io/node_identity.hpp"
#include "rendezvous/net/io/token.hpp"

namespace torchup {
namespace {

constexpr auto silent_peer_max = std::chrono::seconds{90};

/// 128 bits in hexadecimal digits.
std::string fresh_page_token() { return fmt::format("{:02x}", fmt::join(fresh_nonce(), "")); }

/// As a browser is led there: where all of this machine's addresses are bound, its name is as good as any.
std::string address_of(const std::string& bind, Port port) {
  if (bind == "localhost") return fmt::format("127.0.0.1:{}", port.value());
  if (bind.empty() || bind == "::" || bind == "0.0.0.0") return fmt::format("{}:{}", own_host_name(), port.value());
  const bool in_brackets = bind.find(':') != std::string::npos;
  return in_brackets ? fmt::format("[{}]:{}", bind, port.value()) : fmt::format("{}:{}", bind, port.value());
}

}  // namespace

PagePort::PagePort(boost::asio::io_context& loop, HttpServer& server, PagePortOptions options)
    : loop_{loop}, server_{server}, options_{std::move(options)}, timer_{loop} {}

Result<std::string> PagePort::open(const std::string& run_id) {
  if (!port_) {
    auto listeners = listen_on(options_.bind, options_.port, silent_peer_max);
    if (!listeners) return listeners.error();
    door_ = std::make_shared<HttpDoor>();
    door_->access = options_.access;
    door_->access.page_token = fresh_page_token();
    address_ = address_of(options_.bind, listeners->port);
    port_.emplace(loop_, server_, std::move(listeners->sockets), door_);
  }
  door_->last_request = std::chrono::steady_clock::now();
  wait_idle();
  return fmt::format("http://{}/{}{}#token={}", address_, run_id.empty() ? "" : "jobs/", percent_encoded(run_id),
                     door_->access.page_token);
}

void PagePort::wait_idle() {
  if (!options_.idle) return;
  timer_.expires_at(door_->last_request + *options_.idle);
  timer_.async_wait([this, alive = std::weak_ptr{alive_}](boost::system::error_code error) {
    if (error || alive.expired()) return;
    const TimePoint now = std::chrono::steady_clock::now();
    if (door_->streams > 0) door_->last_request = now;
    if (now < door_->last_request + *options_.idle) return wait_idle();
    port_.reset();
    server_.close(*door_);
  });
}

}  // namespace torchup

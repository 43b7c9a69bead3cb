#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/net/io/lookup.hpp"

namespace torchup {

/// One attempt to connect: looks the name up, tries all its addresses with a stagger, and keeps the first that answers.
class Dialer : public std::enable_shared_from_this<Dialer> {
 public:
  /// A socket, or the last thing that went wrong: connection_refused, timed_out, or what the resolver said.
  using Done = std::function<void(Result<boost::asio::ip::tcp::socket>)>;

  explicit Dialer(boost::asio::io_context& loop) : loop_{loop}, timer_{loop} {}

  /// Once. `done` is called from the loop, unless `cancel` came first.
  void dial(const Endpoint& endpoint, Duration limit, Done done);
  void cancel();

 private:
  void try_next();
  void wait();
  void connected(std::size_t index, const boost::system::error_code& error);
  void conclude(Result<boost::asio::ip::tcp::socket> result);

  boost::asio::io_context& loop_;
  boost::asio::steady_timer timer_;
  Done done_;
  TimePoint until_;
  std::unique_ptr<Lookup> lookup_;
  Lookup::Addresses addresses_;
  std::vector<std::unique_ptr<boost::asio::ip::tcp::socket>> sockets_;  ///< those that were begun
  std::size_t failed_ = 0;
  Error last_error_;
};

}  // namespace torchup

#include "rendezvous/net/io/dialer.hpp"

#include <algorithm>
#include <utility>

namespace torchup {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using boost::system::error_code;

namespace {
constexpr Duration stagger = std::chrono::milliseconds{250};  // before the next address of a name is tried as well
}

void Dialer::dial(const Endpoint& endpoint, Duration limit, Done done) {
  done_ = std::move(done);
  until_ = std::chrono::steady_clock::now() + limit;
  last_error_ = {make_error_code(boost::system::errc::timed_out), "the look-up of " + endpoint.host};
  lookup_ = std::make_unique<Lookup>(loop_, endpoint.host, endpoint.port,
                                     [weak = weak_from_this()](Result<Lookup::Addresses> addresses) {
                                       const auto self = weak.lock();
                                       if (!self || !self->done_) return;
                                       if (!addresses) return self->conclude(addresses.error());
                                       self->last_error_ = {make_error_code(boost::system::errc::timed_out), ""};
                                       self->addresses_ = std::move(*addresses);
                                       self->try_next();
                                     });
  wait();
}

void Dialer::cancel() {
  done_ = {};
  lookup_.reset();
  timer_.cancel();
  for (auto& socket : sockets_) {
    error_code ignored;
    socket->close(ignored);
  }
}

void Dialer::wait() {
  const TimePoint now = std::chrono::steady_clock::now();
  const bool more = sockets_.size() < addresses_.size();
  timer_.expires_at(more ? std::min(now + stagger, until_) : until_);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (error || !self->done_) return;
    if (std::chrono::steady_clock::now() >= self->until_) return self->conclude(self->last_error_);
    self->try_next();
  });
}

void Dialer::try_next() {
  if (sockets_.size() < addresses_.size()) {
    const std::size_t index = sockets_.size();
    sockets_.push_back(std::make_unique<tcp::socket>(loop_));
    sockets_.back()->async_connect(addresses_[index], [self = shared_from_this(), index](const error_code& error) {
      if (self->done_) self->connected(index, error);
    });
  }
  wait();
}

void Dialer::connected(std::size_t index, const error_code& error) {
  if (!error) return conclude(std::move(*sockets_[index]));
  last_error_ = {error, ""};
  ++failed_;
  if (failed_ == addresses_.size()) return conclude(last_error_);
  if (failed_ == sockets_.size()) try_next();  // nothing is under way: do not wait for the stagger
}

void Dialer::conclude(Result<tcp::socket> result) {
  const Done done = std::exchange(done_, {});
  cancel();
  done(std::move(result));
}

}  // namespace torchup

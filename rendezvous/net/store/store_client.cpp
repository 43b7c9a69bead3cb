// One class behind its pointer, a little longer than 400 lines: all requests share its connection and their repeating.
#include "rendezvous/net/store/store_client.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <thread>

#include "rendezvous/core/store/store_codec.hpp"
#include "rendezvous/net/store/blocking_connect.hpp"
#include "rendezvous/net/store/client_connection.hpp"

namespace torchup {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// What a server has at least for an answer that waits for nobody, however short the callers' waits for keys are:
/// losing the connection over a late one would cost them the store.
constexpr auto answer_limit_min = std::chrono::seconds{10};

bool is_timeout(const Error& error) { return error.code == boost::system::errc::timed_out; }

TimePoint after(Duration timeout) {
  const auto now = Clock::now();
  return timeout > TimePoint::max() - now ? TimePoint::max() : now + timeout;
}

/// PyTorch's words, which callers match on.
std::string timeout_text(const std::string& what, Duration timeout, std::span<const std::string> keys) {
  const auto after_ms = std::chrono::duration_cast<milliseconds>(timeout).count();
  if (what == "barrier") return fmt::format("{} timeout after {}ms, key: {}", what, after_ms, keys.front());
  return fmt::format("{} timeout after {}ms, keys: /{}", what, after_ms, fmt::join(keys, ", /"));
}

}  // namespace

class StoreClient::Impl {
 public:
  /// Whether a request may be repeated when the connection is lost under it: true for those that only read.
  enum class Repeat { no, yes };

  explicit Impl(StoreClientOptions options) : options_{std::move(options)} {}

  Result<> connect(TimePoint deadline) {
    for (Duration pause = milliseconds{20};; pause = std::min<Duration>(2 * pause, std::chrono::seconds{1})) {
      auto socket = blocking_connect(options_.host, options_.port, deadline, options_.cancel);
      if (!socket) return socket.error();
      connection_.emplace(std::move(*socket), options_.cancel);
      const auto greeted = greet(deadline);
      if (greeted) return {};
      connection_.reset();
      // Who closes during the greeting may be a server that starts or ends just now.
      const bool may_pass = greeted.error().code == boost::system::errc::connection_reset ||
                            greeted.error().code == boost::system::errc::broken_pipe;
      if (!may_pass || Clock::now() + pause >= deadline) return greeted.error();
      std::this_thread::sleep_for(pause);
    }
  }

  /// Sends, and reads the answer if the query has one.
  Result<> ask(const OutgoingRequest& request, Query query, Repeat repeat, std::size_t count = 0) {
    const auto limit = std::max<Duration>(options_.timeout, answer_limit_min);
    return exchange(repeat, after(limit), [&](TimePoint deadline) -> Result<> {
      if (auto sent = connection_->send(request, deadline); !sent) return sent;
      const char* const layout = reply_layout(query);
      return *layout ? connection_->receive(layout, count, deadline) : Result<>{};
    });
  }

  /// As `ask`, for what the server answers when something has happened. After `timeout` it is cancelled, and the error
  /// is "<what> timeout after 200ms, key(s): …".
  Result<> ask_and_wait(const OutgoingRequest& request, Query query, Repeat repeat, Duration timeout, const char* what,
                        std::span<const std::string> keys) {
    const std::size_t count = keys.size();
    return exchange(repeat, after(timeout), [&](TimePoint deadline) -> Result<> {
      if (auto sent = connection_->send(request, std::max(deadline, after(answer_limit_min))); !sent) return sent;
      auto answered = connection_->receive(reply_layout(query), count, deadline);
      if (!answered && is_timeout(answered.error())) return cancel(timeout_text(what, timeout, keys));
      if (answered && reply().byte() != Store::stop_waiting) return unexpected(reply().byte());
      return answered;
    });
  }

  /// As `ask_and_wait`, until `give_up`; false: it was.
  Result<bool> wait_unless(const OutgoingRequest& request, Duration pause, int wake,
                           const std::function<bool()>& give_up) {
    const auto done = exchange(Repeat::no, after(options_.timeout), [&](TimePoint) -> Result<> {
      if (auto sent = connection_->send(request, after(answer_limit_min)); !sent) return sent;
      connection_->wake_by(wake);
      auto answered = connection_->receive(reply_layout(Query::wait), 0, after(pause));
      while (!answered && is_timeout(answered.error()) && !give_up()) answered = connection_->resume(after(pause));
      connection_->wake_by(-1);
      if (!answered && is_timeout(answered.error())) return cancel("given up");
      if (answered && reply().byte() != Store::stop_waiting) return unexpected(reply().byte());
      return answered;
    });
    if (!done && !in_step_) return done.error();
    return done.has_value();
  }

  FieldReader& reply() { return connection_->reply(); }
  [[nodiscard]] bool extended() const { return !identity_.empty(); }

  StoreClientOptions options_;
  std::mutex mutex_;

 private:
  /// VALIDATE, PING, and whether the server is ours, in one round trip; then which one it is.
  Result<> greet(TimePoint deadline) {
    const auto nonce = static_cast<std::uint32_t>(::getpid());
    OutgoingRequest hello{Query::validate};
    hello.nonce(validate_magic);
    hello.query(Query::ping);
    hello.nonce(nonce);
    hello.query(Query::check);
    hello.number(1);
    hello.wire_key(extension_key);
    if (auto sent = connection_->send(hello, deadline); !sent) return sent;
    if (auto pong = connection_->receive("n", 0, deadline); !pong) return pong;
    if (reply().nonce() != nonce)
      return fail(errc::bad_frame, fmt::format("no store answers at ({}, {}): its PING came back as {}", options_.host,
                                               options_.port.value(), reply().nonce()));
    if (auto checked = connection_->receive("b", 0, deadline); !checked) return checked;
    std::string identity;
    if (reply().byte() == Store::ready) {
      OutgoingRequest who{Query::get};
      who.wire_key(extension_key);
      if (auto sent = connection_->send(who, deadline); !sent) return sent;
      if (auto answered = connection_->receive("v", 0, deadline); !answered) return answered;
      identity = reply().values().at(0).view();
    }
    if (!identity_.empty() && identity != identity_)
      return fail(errc::refused,
                  fmt::format("the store at ({}, {}) is not the one we were connected to: its keys are gone",
                              options_.host, options_.port.value()));
    identity_ = identity;
    return {};
  }

  /// One request and its answer. Whatever fails leaves the connection out of step, so it goes; unless a cancelled wait
  /// has been answered properly.
  template <class Talk>
  Result<> exchange(Repeat repeat, TimePoint deadline, Talk talk) {
    bool fresh = false;
    if (!connection_) {
      if (auto back = come_back(deadline); !back) return back;
      fresh = true;
    }
    for (;;) {
      in_step_ = false;
      auto result = talk(deadline);
      if (result || in_step_) return result;
      connection_.reset();
      loss_ = result.error();
      if (repeat == Repeat::no || fresh || is_timeout(loss_) || loss_.code == errc::bad_frame) return result;
      if (auto back = come_back(deadline); !back) return result;
      fresh = true;
    }
  }

  /// Only to the same store: another one would lack what was written before, and nobody would notice.
  Result<> come_back(TimePoint deadline) {
    if (identity_.empty()) return loss_;
    return connect(deadline);
  }

  static Error unexpected(std::uint8_t byte) {
    return fail(errc::bad_frame, fmt::format("the store answered a wait with {}", byte));
  }

  /// Ends an open wait. Its answer may have crossed with the cancellation: then it counts.
  Result<> cancel(const std::string& what) {
    const auto deadline = after(answer_limit_min);
    if (auto sent = connection_->send(OutgoingRequest{Query::cancel_wait}, deadline); !sent) return sent;
    if (auto answered = connection_->resume(deadline); !answered) return answered;
    if (reply().byte() == Store::wait_canceled) {
      in_step_ = true;
      return system_error(ETIMEDOUT, what);
    }
    if (reply().byte() != Store::stop_waiting) return unexpected(reply().byte());
    auto values = std::move(reply().values());
    if (auto cancelled = connection_->receive("b", 0, deadline); !cancelled) return cancelled;
    if (reply().byte() != Store::wait_canceled) return unexpected(reply().byte());
    reply().values() = std::move(values);
    return {};
  }

  std::optional<ClientConnection> connection_;
  bool in_step_ = false;
  Error loss_;            ///< why there is no connection
  std::string identity_;  ///< of our server; empty for PyTorch's
};

StoreClient::StoreClient(std::unique_ptr<Impl> impl) : impl_{std::move(impl)} {}
StoreClient::~StoreClient() = default;

Result<std::unique_ptr<StoreClient>> StoreClient::connect(StoreClientOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  if (auto connected = impl->connect(after(impl->options_.timeout)); !connected) return connected.error();
  return std::unique_ptr<StoreClient>{new StoreClient{std::move(impl)}};
}

Result<std::unique_ptr<StoreClient>> StoreClient::clone() const {
  // Connecting waits for nobody either: who waits for keys for a moment only still gets its connection.
  const Duration for_keys = timeout();
  auto client = connect({host(), port(), std::max<Duration>(for_keys, answer_limit_min), impl_->options_.cancel});
  if (client) (*client)->set_timeout(for_keys);
  return client;
}

// Each call: its request, its answer.

Result<> StoreClient::set(std::string_view key, std::string_view value) { return write(Query::set, key, value); }
Result<> StoreClient::append(std::string_view key, std::string_view value) { return write(Query::append, key, value); }
Result<> StoreClient::queue_push(std::string_view key, std::string_view value) {
  return write(Query::queue_push, key, value);
}

Result<> StoreClient::write(Query query, std::string_view key, std::string_view value) {
  const std::lock_guard lock{impl_->mutex_};
  OutgoingRequest request{query};
  request.key(key);
  request.value(value);
  return impl_->ask(request, query, Impl::Repeat::no);
}

Result<> StoreClient::multi_set(std::span<const std::string> keys, std::span<const std::string_view> values) {
  if (keys.size() != values.size())
    return fail(errc::bad_value, "multiSet keys and values vectors must be of same size");
  const std::lock_guard lock{impl_->mutex_};
  OutgoingRequest request{Query::multi_set};
  request.number(static_cast<std::int64_t>(keys.size()));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    request.key(keys[i]);
    request.value(values[i]);
  }
  return impl_->ask(request, Query::multi_set, Impl::Repeat::no);
}

Result<Value> StoreClient::get(std::string_view key) {
  const std::string name{key};
  auto values = multi_get({&name, 1});
  if (!values) return values.error();
  return std::move(values->at(0));
}

Result<std::vector<Value>> StoreClient::multi_get(std::span<const std::string> keys) {
  const std::lock_guard lock{impl_->mutex_};
  const Query waiting = impl_->extended() ? Query::wait_get : Query::wait;
  OutgoingRequest wait{waiting};
  wait.keys(keys);
  auto there = impl_->ask_and_wait(wait, waiting, Impl::Repeat::yes, impl_->options_.timeout, "wait", keys);
  if (!there) return there.error();
  if (waiting == Query::wait) {
    OutgoingRequest request{Query::multi_get};
    request.keys(keys);
    if (auto answered = impl_->ask(request, Query::multi_get, Impl::Repeat::yes, keys.size()); !answered)
      return answered.error();
  }
  return std::move(impl_->reply().values());
}

Result<std::int64_t> StoreClient::ask_number(Query query, std::string_view key, std::optional<std::int64_t> argument) {
  const std::lock_guard lock{impl_->mutex_};
  OutgoingRequest request{query};
  if (query != Query::get_num_keys) request.key(key);
  if (argument) request.number(*argument);
  const bool reads = query == Query::get_num_keys || query == Query::queue_len;
  if (auto answered = impl_->ask(request, query, reads ? Impl::Repeat::yes : Impl::Repeat::no); !answered)
    return answered.error();
  return impl_->reply().number();
}

Result<std::int64_t> StoreClient::add(std::string_view key, std::int64_t delta) {
  return ask_number(Query::add, key, delta);
}
Result<std::int64_t> StoreClient::num_keys() { return ask_number(Query::get_num_keys, {}, {}); }
Result<std::int64_t> StoreClient::queue_len(std::string_view key) { return ask_number(Query::queue_len, key, {}); }

Result<bool> StoreClient::delete_key(std::string_view key) {
  const auto deleted = ask_number(Query::delete_key, key, {});
  if (!deleted) return deleted.error();
  return *deleted == 1;
}

Result<std::int64_t> StoreClient::count_worker() {
  const std::lock_guard lock{impl_->mutex_};
  OutgoingRequest request{Query::add};
  request.wire_key("init/");
  request.number(1);
  if (auto answered = impl_->ask(request, Query::add, Impl::Repeat::no); !answered) return answered.error();
  return impl_->reply().number();
}

Result<bool> StoreClient::check(std::span<const std::string> keys) {
  const std::lock_guard lock{impl_->mutex_};
  OutgoingRequest request{Query::check};
  request.keys(keys);
  if (auto answered = impl_->ask(request, Query::check, Impl::Repeat::yes); !answered) return answered.error();
  return impl_->reply().byte() == Store::ready;
}

Result<> StoreClient::wait(std::span<const std::string> keys) { return wait(keys, timeout()); }

Result<bool> StoreClient::wait_unless(std::span<const std::string> keys, Duration pause, int wake,
                                      const std::function<bool()>& give_up) {
  const std::lock_guard lock{impl_->mutex_};
  OutgoingRequest request{Query::wait};
  request.keys(keys);
  return impl_->wait_unless(request, pause, wake, give_up);
}

Result<> StoreClient::wait(std::span<const std::string> keys, Duration timeout) {
  const std::lock_guard lock{impl_->mutex_};
  OutgoingRequest request{Query::wait};
  request.keys(keys);
  return impl_->ask_and_wait(request, Query::wait, Impl::Repeat::yes, timeout, "wait", keys);
}

Result<Value> StoreClient::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  const std::lock_guard lock{impl_->mutex_};
  OutgoingRequest request{Query::compare_set};
  request.key(key);
  request.value(expected);
  request.value(desired);
  if (auto answered = impl_->ask(request, Query::compare_set, Impl::Repeat::no); !answered) return answered.error();
  return std::move(impl_->reply().values().at(0));
}

Result<Value> StoreClient::queue_pop(std::string_view key) {
  std::unique_lock lock{impl_->mutex_};
  const std::string name{key};
  const Query waiting = impl_->extended() ? Query::wait_pop : Query::wait;
  OutgoingRequest wait{waiting};
  if (waiting == Query::wait) wait.number(1);
  wait.key(key);
  const auto repeat = waiting == Query::wait ? Impl::Repeat::yes : Impl::Repeat::no;
  auto there = impl_->ask_and_wait(wait, waiting, repeat, impl_->options_.timeout, "wait", {&name, 1});
  if (!there) return there.error();
  if (waiting == Query::wait) {
    if (auto answered = pop(key); !answered) return answered.error();
  }
  if (impl_->reply().values().empty()) return fail(errc::missing_value, "queue is empty");
  return std::move(impl_->reply().values().at(0));
}

Result<std::optional<Value>> StoreClient::queue_try_pop(std::string_view key) {
  const std::lock_guard lock{impl_->mutex_};
  if (auto answered = pop(key); !answered) return answered.error();
  if (impl_->reply().values().empty()) return std::optional<Value>{};
  return std::optional{std::move(impl_->reply().values().at(0))};
}

Result<> StoreClient::pop(std::string_view key) {
  OutgoingRequest request{Query::queue_pop};
  request.key(key);
  return impl_->ask(request, Query::queue_pop, Impl::Repeat::no);
}

Result<std::vector<std::string>> StoreClient::list_keys() {
  const std::lock_guard lock{impl_->mutex_};
  if (auto answered = impl_->ask(OutgoingRequest{Query::list_keys}, Query::list_keys, Impl::Repeat::yes); !answered)
    return answered.error();
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < impl_->reply().key_count(); ++i)
    if (const auto key = impl_->reply().key(i); key.starts_with('/')) keys.emplace_back(key.substr(1));
  return keys;
}

Result<> StoreClient::barrier(std::string_view key, std::int64_t world_size) {
  return barrier(key, world_size, timeout());
}

Result<> StoreClient::barrier(std::string_view key, std::int64_t world_size, Duration timeout) {
  const std::lock_guard lock{impl_->mutex_};
  const std::string name{key};
  OutgoingRequest request{Query::barrier};
  request.key(key);
  request.number(world_size);
  return impl_->ask_and_wait(request, Query::barrier, Impl::Repeat::no, timeout, "barrier", {&name, 1});
}

const std::string& StoreClient::host() const { return impl_->options_.host; }
Port StoreClient::port() const { return impl_->options_.port; }

Duration StoreClient::timeout() const {
  const std::lock_guard lock{impl_->mutex_};
  return impl_->options_.timeout;
}
void StoreClient::set_timeout(Duration timeout) {
  const std::lock_guard lock{impl_->mutex_};
  impl_->options_.timeout = timeout;
}
bool StoreClient::extended() const {
  const std::lock_guard lock{impl_->mutex_};
  return impl_->extended();
}

}  // namespace torchup

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/store/store.hpp"

namespace torchup {

struct StoreClientOptions {
  std::string host;
  Port port{0};
  /// For connecting, for waiting, and, where longer than 10 s, for each answer; can be changed later. PyTorch's
  /// default.
  Duration timeout = std::chrono::seconds{300};
  /// Readable: every call ends, those that wait too, with operation_canceled. Not owned; -1: there is none.
  int cancel = -1;
};

/// A blocking client of PyTorch's TCPStore protocol: of our server and of both of PyTorch's.
///
/// Keys are users' keys, without the `/` that stands before them on the wire. One call at a time: threads that share a
/// client wait for each other, also while one waits for a key; `clone` gives them their own connection.
///
/// Against our server (found out while connecting) `get`, `multi_get` and the blocking `queue_pop` take one round trip
/// instead of two, and a lost connection is made again: by any call that follows, and within a call that only reads.
/// Both only to the very same store, told by its identity. With PyTorch's server a lost connection stays lost.
///
/// Errors of every call: timed_out when a key or an answer did not come in time; the system's when the connection is
/// gone; errc::bad_frame when the answer is not TCPStore's. A server refuses a request by closing: it then reads as
/// connection_reset or broken_pipe, at the next call that reads where the request itself has no answer.
class StoreClient {
 public:
  /// Resolves and connects, again and again until `timeout`; then validates. No peer is ever looked up by address.
  [[nodiscard]] static Result<std::unique_ptr<StoreClient>> connect(StoreClientOptions options);

  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;
  ~StoreClient();

  /// A connection of its own to the same server, with the time-out of now.
  [[nodiscard]] Result<std::unique_ptr<StoreClient>> clone() const;

  Result<> set(std::string_view key, std::string_view value);
  /// Waits for the key.
  [[nodiscard]] Result<Value> get(std::string_view key);
  /// The sum. The key's value is decimal text.
  [[nodiscard]] Result<std::int64_t> add(std::string_view key, std::int64_t delta);
  [[nodiscard]] Result<bool> check(std::span<const std::string> keys);
  /// Waits for all of `keys`.
  Result<> wait(std::span<const std::string> keys);
  Result<> wait(std::span<const std::string> keys, Duration timeout);
  /// Waits for all of `keys`, however long that takes; false when given up. Whether to is asked every `pause`, and when
  /// the descriptor `wake` is readable (-1: there is none). Says nothing to the server meanwhile.
  [[nodiscard]] Result<bool> wait_unless(std::span<const std::string> keys, Duration pause, int wake,
                                         const std::function<bool()>& give_up);
  /// Stores `desired` where the value is `expected`, or the key is absent and `expected` empty. Returns what the key
  /// holds then; `expected` itself when the key is absent and stays so.
  [[nodiscard]] Result<Value> compare_set(std::string_view key, std::string_view expected, std::string_view desired);
  /// False when there was none. Queues cannot be deleted.
  Result<bool> delete_key(std::string_view key);
  /// Plain keys of everybody, the worker count included.
  [[nodiscard]] Result<std::int64_t> num_keys();
  Result<> append(std::string_view key, std::string_view value);
  /// Waits for all of `keys`; values in their order.
  [[nodiscard]] Result<std::vector<Value>> multi_get(std::span<const std::string> keys);
  /// `keys` and `values` must be of one size: errc::bad_value.
  Result<> multi_set(std::span<const std::string> keys, std::span<const std::string_view> values);

  Result<> queue_push(std::string_view key, std::string_view value);
  /// Waits for an element. errc::missing_value where another client took it first, which only PyTorch's server allows.
  [[nodiscard]] Result<Value> queue_pop(std::string_view key);
  /// Nothing when the queue is empty.
  [[nodiscard]] Result<std::optional<Value>> queue_try_pop(std::string_view key);
  [[nodiscard]] Result<std::int64_t> queue_len(std::string_view key);

  /// Plain keys that clients have set, in any order.
  [[nodiscard]] Result<std::vector<std::string>> list_keys();
  /// Returns when `world_size` clients have called it with this key. A key serves once.
  Result<> barrier(std::string_view key, std::int64_t world_size);
  Result<> barrier(std::string_view key, std::int64_t world_size, Duration timeout);
  /// Counts this process as a worker that has come, as PyTorch's clients do when they are told a world size. Returns
  /// how many have.
  [[nodiscard]] Result<std::int64_t> count_worker();

  [[nodiscard]] const std::string& host() const;
  [[nodiscard]] Port port() const;
  [[nodiscard]] Duration timeout() const;
  void set_timeout(Duration timeout);
  /// The server is ours: one round trip per get.
  [[nodiscard]] bool extended() const;

 private:
  class Impl;
  explicit StoreClient(std::unique_ptr<Impl> impl);
  Result<> write(Query query, std::string_view key, std::string_view value);
  Result<std::int64_t> ask_number(Query query, std::string_view key, std::optional<std::int64_t> argument);
  Result<> pop(std::string_view key);
  std::unique_ptr<Impl> impl_;
};

}  // namespace torchup

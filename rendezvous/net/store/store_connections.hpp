#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/store/store_codec.hpp"
#include "rendezvous/core/text/log_line.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "rendezvous/net/store/store_server.hpp"
#include "rendezvous/net/store/store_session.hpp"

namespace torchup {

/// The connections of a store server: who is there, what epoll tells about them, what each may still cost, and the one
/// place where a peer is refused.
class StoreConnections {
 public:
  using ClosingHandler = std::function<void(StoreSession& session)>;

  /// `shared_port`: peers of other languages come to the same port and need descriptors too. `closing` is called once
  /// for each session, before its socket is gone. `epoll` is the set that the server waits for.
  StoreConnections(const ConnectionLimits& limits, bool shared_port, int epoll, LogSink log, ClosingHandler closing);

  // Who is there.

  /// Null when the kernel cannot watch it: then it is closed, with a line in the log.
  StoreSession* add(UniqueFd socket);
  /// A client without a socket, by `sink`. Null: there is no place.
  StoreSession* add(StoreSink& sink, std::string from);
  [[nodiscard]] StoreSession* find(std::uint64_t index) const {
    return index < sessions_.size() ? sessions_[index].get() : nullptr;
  }
  [[nodiscard]] StoreSession& at(std::uint32_t index) const { return *sessions_[index]; }
  [[nodiscard]] std::size_t count() const { return count_; }
  /// Newcomers that have not said who they are.
  [[nodiscard]] std::size_t unproven_count() const { return unproven_; }
  [[nodiscard]] bool full() const { return count_ - unproven_ - channels_ >= clients_max_; }
  [[nodiscard]] std::size_t clients_max() const { return clients_max_; }
  /// How many they may be on a port of the store's own.
  [[nodiscard]] std::size_t unproven_max() const { return unproven_max_; }
  /// It has sent VALIDATE.
  void proved(StoreSession& session);

  // Ending.

  void refuse(StoreSession& session, const std::string& reason);
  void refuse(int socket, const std::string& reason);
  void close(StoreSession& session);
  /// Frees those who have closed since the last time. Until then their number is not given away and their events are
  /// passed over.
  void release_closed();
  [[nodiscard]] std::uint64_t refused() const { return refused_; }

  // What epoll tells.

  /// False with errno.
  bool watch(int socket, std::uint64_t tag, std::uint32_t events, int operation) const;
  void unwatch(int socket) const;
  /// Reads where there is room for answers, and waits for room while there are any.
  void update_interest(StoreSession& session);
  /// Has the kernel tell of input again that it has told of.
  void tell_again(StoreSession& session);

  // Memory and time.

  /// What its requests, unfinished or unserved, hold now. May close some other session, or this one.
  void count_arriving(StoreSession& session, const RequestReader* reader);
  /// Likewise of its answers, some of which have just left or not.
  void count_unread(StoreSession& session, bool progress);
  [[nodiscard]] bool has_room(const StoreSession& session) const {
    return session.replies.size() <= limits_.reply_pause_bytes;
  }
  [[nodiscard]] std::size_t arriving_bytes() const { return arriving_bytes_; }
  [[nodiscard]] std::size_t unread_bytes() const { return own_unread_bytes_ + values_.bytes(); }
  /// Memory that answers take up: with the values that the store does not hold.
  [[nodiscard]] std::size_t held_bytes() const { return own_unread_bytes_ + values_.bytes_held_by_queues_alone(); }
  [[nodiscard]] std::size_t held_bytes_max() const { return limits_.unread_bytes_max; }
  [[nodiscard]] SharedValues& values() { return values_; }
  /// Closes those who leave most lying until what is left may stay.
  void drop_readers();
  /// Its answers are more than it may leave lying. It is closed when it is flushed.
  void throw_away(StoreSession& session, Overflow which);

  [[nodiscard]] TimePoint now() const { return now_; }
  void look_at_clock() { now_ = std::chrono::steady_clock::now(); }
  /// Refuses those whose time is over.
  void expire();
  [[nodiscard]] bool anybody_has_a_deadline() const {
    return !handshakes_.empty() || !requests_.empty() || !stalled_.empty() || !large_.empty();
  }

 private:
  std::uint32_t free_index();
  void tell_refusal(const std::string& who, std::string address, const std::string& reason);
  void drop_senders();

  const ConnectionLimits limits_;
  const int epoll_;
  const LogSink log_;
  const ClosingHandler closing_;
  FieldLimits fields_;
  std::size_t clients_max_, unproven_max_;
  std::vector<std::unique_ptr<StoreSession>> sessions_;  ///< the index is the engine's ClientId
  std::vector<std::uint32_t> free_, closed_;
  std::size_t count_ = 0, unproven_ = 0;
  std::size_t channels_ = 0;  ///< of those who have said VALIDATE: without a socket
  std::uint64_t refused_ = 0;
  std::size_t arriving_bytes_ = 0, own_unread_bytes_ = 0;
  SharedValues values_;
  DeadlineQueue handshakes_, requests_, stalled_, large_;
  TimePoint now_ = std::chrono::steady_clock::now();
};

}  // namespace torchup

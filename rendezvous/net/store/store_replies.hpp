#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/core/store/store.hpp"
#include "rendezvous/core/text/log_line.hpp"
#include "rendezvous/net/store/send_batch.hpp"
#include "rendezvous/net/store/store_connections.hpp"

namespace torchup {

/// What has come of offering a session's answers to the kernel.
struct ReplyOffer {
  bool progress = false;  ///< it took some
  bool full = false;      ///< it takes no more now
  bool failed = false;
};

/// The answers of a store's engine on their way to its clients.
class StoreReplies final : public StoreOutlet {
 public:
  struct Answered {
    StoreSession* session;
    ReplyOffer offered = {};
    bool in_batch = false;
  };

  /// `first_unsent` is called when there is something to be flushed and was not before.
  StoreReplies(StoreConnections& connections, std::size_t reply_bytes_max, LogSink log,
               std::function<void()> first_unsent);

  void byte(ClientId to, std::uint8_t value) override;
  void number(ClientId to, std::int64_t value) override;
  void nonce(ClientId to, std::uint32_t value) override;
  void bytes(ClientId to, std::string_view value) override;
  void bytes(ClientId to, const Value& value) override;
  void given(ClientId to, const Value& value) override;
  void fields(ClientId to, std::string encoded) override;
  void close(ClientId client, std::string reason) override;
  void released(const Value& value) override;

  /// Who is to be refused since the last time, and why. One request refuses one client at most.
  [[nodiscard]] std::optional<std::pair<ClientId, std::string>> take_refusal() {
    return std::exchange(refusal_, std::nullopt);
  }

  /// Sends what the kernel takes of that session's answers, and looks after what it does not. `offered`: what has come
  /// of it already.
  void send(StoreSession& session, ReplyOffer offered = {});
  /// Some who have been answered since they were last flushed, each to be given to send(); nobody when there is nobody.
  /// Where they are many, what one call of the kernel takes has left already. Sessions are freed only when there is
  /// nobody. Valid until the next call.
  [[nodiscard]] std::span<const Answered> next_unsent();
  /// Enough to be sent in a row: the kernel's code for it stays in the cache. Those who leave with one call are a full
  /// batch; but values are not gathered, for they hold memory.
  [[nodiscard]] bool many_unsent() const {
    return unsent_.size() >= (batch_ ? SendBatch::size_max : answers_per_flush) || unsent_values_ >= answers_per_flush;
  }
  /// Calls that sent the answers of several sessions.
  [[nodiscard]] std::uint64_t batches() const { return batches_; }

 private:
  static constexpr std::size_t answers_per_flush = 16;

  std::string& buffer(ClientId to);
  void put(ClientId to, const Value& value, bool in_store);
  void offer_answered();
  bool leave_together(std::size_t count);
  void send_singly(const std::string& reason);
  void send_together();
  void offer(StoreSession& session, ReplyOffer& offered);
  void took(StoreSession& session, ssize_t sent, ReplyOffer& offered);

  StoreConnections& connections_;
  const std::size_t reply_bytes_max_;
  const LogSink log_;
  const std::function<void()> first_unsent_;
  std::optional<std::pair<ClientId, std::string>> refusal_;
  std::vector<std::uint32_t> unsent_;
  std::size_t flushed_ = 0;          ///< of unsent_
  std::size_t unsent_values_ = 0;    ///< that are sent from where they lie
  std::size_t unoffered_bytes_ = 0;  ///< of answers that the kernel was not asked to take
  std::string thrown_away_;
  std::vector<Answered> answered_;
  std::optional<SendBatch> batch_;
  std::size_t batch_min_ = 0;  ///< sessions
  std::uint64_t batches_ = 0;
};

}  // namespace torchup

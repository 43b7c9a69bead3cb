#pragma once

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
#include "rendezvous/net/store/store_connections.hpp"

namespace torchup {

/// The answers of a store's engine on their way to its clients.
class StoreReplies final : public StoreOutlet {
 public:
  /// `first_unsent` is called when there is something to be flushed and was not before.
  StoreReplies(StoreConnections& connections, std::size_t reply_bytes_max, std::function<void()> first_unsent)
      : connections_{connections}, reply_bytes_max_{reply_bytes_max}, first_unsent_{std::move(first_unsent)} {}

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

  /// Sends what the kernel takes of that session's answers, and looks after what it does not.
  void send(StoreSession& session);
  /// Somebody who has been answered since it was last flushed; null when there is nobody. Sessions are freed only when
  /// there is nobody.
  [[nodiscard]] StoreSession* next_unsent();
  /// The kernel's code for sending stays in the cache when some are sent to in a row.
  [[nodiscard]] bool many_unsent() const { return unsent_.size() >= answers_per_flush; }

 private:
  static constexpr std::size_t answers_per_flush = 16;

  struct Offered {
    bool progress, failed;
  };

  std::string& buffer(ClientId to);
  void put(ClientId to, const Value& value, bool in_store);
  void offer_answered();
  Offered offer(StoreSession& session);

  StoreConnections& connections_;
  const std::size_t reply_bytes_max_;
  const std::function<void()> first_unsent_;
  std::optional<std::pair<ClientId, std::string>> refusal_;
  std::vector<std::uint32_t> unsent_;
  std::size_t flushed_ = 0;          ///< of unsent_
  std::size_t unoffered_bytes_ = 0;  ///< of answers that the kernel was not asked to take
  std::string thrown_away_;
};

}  // namespace torchup

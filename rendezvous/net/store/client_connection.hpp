#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/store/store_codec.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "rendezvous/net/store/adaptive_spin.hpp"

/// What a blocking client of a store (store_client) sends and receives.
namespace torchup {

/// The bytes of one request. Large values stay where they are until it is sent.
class OutgoingRequest {
 public:
  OutgoingRequest() = default;
  explicit OutgoingRequest(Query first) { query(first); }

  void query(Query query) { put_byte(bytes_, static_cast<std::uint8_t>(query)); }
  void nonce(std::uint32_t nonce) { put_nonce(bytes_, nonce); }
  void key(std::string_view user_key) {
    put_number(bytes_, static_cast<std::int64_t>(user_key.size() + 1));
    bytes_ += '/';
    bytes_ += user_key;
  }
  void wire_key(std::string_view key) { put_bytes(bytes_, key); }
  void keys(std::span<const std::string> user_keys) {
    number(static_cast<std::int64_t>(user_keys.size()));
    for (const auto& each : user_keys) key(each);
  }
  void number(std::int64_t value) { put_number(bytes_, value); }
  void value(std::string_view value);

  [[nodiscard]] std::vector<iovec> pieces() const;

 private:
  std::string bytes_;
  std::vector<std::pair<std::size_t, std::string_view>> large_;  ///< and where in bytes_ they belong
};

/// One connection: sends requests, reads replies, both with a deadline. Anything that goes wrong breaks it for good.
class ClientConnection {
 public:
  /// `cancel`: as in StoreClientOptions.
  explicit ClientConnection(UniqueFd socket, int cancel = -1);

  Result<> send(const OutgoingRequest& request, TimePoint deadline);

  /// Begins to read a reply; `resume` goes on after a time-out.
  Result<> receive(const char* layout, std::size_t count, TimePoint deadline) {
    reader_.begin(layout, count);
    return resume(deadline);
  }
  Result<> resume(TimePoint deadline);
  /// What ends a wait for an answer as a time-out does: `descriptor` is readable. -1: nothing.
  void wake_by(int descriptor) { wake_ = descriptor; }
  [[nodiscard]] bool in_reply() const { return reader_.open(); }
  [[nodiscard]] FieldReader& reply() { return reader_; }

 private:
  Result<> wait_for(short events, TimePoint deadline);

  /// Receives once, into the large value that is being read and what follows it.
  Result<> fill(TimePoint deadline);

  UniqueFd socket_;
  int cancel_;
  int wake_ = -1;
  FieldReader reader_;
  std::vector<char> buffer_;
  std::string_view input_;  ///< of buffer_, what is not read yet
  AdaptiveSpin spin_;
};

}  // namespace torchup

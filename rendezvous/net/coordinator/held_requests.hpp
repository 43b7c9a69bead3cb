#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/store/store.hpp"
#include "rendezvous/net/io/counted_bytes.hpp"

namespace torchup {

/// Requests of a store's clients that wait for a moment of their meeting, all together; one that finds no room is
/// served at once.
inline constexpr std::size_t held_bytes_max = std::size_t{64} << 20;
/// And those of one client: room for two states of more nodes than torchrun can bring together.
inline constexpr std::size_t held_bytes_of_one_max = held_bytes_max / 32;

/// Bytes that count for one client, for as long as this lives, which may be longer than the client is there.
class BytesOfClient {
 public:
  BytesOfClient(std::shared_ptr<std::size_t> sum, std::size_t bytes) : sum_{std::move(sum)}, bytes_{bytes} {
    *sum_ += bytes_;
  }
  BytesOfClient(BytesOfClient&& other) noexcept = default;
  BytesOfClient& operator=(BytesOfClient&& other) noexcept {
    std::swap(sum_, other.sum_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~BytesOfClient() {
    if (sum_) *sum_ -= bytes_;
  }

 private:
  std::shared_ptr<std::size_t> sum_;
  std::size_t bytes_;
};

/// A request that has to wait.
struct HeldRequest {
  ClientId client;
  Query query;
  std::string key;
  std::vector<Value> values;
  CountedBytes memory;
  BytesOfClient memory_of_client;
  std::optional<TimePoint> since = {};
};

/// Counts them. Must outlive them.
class HeldRequests {
 public:
  /// Moves the request's values away. Nothing: there is no room.
  std::optional<HeldRequest> take(ClientId client, Request& request) {
    std::size_t bytes = sizeof(HeldRequest) + request.key.size();
    for (const Value& value : request.values) bytes += value.size();
    const auto& sum = by_client_.try_emplace(client, std::make_shared<std::size_t>(0)).first->second;
    if (bytes_ + bytes > held_bytes_max || *sum + bytes > held_bytes_of_one_max) return std::nullopt;
    CountedBytes memory{bytes_, bytes};
    BytesOfClient memory_of_client{sum, bytes};
    return HeldRequest{.client = client,
                       .query = request.query,
                       .key = std::string{request.key},
                       .values = std::move(request.values),
                       .memory = std::move(memory),
                       .memory_of_client = std::move(memory_of_client)};
  }
  /// The client is no more. False: it never asked for room.
  bool gone(ClientId client) { return by_client_.erase(client) > 0; }

 private:
  std::size_t bytes_ = 0;
  std::map<ClientId, std::shared_ptr<std::size_t>> by_client_;
};

}  // namespace torchup

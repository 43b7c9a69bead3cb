#pragma once

#include <memory>
#include <string>
#include <thread>

#include "launcher/core/diagnosis/preflight_codec.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/core/diagnosis/pair_plan.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

/// The way between two nodes, tried over TCP: round trips, then as many bytes as go in a short time, in one direction.
namespace torchup {

inline constexpr int pair_round_trips = 32;
inline constexpr std::int64_t pair_bytes_max = std::int64_t{64} << 20;
inline constexpr Duration pair_stream_limit = std::chrono::milliseconds{200};
inline constexpr Duration pair_answer_limit = std::chrono::seconds{3};  ///< for a connection, and for each answer on it

/// The end of pairs that others dial. Strangers are sent away by the secret. Blocks nobody: it has a thread of its own,
/// one pair at a time, and ends with it.
class PairEnd {
 public:
  /// On a free port of all addresses. Errors: the system's.
  [[nodiscard]] static Result<std::unique_ptr<PairEnd>> open();
  ~PairEnd();
  PairEnd(const PairEnd&) = delete;
  PairEnd& operator=(const PairEnd&) = delete;
  [[nodiscard]] Port port() const { return port_; }
  [[nodiscard]] const std::string& secret() const { return secret_; }

 private:
  PairEnd(UniqueFd listener, Port port, std::string secret);
  void serve();

  UniqueFd listener_;
  UniqueFd end_;  ///< an eventfd
  Port port_;
  const std::string secret_;
  std::thread thread_;
};

/// Tries the way to the other end. Blocks, for a few seconds at most.
[[nodiscard]] PairResult probe_pair(const NodePair& pair, const PairWay& other);

/// Our address on the way to that one, which is an address itself; empty: there is no way.
[[nodiscard]] std::string own_address_towards(const std::string& host, Port port);

}  // namespace torchup

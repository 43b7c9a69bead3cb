#pragma once

#include <chrono>
#include <memory>
#include <optional>
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
inline constexpr Duration pair_limit = std::chrono::seconds{5};  ///< for all of it, from the first packet to the last
/// How long one who dials may take to say the secret, and how many may be about to. A further one takes the place of
/// the oldest.
inline constexpr Duration pair_secret_limit = std::chrono::seconds{2};
inline constexpr std::size_t pair_strangers_max = 32;

/// The end of pairs that others dial. Strangers are sent away by the secret, and keep nobody waiting who knows it.
/// Blocks nobody: it has a thread of its own, one pair at a time, and ends with it at once.
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
  PairEnd(UniqueFd listener, UniqueFd end, Port port, std::string secret);

  UniqueFd listener_;
  UniqueFd end_;  ///< an eventfd
  Port port_;
  const std::string secret_;
  std::thread thread_;
};

/// Tries the way to the other end. Blocks, for pair_limit at most; `cancel`: a descriptor, readable as soon as nobody
/// wants the answer any more, -1: somebody always does.
[[nodiscard]] PairResult probe_pair(const NodePair& pair, const PairWay& other, int cancel = -1);

/// Likewise, of a way that was tried before; nothing where nobody listens at its other end any more.
[[nodiscard]] std::optional<PairResult> probe_again(const NodePair& pair, const PairWay& other, int cancel);

}  // namespace torchup

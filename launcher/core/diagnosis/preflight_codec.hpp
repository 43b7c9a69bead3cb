#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/diagnosis/preflight.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/core/diagnosis/pair_plan.hpp"

/// What nodes tell each other of themselves before a job, as bytes: made of the structures of
/// rendezvous/core/link/wire, and growing by the same rules.
namespace torchup {

[[nodiscard]] std::string encode_preflight(const NodePreflight& node);
/// Errors: errc::bad_frame, errc::limit_exceeded, as of an agent's frame.
[[nodiscard]] Result<NodePreflight> decode_preflight(std::string_view bytes);

/// Of the pairs that one node has tried: pair_matchings at most.
[[nodiscard]] std::string encode_pairs(const std::vector<PairResult>& results);
[[nodiscard]] Result<std::vector<PairResult>> decode_pairs(std::string_view bytes);

/// How the others of a round reach the end of a pair.
struct PairWay {
  std::string address = {};
  Port port{0};
  std::string secret = {};  ///< whoever knows it is of the job
  friend bool operator==(const PairWay&, const PairWay&) = default;
};
[[nodiscard]] std::string encode_way(const PairWay& way);
[[nodiscard]] Result<PairWay> decode_way(std::string_view bytes);

}  // namespace torchup

#pragma once

#include <span>
#include <string>

namespace torchup {

/// What one rank can do, as it tells the others.
struct BackendOffer {
  bool nccl = false;
  bool gloo = true;
  std::string gpu;  ///< its identity, the same wherever the same GPU is meant; empty: not to be compared

  friend bool operator==(const BackendOffer&, const BackendOffer&) = default;
};
std::string to_text(const BackendOffer& offer);
BackendOffer offer_from_text(const std::string& text);

struct BackendVote {
  std::string backend;  ///< "nccl" or "gloo"
  std::string why;      ///< why some rank's GPU is not used; empty: nothing to explain
};

/// The backend of a job with these ranks: nccl where all of them can and each has a GPU of its own, else gloo. Pure.
/// Throws Error when they cannot agree: it names the ranks and what each of them wants.
BackendVote vote_on_backend(std::span<const BackendOffer> by_rank);

}  // namespace torchup

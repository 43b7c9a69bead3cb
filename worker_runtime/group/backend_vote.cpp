#include "worker_runtime/group/backend_vote.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "worker_runtime/place/throw_error.hpp"

namespace torchup {
namespace {

/// The first two ranks that mean the same GPU, in words; empty: there are none.
std::string shared_gpu(std::span<const BackendOffer> by_rank) {
  std::map<std::string, std::size_t> owners;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank].gpu.empty()) continue;
    const auto [owner, fresh] = owners.try_emplace(by_rank[rank].gpu, rank);
    if (!fresh) return fmt::format("ranks {} and {} have the same GPU, {}", owner->second, rank, owner->first);
  }
  return "";
}

std::size_t first_without(std::span<const BackendOffer> by_rank, bool BackendOffer::*what) {
  return static_cast<std::size_t>(std::ranges::find(by_rank, false, what) - by_rank.begin());
}

}  // namespace

std::string to_text(const BackendOffer& offer) {
  return fmt::format("{}{}{}", offer.nccl ? 'n' : '-', offer.gloo ? 'g' : '-', offer.gpu);
}

BackendOffer offer_from_text(const std::string& text) {
  if (text.size() < 2) throw_error(fmt::format("a rank offers \"{}\", which is no offer of this release", text));
  return {.nccl = text[0] == 'n', .gloo = text[1] == 'g', .gpu = text.substr(2)};
}

BackendVote vote_on_backend(std::span<const BackendOffer> by_rank) {
  const std::size_t without_nccl = first_without(by_rank, &BackendOffer::nccl);
  const std::size_t without_gloo = first_without(by_rank, &BackendOffer::gloo);
  const bool nobody_has = std::ranges::none_of(by_rank, &BackendOffer::nccl);
  const std::string shared = without_nccl == by_rank.size() ? shared_gpu(by_rank) : "";
  if (without_nccl == by_rank.size() && shared.empty()) return {.backend = "nccl", .why = ""};
  if (without_gloo == by_rank.size()) {
    if (nobody_has) return {.backend = "gloo", .why = ""};
    return {.backend = "gloo",
            .why = shared.empty() ? fmt::format("rank {} has no GPU of its own", without_nccl) : shared};
  }
  if (!shared.empty()) throw_error(fmt::format("backend nccl: {}; start one process per GPU, or use gloo", shared));
  throw_error(
      fmt::format("the ranks do not agree: rank {} takes only nccl, rank {} cannot; start all of them with the "
                  "same backend, one process per GPU",
                  without_gloo, without_nccl));
}

}  // namespace torchup

#include "rendezvous/core/diagnosis/gathered_looks.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/core/diagnosis/look_parts.hpp"

namespace torchup {
namespace {

bool waits(const RankLook& look) {
  return look.in_p2p || std::ranges::any_of(look.collectives, [](const Collective& call) { return !call.finished; });
}

/// What keeps a look, beside its bytes.
constexpr std::size_t look_entry_bytes = 112;

}  // namespace

GatheredLooks::GatheredLooks(int world_size, std::size_t bytes_max)
    : world_size_{std::clamp(world_size, 0, looked_ranks_max)}, bytes_max_{bytes_max} {}

Result<void> GatheredLooks::add(const NodeRanks& node, std::string_view part) {
  const auto split = split_part(part);
  if (!split) return split.error();
  for (const std::string_view bytes : *split) {
    auto look = decode_look(bytes);
    if (!look) continue;
    const int rank = look->rank.value(), local = rank - node.first_rank.value();
    if (local < 0 || local >= node.workers || rank >= world_size_ || kept_.contains(rank)) continue;
    progressed_ = progressed_ || look->progressed;
    if (cut_ == Cut::ranks) continue;
    keep(rank, may_keep_whole(*look) ? std::string{bytes} : encode_look(without_stack(*look)));
  }
  return {};
}

bool GatheredLooks::may_keep_whole(const RankLook& look) const {
  return cut_ == Cut::nothing || (cut_ == Cut::waiting && !waits(look));
}

void GatheredLooks::keep(int rank, std::string bytes) {
  bytes_ += look_entry_bytes + bytes.size();
  kept_.emplace(rank, std::move(bytes));
  while (bytes_ > bytes_max_ && cut_ != Cut::ranks) cut_more();
  if (bytes_ <= bytes_max_) return;
  bytes_ -= look_entry_bytes + kept_.at(rank).size();
  kept_.erase(rank);
}

void GatheredLooks::cut_more() {
  cut_ = static_cast<Cut>(static_cast<int>(cut_) + 1);
  if (cut_ == Cut::ranks) return;
  for (auto& [_, bytes] : kept_) {
    auto look = decode_look(bytes);
    if (!look || may_keep_whole(*look)) continue;
    std::string less = encode_look(without_stack(std::move(*look)));
    bytes_ = bytes_ - bytes.size() + less.size();
    bytes = std::move(less);
  }
}

std::optional<RankLook> GatheredLooks::look(Rank rank) const {
  const auto kept = kept_.find(rank.value());
  if (kept == kept_.end()) return std::nullopt;
  auto look = decode_look(kept->second);
  if (!look) return std::nullopt;
  return std::move(*look);
}

}  // namespace torchup

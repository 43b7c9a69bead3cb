#include "rendezvous/core/diagnosis/gathered_looks.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/core/diagnosis/look_parts.hpp"

namespace torchup {
namespace {

bool waits(const RankLook& look) {
  return look.in_p2p || std::ranges::any_of(look.collectives, [](const Collective& call) { return !call.finished; });
}

std::size_t size_of(int world_size) { return static_cast<std::size_t>(std::clamp(world_size, 0, looked_ranks_max)); }

}  // namespace

GatheredLooks::GatheredLooks(int world_size, std::size_t bytes_max)
    : kept_(size_of(world_size)), bytes_max_{bytes_max}, bytes_{kept_.size() * sizeof(std::string)} {}

Result<void> GatheredLooks::add(const NodeRanks& node, std::string_view part) {
  const auto split = split_part(part);
  if (!split) return split.error();
  for (const std::string_view bytes : *split) {
    auto look = decode_look(bytes);
    if (!look) return look.error();
    const int local = look->rank.value() - node.first_rank.value();
    const auto rank = static_cast<std::size_t>(look->rank.value());
    if (local < 0 || local >= node.workers || rank >= kept_.size() || !kept_[rank].empty()) continue;
    if (cut_ == Cut::ranks) continue;
    progressed_ = progressed_ || look->progressed;
    keep(rank, may_keep_whole(*look) ? std::string{bytes} : encode_look(without_stack(*look)));
  }
  return {};
}

bool GatheredLooks::may_keep_whole(const RankLook& look) const {
  return cut_ == Cut::nothing || (cut_ == Cut::waiting && !waits(look));
}

void GatheredLooks::keep(std::size_t rank, std::string bytes) {
  bytes_ = bytes_ - kept_[rank].size() + bytes.size();
  kept_[rank] = std::move(bytes);
  while (bytes_ > bytes_max_ && cut_ != Cut::ranks) cut_more();
  if (bytes_ <= bytes_max_) return;
  bytes_ -= kept_[rank].size();
  kept_[rank] = {};
}

void GatheredLooks::cut_more() {
  cut_ = static_cast<Cut>(static_cast<int>(cut_) + 1);
  if (cut_ == Cut::ranks) return;
  for (std::string& bytes : kept_) {
    if (bytes.empty()) continue;
    auto look = decode_look(bytes);
    if (!look || may_keep_whole(*look)) continue;
    std::string less = encode_look(without_stack(std::move(*look)));
    bytes_ = bytes_ - bytes.size() + less.size();
    bytes = std::move(less);
  }
}

std::optional<RankLook> GatheredLooks::look(Rank rank) const {
  if (rank.value() < 0 || static_cast<std::size_t>(rank.value()) >= kept_.size()) return std::nullopt;
  const std::string& bytes = kept_[static_cast<std::size_t>(rank.value())];
  if (bytes.empty()) return std::nullopt;
  auto look = decode_look(bytes);
  if (!look) return std::nullopt;
  return std::move(*look);
}

}  // namespace torchup

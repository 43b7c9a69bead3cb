#include "rendezvous/core/torchrun/mixed_static.hpp"

namespace torchup {

void MixedStatic::enter(Id id, std::string address, std::int64_t) {
  parts_[id].plays =
      std::make_unique<TorchrunStatic>(TorchrunStatic::Settings{.run_id = run_id_, .address = std::move(address)});
}

void MixedStatic::said(Id id, const AgentMessage& message, TimePoint now) {
  const auto part = parts_.find(id);
  if (part == parts_.end()) return;
  part->second.turn_at.reset();
  part->second.plays->said(message, now);
}

Result<std::vector<MixedParts::Told>> MixedStatic::turn(TorchrunStore& store, TimePoint now, UtcTime utc) {
  std::vector<Told> told;
  for (auto& [id, part] : parts_) {
    if (part.turn_at && now < *part.turn_at) continue;
    auto messages = part.plays->turn(store, now, utc);
    if (!messages) return messages.error();
    part.turn_at = now + part.plays->pace();
    for (CoordinatorMessage& message : *messages) told.push_back({id, std::move(message)});
  }
  std::erase_if(parts_, [](const auto& entry) { return entry.second.plays->over(); });
  return told;
}

bool MixedStatic::over(Id id) const {
  const auto part = parts_.find(id);
  return part == parts_.end() || part->second.plays->over();
}

Round MixedStatic::round(Id id) const {
  const auto part = parts_.find(id);
  return part == parts_.end() ? Round{0} : part->second.plays->round();
}

void MixedStatic::slept(TimePoint now, Duration) {
  for (auto& [id, part] : parts_) part.plays->slept(now);
}

std::size_t MixedStatic::held_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [id, part] : parts_) bytes += part.plays->held_bytes();
  return bytes;
}

}  // namespace torchup

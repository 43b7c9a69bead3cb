#include "rendezvous/core/port/strangers.hpp"

namespace torchup {

std::optional<strangers::Drop> Strangers::step(const strangers::Event& event) {
  std::visit([this](const auto& happened) { on(happened); }, event);
  const bool full = all_.size() > most_ || std::holds_alternative<strangers::NoDescriptor>(event);
  if (!full || order_.empty()) return std::nullopt;
  const StrangerId who = order_.begin()->first;
  on(strangers::Settled{who});
  return strangers::Drop{who};
}

void Strangers::on(const strangers::Came& event) {
  const auto crowd = crowds_.try_emplace(event.from).first;
  if (all_.emplace(event.who, crowd).second) change(crowd, event.who, true);
}

void Strangers::on(const strangers::Settled& event) {
  const auto found = all_.find(event.who);
  if (found == all_.end()) return;
  const auto crowd = found->second;
  all_.erase(found);
  change(crowd, event.who, false);
  if (crowd->second.empty()) crowds_.erase(crowd);
}

void Strangers::change(Crowds::iterator crowd, StrangerId who, bool comes) {
  Crowd& ids = crowd->second;
  if (!ids.empty()) order_.erase(Place{ids.size(), *ids.begin(), crowd});
  comes ? static_cast<void>(ids.insert(who)) : static_cast<void>(ids.erase(who));
  if (!ids.empty()) order_.insert(Place{ids.size(), *ids.begin(), crowd});
}

}  // namespace torchup

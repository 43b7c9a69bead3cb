#include "rendezvous/core/torchrun/torchrun_place.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rendezvous/core/text/endpoint.hpp"

namespace torchup {

void TorchrunPlace::begin(std::int64_t round, const std::vector<TorchrunNode>& members, TorchrunStore& store) {
  const auto has_part = [&](const Owned& owned) { return std::ranges::count(members, owned.owner) > 0; };
  round_ = round;
  members_ = members;
  offered_address_.clear();
  emptying_.reset();
  if (common_) {
    offered_.reset();
    if (!adopted_) return;
    const auto place = store.common_place();
    if (!place || !*place) return notes_.push_back(place ? "there is no common place" : place.error().message());
    publish(**place, store);
    emptying_ = **place;
    return turn(store);
  }
  if (offered_ && !has_part(*offered_)) offered_.reset();
  if (kept_ && !has_part(*kept_)) {
    notes_.push_back(
        fmt::format("node {}, on which the workers met, is lost; torchrun's agents of earlier rounds "
                    "remember its address and cannot be told another (torchupd --torchrun-store=here "
                    "avoids it)",
                    shown(kept_->owner)));
    kept_.reset();
  }
  if (!kept_) return;
  publish(kept_->place, store);
  emptying_ = kept_->place;
  turn(store);
}

bool TorchrunPlace::withholds(std::int64_t round, std::string_view name, std::string_view value) {
  if (round != round_) return false;
  const bool published = common_ ? adopted_ : kept_.has_value();  // already, by us
  if (name == torchrun_key::master_address) {
    offered_address_ = value;
    return common_ || published;
  }
  if (name != torchrun_key::master_port || offered_address_.empty()) return false;
  if (published) return true;
  auto place = read_place(offered_address_, std::string{value});
  if (!place || members_.empty()) return false;
  offered_ = Owned{members_.front(), *std::move(place)};
  offered_in_ = round;
  return common_;
}

void TorchrunPlace::published_by_ours(std::int64_t round, std::string_view name, std::string_view value) {
  if (common_ || kept_ || round != round_ || members_.empty()) return;
  if (name == torchrun_key::master_address) offered_address_ = value;
  const auto port = name == torchrun_key::master_port ? read_port(value) : std::nullopt;
  if (port) kept_ = Owned{members_.front(), {offered_address_, *port}};
}

std::optional<MeetingPlace> TorchrunPlace::question() const {
  return offered_ ? std::optional{offered_->place} : std::nullopt;
}

void TorchrunPlace::answered(const MeetingPlace& about, bool answers, TorchrunStore& store) {
  if (!offered_ || offered_->place != about) return;
  const Owned offer = *std::exchange(offered_, std::nullopt);
  if (common_) return answered_for_common(answers, offer.place, store);
  if (!answers || kept_) return;
  kept_ = offer;
  if (offered_in_ != round_) publish(offer.place, store);  // newcomers wait for it
}

void TorchrunPlace::answered_for_common(bool answers, const MeetingPlace& theirs, TorchrunStore& store) {
  std::optional<MeetingPlace> ours;
  if (answers) {
    auto place = store.common_place();
    if (!place) notes_.push_back(place.error().message());
    if (place) ours = *place;
  }
  adopted_ = ours.has_value();
  publish(ours.value_or(theirs), store);
  notes_.push_back(ours ? fmt::format("the workers of torchrun's agents meet at our store, port {}", ours->port.value())
                        : fmt::format("the workers' store at {} is a worker's own: left as it is", theirs.address));
}

void TorchrunPlace::turn(TorchrunStore& store) {
  if (emptying_ && store.empty(*emptying_, round_)) emptying_.reset();
}

void TorchrunPlace::publish(const MeetingPlace& place, TorchrunStore& store) {
  const auto set = [&](const char* name, const std::string& value) {
    if (auto done = store.set(torchrun_round_key(run_id_, round_, name), value); !done)
      notes_.push_back(done.error().message());
  };
  set(torchrun_key::master_address, place.address);
  set(torchrun_key::master_port, fmt::format("{}", place.port.value()));
}

}  // namespace torchup

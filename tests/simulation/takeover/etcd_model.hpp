#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../world.hpp"
#include "rendezvous/core/link/messages.hpp"

namespace torchup::simulation {

/// etcd as its users may rely on it: what is asked is done at one moment or not at all, in one order for all. It may be
/// away for all or for some, be slow, lose an answer to what it has done, do what was asked after the asker gave up,
/// and revoke a lease for no reason.
class EtcdModel {
 public:
  struct Seat {
    std::size_t node = 0;  ///< who has it
    std::int64_t term = 0;
    std::int64_t lease = 0;
    std::string agent = {};
  };
  struct State {
    std::string bytes = {};
    std::uint64_t serial = 0;
    std::int64_t changed = 0;
    std::optional<Verdict> verdict = {};
  };

  EtcdModel(World& world, std::size_t nodes) : world_{world}, reaches_(nodes, true) {}

  /// `done_there` is done by etcd; `answered` by the asker, with whether it has heard of it.
  void ask(std::size_t node, Process& asker, std::function<void()> done_there, std::function<void(bool)> answered) {
    const bool away = !up_ || !reaches_[node];
    const bool refused = away && world_.one_in(2);
    auto heard = std::make_shared<bool>(false);
    const auto answer = [&asker, answered = std::move(answered), heard](bool well) {
      if (!std::exchange(*heard, true)) asker.run([answered, well] { answered(well); });
    };
    if (refused) return world_.after(world_.milliseconds(1, 5), [answer] { answer(false); });
    world_.after(2s, [answer] { answer(false); });
    if (away && !world_.one_in(8)) return;  // else it is done much later
    const Duration way = away ? world_.milliseconds(1000, 6000) : world_.milliseconds(1, world_.one_in(10) ? 900 : 8);
    world_.after(way, [this, node, done_there = std::move(done_there), answer] {
      if (!up_) return;
      expire();
      done_there();
      if (world_.one_in(20)) return;  // its answer is lost
      world_.after(world_.milliseconds(1, 8), [this, node, answer] {
        if (up_ && reaches_[node]) answer(true);
      });
    });
  }

  // What is done there.
  std::int64_t grant(Duration ttl) {
    leases_[++lease_count_] = {ttl, world_.now() + ttl};
    return lease_count_;
  }
  bool renew(std::int64_t lease) {
    const auto found = leases_.find(lease);
    if (found == leases_.end()) return false;
    found->second.second = world_.now() + found->second.first;
    return true;
  }
  void revoke(std::int64_t lease) {
    leases_.erase(lease);
    if (seat_ && seat_->lease == lease) vacate();
  }
  bool take(std::int64_t was, Seat seat) {
    if ((seat_ ? seat_->term : 0) != was || !leases_.contains(seat.lease)) return false;
    seat.term = ++revision_;
    seat_ = std::move(seat);
    return true;
  }
  void vacate_of(std::int64_t term) {
    if (seat_ && seat_->term == term) vacate();
  }
  bool write(std::int64_t term, std::int64_t head, std::uint64_t serial, const std::string& bytes,
             const std::optional<Verdict>& verdict) {
    if (!seat_ || seat_->term != term || (state_ ? state_->changed : 0) != head) return false;
    state_ = State{bytes, serial, ++revision_, verdict};
    return true;
  }
  [[nodiscard]] const std::optional<Seat>& seat() const { return seat_; }
  [[nodiscard]] const std::optional<State>& state() const { return state_; }
  [[nodiscard]] std::int64_t revision() const { return revision_; }

  // Faults.
  void set_up(bool up) {
    if (up && !up_) {
      for (auto& [id, lease] : leases_) lease.second = world_.now() + lease.first;  // from the election on
    }
    up_ = up;
  }
  void set_reaches(std::size_t node, bool reaches) { reaches_[node] = reaches; }
  /// Somebody deletes the seat, or its lease is revoked though it was renewed.
  void vacate() {
    if (!seat_) return;
    seat_.reset();
    ++revision_;
  }

 private:
  void expire() {
    std::erase_if(leases_, [this](const auto& entry) {
      if (entry.second.second > world_.now()) return false;
      if (seat_ && seat_->lease == entry.first) vacate();
      return true;
    });
  }

  World& world_;
  std::vector<bool> reaches_;
  bool up_ = true;
  std::int64_t revision_ = 1, lease_count_ = 0;
  std::map<std::int64_t, std::pair<Duration, TimePoint>> leases_;
  std::optional<Seat> seat_;
  std::optional<State> state_;
};

}  // namespace torchup::simulation

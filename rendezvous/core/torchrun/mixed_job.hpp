#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/core/membership/membership.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "rendezvous/core/torchrun/torchrun_part.hpp"

namespace torchup {

/// A job that torchrun's agents and ours share, where coordinator and store are ours: for each of our agents a
/// part in torchrun's rendezvous (core/torchrun_part). They go on speaking our language and notice nothing.
///
/// As long as all agents are ours, the round machine decides; this takes over from it. Who of our agents belongs to the
/// job is Membership's matter here as there, with the same leases. When rounds form is torchrun's rule, and what is
/// done beyond that is decided by core/torchrun_care alone.
class MixedJob {
 public:
  explicit MixedJob(RunId run_id) : run_id_{std::move(run_id)} {}

  // Before the job is mixed.

  /// Whether the nodes of that job have their group ranks by --node-rank: torchrun's agents then meet without a shared
  /// state.
  [[nodiscard]] static bool is_static(const Rendezvous& pure);
  /// Whether a torchrun agent waits at the store, and there is room for it.
  [[nodiscard]] bool wanted(TorchrunStore& store, const Rendezvous& pure);
  /// From here on this job is decided here. Rounds that run are stopped.
  [[nodiscard]] std::vector<RendezvousAction> begin(const Rendezvous& pure, TimePoint now);

  // From then on.

  [[nodiscard]] bool active() const { return active_; }
  /// As Rendezvous::step. To be called with Tick at least every 100 ms.
  [[nodiscard]] std::vector<RendezvousAction> step(const RendezvousEvent& event, TorchrunStore& store, TimePoint now,
                                                   UtcTime utc);
  [[nodiscard]] const std::optional<Verdict>& verdict() const { return verdict_; }
  [[nodiscard]] int member_count() const { return members_.size(); }
  /// Whether no agent of ours has a part any more. Who of torchrun's still has one in a static rendezvous does not
  /// show: that is not left.
  [[nodiscard]] bool left_by_ours() const { return active_ && !static_ && members_.empty() && leaving_.empty(); }
  /// What a next job of the same run id begins with: the verdict, for those of ours who have not heard it yet.
  [[nodiscard]] JobSnapshot past(Duration verdict_kept) const;

 private:
  using Slot = Membership::Slot;
  /// What one agent of ours has in torchrun's rendezvous.
  struct Part {
    std::unique_ptr<TorchrunPart> plays = {};
    std::optional<TimePoint> turn_at = {};
    std::optional<CoordinatorMessage> last = {};  ///< what its agent was told last, Waiting aside
    bool leaves_alone = false;
  };

  void on(const Connected& event, TimePoint);
  void on(const Said& event, TimePoint now);
  void on(const Resumed& event, TimePoint now);
  void on(const Alive& event, TimePoint now);
  void on(const Gone& event, TimePoint now);
  void on(const Tick&, TimePoint) {}

  void join(Peer peer, const Join& join, TimePoint now);
  [[nodiscard]] std::optional<std::string> misfit(const Join& join, std::optional<Slot> known) const;
  [[nodiscard]] std::unique_ptr<TorchrunPart> part_for(const Join& join, const Membership::Connection& connection);
  void tell_given_up(Peer peer, const NodeId& node, Round round, std::string why);
  void refuse(Peer peer, const std::string& host, const std::string& why);
  void grant_leases(TimePoint now);
  void expire(TimePoint now);
  void give_up(Slot slot, const std::string& why, TimePoint now);
  void take_turns(TorchrunStore& store, TimePoint now, UtcTime utc);
  void take_turn(Part& part, std::optional<Slot> slot, TorchrunStore& store, TimePoint now, UtcTime utc);
  void tell(Slot slot, CoordinatorMessage message);
  [[nodiscard]] static std::string address_of(const Join& join, const Membership::Connection& connection);
  void note(Note note) { actions_.emplace_back(std::move(note)); }

  RunId run_id_;
  bool active_ = false;
  std::optional<std::size_t> refused_;  ///< hash of the text at the store in which nobody waits
  bool static_ = false;
  std::optional<JobTerms> terms_;  ///< the job's
  Membership members_{LossLimits{}};
  std::map<Slot, Part> parts_;
  std::vector<Part> leaving_;  ///< of agents that are members no more: their place in torchrun's state is to be freed
  TimePoint now_{};            ///< of the last step
  std::int64_t next_number_ = 0;
  std::optional<Verdict> verdict_;  ///< that ends it for all
  std::optional<Verdict> outcome_;  ///< how it ended for the first whose end was the job's
  Round last_round_{0};             ///< that ours had a place in
  std::vector<RendezvousAction> actions_;
};

}  // namespace torchup

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/core/membership/membership.hpp"
#include "rendezvous/core/membership/standing.hpp"
#include "rendezvous/core/round/job_view.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "rendezvous/core/torchrun/mixed_parts.hpp"

namespace torchup {

/// A job that torchrun's agents and ours share, where coordinator and store are ours. Our agents go on speaking our
/// language and notice nothing.
///
/// As long as all agents are ours, the round machine decides; this takes over from it, with all that the job's agents
/// are known by, and gives it back when the job is over. Who of our agents belongs to the job, and who is heard, is
/// decided by Membership and core/membership/standing for both. What those do among torchrun's is decided by MixedRound
/// for all of them; what is done beyond torchrun's rules, by core/torchrun_care.
class MixedJob {
 public:
  explicit MixedJob(RunId run_id) : run_id_{std::move(run_id)} {}

  // Before the job is mixed.

  /// Whether the nodes of that job have their group ranks by --node-rank: torchrun's agents then meet without a shared
  /// state.
  [[nodiscard]] static bool is_static(const Rendezvous& pure);
  /// Whether a torchrun agent waits at the store, and there is room for it.
  [[nodiscard]] bool wanted(TorchrunStore& store, const Rendezvous& pure);
  /// From here on this job is decided here. A round that runs is stopped.
  [[nodiscard]] std::vector<RendezvousAction> begin(const Rendezvous& pure, TimePoint now);

  // From then on.

  [[nodiscard]] bool active() const { return active_; }
  /// As Rendezvous::step. To be called with Tick at least every 100 ms.
  [[nodiscard]] std::vector<RendezvousAction> step(const RendezvousEvent& event, TorchrunStore& store, TimePoint now,
                                                   UtcTime utc);
  /// As Rendezvous::answer: the job's end can be ordered, nothing else.
  [[nodiscard]] OrderAnswer answer(const Order& order) const;
  [[nodiscard]] const std::optional<Verdict>& verdict() const { return verdict_; }
  /// Of our agents what torchrun's state does not say of them: which node each is, and its workers.
  [[nodiscard]] std::map<TorchrunNode, JobView::Node> ours() const;
  [[nodiscard]] int member_count() const { return members_.size(); }
  [[nodiscard]] const Membership& members() const { return members_; }
  /// As Rendezvous::held_bytes.
  [[nodiscard]] std::size_t held_bytes() const;
  /// Whether no agent of ours has a part any more, and none is to get one. `attended`: an agent of torchrun's is there
  /// still: where the job has not ended, it goes on with those. In a static rendezvous it cannot: the store is that of
  /// group rank 0's agent, which is ours.
  [[nodiscard]] bool over(bool attended) const;

  struct Rest {
    JobPeople people;
    std::optional<Verdict> verdict;  ///< for those of ours who have not heard it yet; nothing: all left by themselves
    std::vector<Said> early;         ///< by agents of the next job
  };
  /// The job is over: whatever comes next, the round machine decides. What it left in the store for a static rendezvous
  /// is removed, as it goes with torchrun's store when group rank 0 ends.
  [[nodiscard]] Rest give_back(TorchrunStore& store);

 private:
  using Slot = Membership::Slot;
  /// What one agent of ours has in torchrun's rendezvous.
  struct Part {
    MixedParts::Id id = 0;
    std::optional<CoordinatorMessage> last = {};  ///< what its agent was told last, Waiting aside
    std::optional<Rank> first_rank = {};          ///< in the round that it was placed in last
    bool leaves_alone = false;
  };

  void on(const Connected& event, TimePoint);
  void on(const Said& event, TimePoint now);
  void on(const Resumed& event, TimePoint now);
  void on(const Alive& event, TimePoint now);
  void on(const Gone& event, TimePoint now);
  void on(const Foretold&, TimePoint) {}
  void on(const Ordered& event, TimePoint now);
  void on(const Tick&, TimePoint) {}

  void join(Peer peer, const Join& join, TimePoint now);
  void enter(Peer peer, const Join& join, std::optional<Slot> known, TimePoint now);
  void bind(Slot slot, Peer peer, TimePoint now);
  void take_part(Slot slot, const Join& join, TimePoint now);
  [[nodiscard]] std::optional<std::string> misfit(const Join& join, std::optional<Slot> replaced) const;
  void refuse(Peer peer, const std::string& host, const std::string& why);
  void grant_leases(TimePoint now);
  void expire(TimePoint now);
  void expel(Slot slot, const std::string& why, TimePoint now);
  void give_up(Slot slot, const std::string& why, TimePoint now);
  void note_lost(Slot slot, const std::string& why, TimePoint now);
  void take_turn(TorchrunStore& store, TimePoint now, UtcTime utc);
  void hear(MixedParts::Told told);
  Verdict conclude(Verdict verdict);
  void tell(Slot slot, CoordinatorMessage message);
  [[nodiscard]] Part* part_of(Peer peer);
  [[nodiscard]] const Part* part_that_lives() const;
  [[nodiscard]] PastJobs past();
  [[nodiscard]] static std::string address_of(const Member& member);
  void note(Note note) { actions_.emplace_back(std::move(note)); }

  RunId run_id_;
  bool active_ = false;
  std::optional<std::size_t> refused_;  ///< hash of the text at the store in which nobody waits
  bool static_ = false;
  std::optional<JobTerms> terms_;  ///< the job's
  std::vector<Fact> facts_;
  Membership members_{LossLimits{}};
  EndedJobs ended_;
  LostAgents lost_agents_;
  std::unique_ptr<MixedParts> plays_;  ///< theirs, while the job is mixed
  std::map<Slot, Part> parts_;
  std::vector<Said> early_;               ///< that begin the next job
  TimePoint now_{};                       ///< of the last step
  std::optional<TimePoint> slept_until_;  ///< ourselves, lately
  MixedParts::Id next_id_ = 0;
  std::optional<Verdict> verdict_;  ///< that ends it for all
  std::optional<Verdict> outcome_;  ///< how it ended for the first whose end was the job's
  Round last_round_{0};             ///< that ours had a place in
  std::vector<RendezvousAction> actions_;
};

}  // namespace torchup

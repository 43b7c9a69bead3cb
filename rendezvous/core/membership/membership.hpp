#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rendezvous/base/shared.hpp"
#include "rendezvous/base/strong.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/membership/job_snapshot.hpp"
#include "rendezvous/core/membership/loss_record.hpp"
#include "rendezvous/core/membership/seating.hpp"

namespace torchup {

/// One connection of an agent, numbered by the shell. A number may be used again once its connection is closed.
using Peer = Strong<struct PeerTag, std::uint32_t>;

/// What is kept of a join, and shared with each snapshot of the job: all but the terms, which are the job's, and the
/// former place, which is history.
[[nodiscard]] Join as_kept(Join join);

/// One agent that belongs to a job.
struct Member {
  using Stage = JobSnapshot::Stage;

  Shared<Join> join = {};  ///< the last one, as it is kept
  Duration lease = {};
  Stage stage = Stage::ready;
  bool aside = false;    ///< its host was lost too often lately
  bool drained = false;  ///< it is ordered to have no workers; see Membership::set_drained
  bool in_process = false;
  std::optional<Peer> peer = {};  ///< empty while its connection is cut
  std::uint64_t connection = 0;   ///< number of the last one; what an older one still brings was said before
  std::string observed = {};
  std::string reached = {};  ///< address by which it reached us
  TimePoint alive_at = {};
  std::optional<TimePoint> back_by = {};   ///< the same, after the coordinator started anew; no lease runs meanwhile
  std::uint64_t seniority = 0;             ///< smaller joined earlier
  Seat seat = {};                          ///< in Stage::seated and Stage::finished, else in `round`
  std::optional<Round> round = {};         ///< the last one that it had a place in, as far as it was heard of here
  std::optional<TimePoint> check_at = {};  ///< Membership's own
  std::optional<TimePoint> calm_at = {};   ///< Membership's own

  [[nodiscard]] bool in_round() const { return stage == Stage::seated || stage == Stage::finished; }
  [[nodiscard]] bool is_fit() const { return join->unfit.empty(); }
  /// A next round may have it.
  [[nodiscard]] bool is_candidate() const { return is_fit() && !drained; }
  /// It never will be fit, and there is to be no job without it.
  [[nodiscard]] bool is_missed() const { return !is_fit() && join->needed; }
};

/// Who belongs to a job: its members by slot, node and host, the connections they speak by, how many there are of each
/// stage, and until when each may stay silent. What the loss of one means is not decided here.
class Membership {
 public:
  using Slot = std::uint32_t;
  using Stage = JobSnapshot::Stage;

  struct Connection {
    bool open = false;
    bool in_process = false;
    std::optional<Slot> member = {};
    std::optional<std::uint64_t> ended_job = {};  ///< EndedJobs's number, where its member was of a job that is over
    std::optional<NodeId> given_up = {};          ///< see give_up
    std::string observed = {};                    ///< address that it comes from
    std::string reached = {};                     ///< address by which it reached us
    std::uint64_t number = 0;                     ///< in the order of their beginnings
  };

  explicit Membership(LossLimits limits) : losses_{limits} {}

  /// Members as a snapshot has them: each has until `back_by` to speak again.
  void restore(const JobSnapshot& saved, TimePoint back_by, TimePoint now);
  /// Writes what `restore` reads: members, those of the round first, and losses.
  void save(JobSnapshot& snapshot, TimePoint now) const;
  /// Another number whenever what `save` writes has changed in more than the passing of time.
  [[nodiscard]] std::uint64_t revision() const { return revision_; }

  // Connections.

  void open(Peer peer, std::string observed, std::string reached, bool in_process);
  /// A member whose connection has closed.
  struct Parting {
    Slot slot = 0;
    bool has_ended = false;  ///< its process: it is no part of the job any more
    Duration left{};         ///< else it may come back for so long
  };
  /// The member that spoke by it has no connection from here on. Only the end of the stream tells that its process has
  /// ended. A reset proves nothing: something between us may have sent it, to us alone. The agent may have noticed
  /// nothing, and then keeps its workers until its own clock says that its lease is over.
  std::optional<Parting> close(Peer peer, bool end_of_file, TimePoint now);
  /// That node is a member no more, and what the agent is told by `peer`, for the round that it may be in. It comes
  /// back as another; what is heard later of this one, it said before it knew.
  [[nodiscard]] StopWorkers give_up(Peer peer, const NodeId& node, Round round, std::string why);
  [[nodiscard]] Connection& connection(Peer peer) { return connections_.at(peer.value()); }
  [[nodiscard]] const Connection& connection(Peer peer) const { return connections_.at(peer.value()); }
  [[nodiscard]] const std::vector<Connection>& connections() const { return connections_; }

  // Members.

  [[nodiscard]] Member& at(Slot slot) { return members_.at(slot); }
  [[nodiscard]] const Member& at(Slot slot) const { return members_.at(slot); }
  [[nodiscard]] Member* of(Peer peer);
  /// The member that is `node`. It mostly speaks by the connection that is its own.
  [[nodiscard]] std::optional<Slot> find(Peer peer, const NodeId& node) const;
  /// An agent that doubts its connection opens another and restates itself there. What was under way on the first may
  /// arrive after that.
  [[nodiscard]] bool outdated(Peer peer, std::optional<Slot> slot) const;
  /// Whether the member is an agent that is heard by another connection. One that comes back says Resume: a Join by
  /// `peer` is another agent's, which has the same node id.
  [[nodiscard]] bool speaks_elsewhere(const Member& member, Peer peer, TimePoint now) const;
  /// The member for which that connection has spoken, and will not when it speaks for `slot`: the agent is another now.
  [[nodiscard]] std::optional<Slot> displaced(Peer peer, std::optional<Slot> slot) const;
  /// Whose place a newcomer takes at once: a node that starts again, whose former life may be silent for long yet.
  [[nodiscard]] std::optional<Slot> replaced_by(const Join& join, TimePoint now) const;
  /// By node.
  [[nodiscard]] const std::unordered_map<std::string, Slot>& slots() const { return slot_of_node_; }
  [[nodiscard]] bool has_host(const std::string& host) const { return slots_of_host_.contains(host); }
  /// Those that have said this Join::group_rank, as a range of entries whose second is the slot.
  [[nodiscard]] auto with_group_rank(GroupRank rank) const { return slots_of_rank_.equal_range(rank.value()); }

  [[nodiscard]] int size() const { return static_cast<int>(slot_of_node_.size()); }
  [[nodiscard]] bool empty() const { return slot_of_node_.empty(); }
  [[nodiscard]] int ready() const { return ready_; }      ///< those drained, those aside and those unfit apart
  [[nodiscard]] int drained() const { return drained_; }  ///< of those that are ready, unfit or not
  [[nodiscard]] int unfit() const { return unfit_; }      ///< the same, aside or not
  [[nodiscard]] int missed() const { return missed_; }    ///< of those that are unfit: see Member::is_missed
  [[nodiscard]] int aside() const { return aside_; }
  [[nodiscard]] int stopping() const { return stopping_; }
  [[nodiscard]] int seated() const { return seated_; }
  [[nodiscard]] int awaited() const { return awaited_; }  ///< members of the snapshot that are not back yet
  /// Of what they said when they joined, and of losses.
  [[nodiscard]] std::size_t held_bytes() const { return held_bytes_ + losses_.held_bytes(); }
  [[nodiscard]] int leaving() const { return leaving_; }  ///< open connections of members of jobs that have ended

  /// A new member, which speaks by `peer`. `join.node` is no member yet.
  Slot enroll(Peer peer, const Join& join, TimePoint now);
  /// The member speaks by `peer` from here on, which is no other member's. True: it was awaited since a snapshot.
  bool bind(Slot slot, Peer peer, TimePoint now);
  /// What the member said of itself anew; node and host are as they were.
  void update(Slot slot, const Join& join);
  void set_stage(Slot slot, Stage stage);
  /// While it is drained it is no candidate for a place, whatever it says.
  void set_drained(Slot slot, bool drained);
  /// Where there are more candidates than places, all others come before it.
  void make_youngest(Slot slot);
  void remove(Slot slot);
  /// The job is over, by this number in EndedJobs: it has no members any more, and nothing is remembered of losses. Its
  /// connections stay open until the agents close them.
  void dismiss_all(std::uint64_t ended_job);

  // Time.

  [[nodiscard]] bool silent(const Member& member, TimePoint now) const;
  /// Whoever's time to speak is over, one by one. It stays a member until it is removed.
  [[nodiscard]] std::optional<Slot> next_expired(TimePoint now);
  /// Whom `next_expired` named, "did not come back …" or "was silent for 10 s".
  [[nodiscard]] std::string why_expired(const Member& member, TimePoint now) const;
  /// Who is awaited since a snapshot has until then.
  void await_until(Slot slot, TimePoint back_by);
  /// Those whose hosts have been calm for long enough are aside no more.
  void end_asides(TimePoint now);
  /// The coordinator itself was away until `now`: all get a new lease, those awaited until `back_by`.
  void grant_leases(TimePoint now, TimePoint back_by);
  /// When `next_expired` or `end_asides` have something to do; may be early.
  [[nodiscard]] std::optional<TimePoint> deadline() const;

  [[nodiscard]] LossRecord& losses() { return losses_; }
  /// When it is given up if nothing more is heard of it.
  [[nodiscard]] TimePoint due(const Member& member) const;

 private:
  void changed() { ++revision_; }
  Slot take_slot();
  void index(Slot slot);
  void index_rank(Slot slot);
  void forget_rank(Slot slot);
  void count(const Member& member, int by);
  [[nodiscard]] int& count_of(const Member& ready);
  [[nodiscard]] auto on_host(const std::string& host) const { return slots_of_host_.equal_range(host); }
  void check(Slot slot, std::optional<TimePoint> at);
  void put_aside(Slot slot, std::optional<TimePoint> until);

  std::deque<Member> members_;  ///< by slot; free slots are in free_slots_
  std::vector<Slot> free_slots_;
  std::unordered_map<std::string, Slot> slot_of_node_;
  std::unordered_multimap<std::string, Slot> slots_of_host_;
  std::unordered_multimap<int, Slot> slots_of_rank_;  ///< by Join::group_rank
  std::vector<Connection> connections_;               ///< by peer
  std::uint64_t connection_count_ = 0;
  std::uint64_t next_seniority_ = 0;
  std::uint64_t revision_ = 0;
  std::size_t held_bytes_ = 0;
  int ready_ = 0, drained_ = 0, aside_ = 0, unfit_ = 0, missed_ = 0, stopping_ = 0, seated_ = 0, awaited_ = 0,
      leaving_ = 0;

  std::set<std::pair<TimePoint, Slot>> checks_;  ///< when to look whether a member is silent: one at most for each
  std::set<std::pair<TimePoint, Slot>> asides_;  ///< when a member is aside no more
  LossRecord losses_;
};

}  // namespace torchup

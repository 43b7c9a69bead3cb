#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/message_bytes.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/link/plausible.hpp"
#include "rendezvous/core/membership/ended_jobs.hpp"
#include "rendezvous/core/membership/job_snapshot.hpp"
#include "rendezvous/core/membership/membership.hpp"
#include "rendezvous/core/membership/restart_budget.hpp"
#include "rendezvous/core/membership/seating.hpp"
#include "rendezvous/core/membership/standing.hpp"
#include "rendezvous/core/round/job_view.hpp"
#include "rendezvous/core/round/rendezvous_events.hpp"

namespace torchup {

/// Hosts whose refusal the roster tells of, and how much is kept of why: nobody has to be a member for it.
inline constexpr std::size_t refusals_kept_max = 64;
inline constexpr std::size_t refusal_kept_bytes_max = 4096;

/// Every member is told of a refusal and of differences between nodes: of the reason, and of the table, so much.
inline constexpr std::size_t refusal_told_bytes_max = 256;
inline constexpr std::size_t differences_told_bytes_max = 4096;

/// Every member is told why a round stops: so much of the reason.
inline constexpr std::size_t stop_told_bytes_max = 2048;

/// Of the hosts that a job expects and that are missing, a page shows so many, and the number of the others.
inline constexpr std::size_t missing_shown_max = 1000;

/// What the coordinator decides for itself; what the job decides is in JobTerms.
struct RendezvousSettings {
  int agents_max = 16384;
  /// After a worker failure: how long an end of file of another agent may still show that a lost node was the cause.
  Duration doubt = std::chrono::milliseconds{20};
  /// How long a job that is about to end waits for the cause, where all that failed so far did so for another's end by
  /// their own words: on another node an exception may still be on its way out. What ends after the stop is no cause.
  Duration cause_patience = std::chrono::seconds{2};
  /// Voluntary leaves that are this close together are one decision.
  Duration leave_window = std::chrono::seconds{2};
  /// Newcomers to a running round that are this close together are one membership change.
  Duration newcomer_window = std::chrono::milliseconds{200};
  /// A host whose agents were lost this often within the window is put aside: it is used only if nobody else is there.
  int losses_max = 3;
  Duration loss_window = std::chrono::minutes{5};
  /// Longest wait for group rank 0's worker store.
  Duration store_limit = std::chrono::seconds{60};
  /// How long a coordinator without memory forms no round of a job that agents tell it of, unless all are back of the
  /// newest round that they tell of.
  Duration patience = return_limit_default;
  /// How long after its beginning it forms no round of a job that it does not know, though all that came are new to it:
  /// agents of a running round may be about to dial.
  Duration redial = redial_limit;
  /// When the coordinator's process began: after `patience` it has heard of every round that may still run. Empty: not
  /// known, and no agent has lost a coordinator here lately.
  std::optional<TimePoint> started = {};
  /// How long members of a job that was restored from a snapshot have to come back; their lease where that is longer.
  Duration return_limit = return_limit_default;
  /// How long the verdict of an ended job is kept for those who come late.
  Duration verdict_kept = std::chrono::minutes{5};
  /// How long a job is remembered that has had a round and has no member any more; its join timeout where that is
  /// shorter. Agents that come later than that tell what they know of it.
  Duration desertion_limit = std::chrono::minutes{10};
  /// A roster line is sent no sooner than this after the wait began, and no more often.
  Duration roster_interval = std::chrono::seconds{1};
};

/// From whom a coordinator has taken a job over, where several may have the seat (core/seat).
struct Takeover {
  bool proved = false;      ///< the former one's process has ended
  std::string holder = {};  ///< name of the agent that shared its process (ended_jobs); empty: none did
  friend bool operator==(const Takeover&, const Takeover&) = default;
};

/// The rendezvous of one run id. Pure: same settings, events and times in, same actions out. It takes whatever agents
/// say: a message that cannot be meant is refused, and nothing that one agent says does more than end its own job.
///
/// A member is an agent that joined and was neither lost nor dismissed (core/membership). It is ready (wants a place),
/// seated (in the round), finished (seated, its workers succeeded) or stopping (told to stop, its next Join is
/// awaited). Ready members beside a running round are its wait list, or spares when the round is full.
///
/// One that is unfit (Join::unfit) is ready, and no candidate: where those that are fit are too few, and nobody else is
/// to come, the job ends with 65. Before the first round it ends with 66 for one that will not be fit and is needed
/// (Join::needed), as soon as nobody else is to come who should hear of that.
///
/// A round forms when nobody is stopping, and either max nodes are ready, or at least min nodes and the last call (only
/// before the first round) is over. It never forms with a silent member.
///
/// Losing a seated node, or gaining one with room for it, is a membership change: all stop, nothing is counted. A
/// worker failure stops all and costs one restart of the job; failures that a lost node explains cost none.
///
/// People may order something (core/round/orders), which `answer` allows or refuses. A planned stop is a membership
/// change before which workers save. A drained node is ready, and no candidate. Orders are kept in the snapshot; a
/// coordinator without memory has forgotten them.
///
/// A run id may be used again: after the verdict, an agent that is new to it begins another job, with nothing of the
/// former one but the numbers of its rounds, which go on. Agents of the former one hear its verdict. So does one that
/// comes late from a host that was expected and had not come, where the run id is the job's alone: a scheduler's, or of
/// a coordinator that ends with the job.
class Rendezvous {
 public:
  using Phase = JobSnapshot::Phase;

  explicit Rendezvous(RendezvousSettings settings = {});

  /// Goes on where the snapshot was taken. Its members are awaited: each keeps its place when it comes back, and is
  /// lost when it does not within `return_limit`. When none came back, the job is forgettable.
  /// After a takeover members that are missing may be with the former coordinator, and run workers there. So nobody is
  /// given up before the return limit, or the lease where that is longer, has passed since the last of them came back;
  /// and nobody at all while none of the round has, unless the former one's end is proved, or all their hosts have
  /// joined anew. Then its own agent is lost at once.
  Rendezvous(RendezvousSettings settings, const JobSnapshot& saved, TimePoint now,
             const std::optional<Takeover>& takeover = std::nullopt);

  [[nodiscard]] JobSnapshot snapshot(TimePoint now) const;
  /// Another number whenever the snapshot has changed in more than the passing of time.
  [[nodiscard]] std::uint64_t revision() const { return revision_ + members_.revision(); }

  /// Applies `event`, then everything that is due at `now`. `now` never goes backwards.
  [[nodiscard]] std::vector<RendezvousAction> step(const RendezvousEvent& event, TimePoint now);

  /// What becomes of that order if it is given now.
  [[nodiscard]] OrderAnswer answer(const Order& order, TimePoint now) const;

  /// When to send the next Tick if nothing else happens; empty while only an event can change anything. May be early.
  /// When `now` is far behind it, the coordinator itself was asleep, and all members get a new lease.
  [[nodiscard]] std::optional<TimePoint> deadline() const;

  [[nodiscard]] Phase phase() const { return phase_; }
  [[nodiscard]] static const char* phase_name(Phase phase);
  [[nodiscard]] Round round() const { return round_; }
  [[nodiscard]] int member_count() const { return members_.size(); }
  [[nodiscard]] int restart_count() const { return restarts_.count(); }
  /// Of the job that is going on; empty again when another has begun.
  [[nodiscard]] const std::optional<Verdict>& verdict() const { return verdict_; }
  /// Of the agents that have joined; nothing: nobody has.
  [[nodiscard]] const std::optional<JobTerms>& terms() const { return terms_; }

  [[nodiscard]] const Membership& members() const { return members_; }
  /// Memory for what agents told, which is as much as they like.
  [[nodiscard]] std::size_t held_bytes() const;
  /// Memory for the hosts that a host list stands for, where the job gets to know its hosts by this join.
  [[nodiscard]] std::size_t expected_bytes(const Join& join) const;
  /// The round that its members were told to start in; nothing: none runs.
  [[nodiscard]] std::optional<Round> running() const;
  /// The same, where none of its members was lost and no decision has ended it: what all of them say, says it of all.
  [[nodiscard]] std::optional<Round> complete_round() const;

  /// For whoever decides about the job from here on (core/torchrun/mixed_job), until it gives it back.
  [[nodiscard]] JobPeople people() const;
  /// It is over there. `verdict`: for those who have not heard it yet; nothing: all have left by themselves.
  void take_back(JobPeople people, std::optional<Verdict> verdict, TimePoint now);

  /// Agents of a former job of the run id that have not closed their connections yet; nothing: there was none.
  [[nodiscard]] std::optional<int> still_leaving() const;
  /// Nodes that are expected may be about to start: whoever hosts us stays for them a while after the verdict.
  [[nodiscard]] bool awaits_late() const;
  /// From when on nothing is lost when this is thrown away: nobody is there, and nobody is expected to come back.
  /// Empty: not while things are as they are.
  [[nodiscard]] std::optional<TimePoint> forget_at() const;
  [[nodiscard]] bool forgettable(TimePoint now) const;
  /// What the job waits for, one line.
  [[nodiscard]] std::string roster(TimePoint now) const;
  [[nodiscard]] JobView view(TimePoint now) const;

 private:
  using Slot = Membership::Slot;
  using Stage = JobSnapshot::Stage;

  void on(const Connected& event, TimePoint now);
  void on(const Said& event, TimePoint now);
  void on(const Resumed& event, TimePoint now);
  void on(const Alive& event, TimePoint now);
  void on(const Gone& event, TimePoint now);
  void on(const Foretold& event, TimePoint now);
  void on(const Ordered& event, TimePoint now);
  void on(const Tick& event, TimePoint now);

  void said(Peer peer, const Join& join, TimePoint now);
  void said(Peer peer, const StoreReady& ready, TimePoint now);
  void said(Peer peer, const WorkersFailed& failed, TimePoint now);
  void said(Peer peer, const WorkersSucceeded& succeeded, TimePoint now);
  void said(Peer peer, const Leave& leave, TimePoint now);
  void said(Peer, const BesideRounds auto&, TimePoint) {}

  // Agents that come after the end.
  [[nodiscard]] std::optional<Verdict> missed(Peer peer, const Join& join);
  void expect_late(TimePoint now);

  // Members.
  [[nodiscard]] std::optional<std::string> misfit(const Join& join, std::optional<Slot> known) const;
  [[nodiscard]] std::optional<std::string> too_many_hosts(const Join& join) const;
  void expect(std::vector<std::string> hosts);
  void newcomer(Peer peer, const Join& join, TimePoint now);
  void join_again(Slot slot, Peer peer, const Join& join, TimePoint now);
  void says_anew(Slot slot, const Join& join);
  Slot enroll(Peer peer, const Join& join, TimePoint now);
  void bind(Slot slot, Peer peer, TimePoint now);
  void note_way(const Member& member);
  void set_stage(Slot slot, Stage stage);
  void remove(Slot slot);
  void lose(Slot slot, const std::string& how, TimePoint now, bool counts = true);
  void supersede(Slot slot, TimePoint now);
  void give_up(Peer peer, const NodeId& node, Round round, std::string why);
  void expel(Slot slot, const std::string& how, TimePoint now);
  void expire(TimePoint now);
  void grant_leases(TimePoint now);
  void refuse(Peer peer, const std::string& host, const std::string& why);

  // Rounds.
  void advance(TimePoint now);
  void try_form(TimePoint now);
  void form(int size, TimePoint now);
  void tell_differences();
  void begin_running();
  void try_admit(TimePoint now);
  [[nodiscard]] std::vector<std::string> admissible(TimePoint now) const;
  [[nodiscard]] JobRange range() const { return range_.value_or(range_of(*terms_)); }
  [[nodiscard]] int round_size(int nodes) const {
    return torchup::round_size(range(), terms_->nodes_multiple_of, nodes);
  }
  void begin_doubt(TimePoint now);
  void decide_failure(TimePoint now);
  [[nodiscard]] bool cause_may_come() const;
  void stop_round(StopCause cause, const std::string& reason, TimePoint now);
  void gather(TimePoint now);
  void count_change();
  void end(Verdict verdict, TimePoint now);
  void end_sooner(Verdict& verdict, std::optional<std::uint64_t> ended_job);
  void begin_anew();
  void forget_job();
  [[nodiscard]] PastJobs past() { return {ended_, phase_ == Phase::ended ? &*verdict_ : nullptr}; }
  [[nodiscard]] Placed placed(const Member& member) const;
  [[nodiscard]] std::string master_address() const;
  [[nodiscard]] const std::string& way_of_others(const std::vector<std::string>& addresses) const;
  [[nodiscard]] bool all_expected() const;
  [[nodiscard]] bool all_have_spoken() const;
  void end_for_too_few(TimePoint now);
  [[nodiscard]] bool may_not_begin() const;
  [[nodiscard]] bool has_begun() const;

  // What people order.
  [[nodiscard]] OrderAnswer answer_to(const order::Stop& stop, TimePoint now) const;
  [[nodiscard]] OrderAnswer answer_to(const order::Restart& restart, TimePoint now) const;
  [[nodiscard]] OrderAnswer answer_to(const order::Drain& drain, TimePoint now) const;
  [[nodiscard]] OrderAnswer answer_to(const order::Undrain& undrain, TimePoint now) const;
  [[nodiscard]] OrderAnswer answer_to(const order::Resize& resize, TimePoint now) const;
  void obey(const order::Stop& stop, const std::string& by, TimePoint now);
  void obey(const order::Restart& restart, const std::string& by, TimePoint now);
  void obey(const order::Drain& drain, const std::string& by, TimePoint now);
  void obey(const order::Undrain& undrain, const std::string& by, TimePoint now);
  void obey(const order::Resize& resize, const std::string& by, TimePoint now);
  [[nodiscard]] OrderAnswer refused(std::string_view why) const;
  [[nodiscard]] std::optional<OrderAnswer> why_not_now() const;
  [[nodiscard]] std::optional<OrderAnswer> why_no_stop() const;
  [[nodiscard]] Result<Slot> find_node(const std::string& name) const;
  [[nodiscard]] int candidates(std::optional<Slot> but = {}) const;
  /// Who comes first has a place first.
  using Turn = std::pair<bool, std::uint64_t>;
  [[nodiscard]] static Turn turn_of(const Member& member) { return {member.aside, member.seniority}; }
  [[nodiscard]] std::optional<Turn> first_left_out() const;
  [[nodiscard]] bool has_given_ranks() const;
  void stop_by_plan(const std::string& reason, TimePoint now);
  void drain_agent(Slot slot);
  void refit(const std::string& reason, TimePoint now);

  // Agents and coordinators that come back.
  void restate(Slot slot, const Resume& resume, TimePoint now);
  void restore(Peer peer, const Resume& resume, TimePoint now);
  void begin_restoring(const Placement& place, TimePoint now);
  void take_seat(Slot slot, const Resume& resume, TimePoint now);
  void recall(Peer peer, const Resume& resume, TimePoint now);
  void catch_up(const Resume& resume, const Placement& place, TimePoint now);
  [[nodiscard]] bool knows(Round round) const;
  void learn(const Placement& place, TimePoint now);
  void learn_counts(const Placement& place, TimePoint now);
  void round_is_over(const std::string& host, const Placement& place, TimePoint now);
  void tell_round_is_over(const Member& member, const Placement& place);
  [[nodiscard]] Duration patience(const std::optional<JobTerms>& terms) const;
  void await_others(const Join& join, TimePoint now);
  void was_in(Slot slot, const Placement& place);
  [[nodiscard]] bool contradicts(const Placement& place, int local_world_size) const;
  [[nodiscard]] bool others_may_come_back(TimePoint now) const;
  [[nodiscard]] std::optional<TimePoint> others_dial_until() const;
  [[nodiscard]] TimePoint return_by(TimePoint now) const;
  void lose_holder(TimePoint now);
  [[nodiscard]] std::optional<TimePoint> kept_until(Slot slot, TimePoint now) const;
  [[nodiscard]] bool all_missing_joined_anew() const;

  // What people see.
  [[nodiscard]] bool was_in_last_round(const Member& member) const;
  void arm_roster();
  void tell_roster(TimePoint now);

  void changed() { ++revision_; }
  void tell(const Member& member, CoordinatorMessage message);
  void note(Note note);

  RendezvousSettings settings_;
  std::vector<RendezvousAction> actions_;
  std::uint64_t revision_ = 0;
  bool deserted_ = false;  ///< restored, and nobody came back so far

  Membership members_;
  EndedJobs ended_;
  LostAgents lost_agents_;
  std::string coordinator_address_;  ///< by which a member of another machine reached us last
  bool hosted_ = false;              ///< an agent shares our process: where we begin anew, so does it

  std::optional<JobTerms> terms_;
  std::vector<std::string> expected_hosts_;
  std::size_t expected_bytes_ = 0;   ///< of them
  std::optional<int> foretold_;      ///< agents, as whoever starts them says
  std::optional<Verdict> foregone_;  ///< whoever joins is told so
  bool others_come_ = false;         ///< Foretold::others_come
  std::vector<std::string> late_;    ///< expected hosts that were not here when the job ended
  std::vector<Fact> facts_;          ///< of the first agent

  std::optional<JobRange> range_;  ///< as ordered; nothing: the terms'
  std::set<std::string> drained_;  ///< names of agents

  Phase phase_ = Phase::gathering;
  Round round_{0};       ///< the one that is decided or runs; while gathering, the next
  Round next_round_{0};  ///< the number of the next round is no smaller
  bool formed_once_ = false;
  bool planned_ = false;  ///< the stop that this gathering follows was
  RestartBudget restarts_;
  int membership_changes_ = 0;

  /// Without memory, and no round is ours yet: what agents tell of a former life of the coordinator counts.
  bool learning_ = true;
  Round counted_in_{-1};             ///< the round whose agents told of restarts and membership changes
  std::optional<Round> told_round_;  ///< the newest that agents of it have told of
  int told_size_ = 0;                ///< its nodes
  int told_count_ = 0;               ///< those of them that are members

  std::optional<Takeover> takeover_;
  std::set<Slot> missing_;       ///< after a takeover: who may have workers at the former coordinator's word
  bool one_returned_ = false;    ///< of them, or there were none
  TimePoint last_returned_at_{};  ///< of all that were awaited; at first when we began
  bool holder_may_live_ = true;  ///< its agent has not been lost for its proved end

  std::vector<Slot> seats_;  ///< members of the round, by group rank while hosting
  int group_world_size_ = 0;
  int world_size_ = 0;
  int unfinished_ = 0;
  int finished_ = 0;
  std::string master_addr_;
  Port master_port_{0};
  StoreKey store_key_{};

  std::optional<TimePoint> begun_at_;    ///< the first join
  std::optional<TimePoint> late_until_;  ///< whoever hosts us stays for `late_`
  std::optional<TimePoint> gather_until_;
  std::optional<TimePoint> last_call_until_;
  std::optional<TimePoint> leave_until_;
  std::optional<TimePoint> store_until_;
  std::optional<TimePoint> admit_at_;
  std::optional<TimePoint> doubt_until_;
  std::optional<TimePoint> cause_until_;
  bool waits_for_cause_ = false;  ///< the doubt is over, and that is not
  std::optional<TimePoint> patience_until_;
  std::optional<TimePoint> forget_at_;
  std::optional<TimePoint> roster_at_;
  std::optional<TimePoint> slept_until_;         ///< the coordinator itself, lately
  std::optional<TimePoint> counted_failure_at_;  ///< of the restart that this gathering belongs to
  Round counted_failure_in_{0};                  ///< the round of that failure, while there is one
  std::optional<Slot> blocker_;                  ///< silent member that the next decision waits for
  TimePoint roster_told_at_{};
  TimePoint now_{};  ///< of the last step
  std::string last_roster_;
  std::optional<Note> last_note_;
  std::map<std::string, std::string> refusals_;  ///< by host, of those that have not joined since

  std::vector<WorkerFailure> failures_;  ///< of this round
  std::set<Slot> failed_;                ///< who told of them, or of more than are kept
  bool may_restart_ = true;
  std::optional<Verdict> verdict_;
};

}  // namespace torchup

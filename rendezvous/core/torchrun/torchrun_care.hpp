#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/core/round/rendezvous.hpp"
#include "rendezvous/core/store/store.hpp"
#include "rendezvous/core/torchrun/torchrun_heartbeats.hpp"
#include "rendezvous/core/torchrun/torchrun_place.hpp"
#include "rendezvous/core/torchrun/torchrun_store.hpp"
#include "rendezvous/core/torchrun_wire/torchrun_state.hpp"

namespace torchup {

/// One agent of ours among torchrun's, as it is to stand in their state.
struct OurNode {
  enum class Stage : std::uint8_t {
    wants_in,   ///< out of the round that it had a place in, and into the next
    in_round,   ///< as long as the round lasts
    stops,      ///< the same, but it stops its workers, and cannot go on without another round
    succeeded,  ///< its workers have: it waits for the others
    leaves,     ///< for good
  };
  TorchrunNode node;
  Stage stage = Stage::wants_in;
  std::int64_t round = -1;  ///< the last one that it had a place in
};

/// What the owner of a store does for the torchrun agents of one job that meet in it, whether agents of ours are among
/// them or not. The one place that decides what is done there beyond torchrun's own rules, and the only writer of what
/// agents of ours are there (`project`); what they want is core/mixed_round's. Torchrun's own faults are cured so:
///  - Workers meet at a place that newcomers and old members both know, and that is empty when they come
///    (TorchrunPlace).
///  - An agent whose connection ends has ended. It leaves the state at once, instead of after its keep-alives.
///  - All participants learn of a newcomer at one moment: who looks first waits for the others (torchrun_notice). The
///    first to stop its workers makes the others' fail, which costs each a restart. Ours stop theirs when all have
///    looked (`all_know`).
///  - An agent that is silent is taken out of the state where agents of ours have a part in the job: by torchrun's
///    interval, as far as it has shown, and not before our own lease is over. Ours are not judged here: their
///    coordinator hears them itself. Where all are torchrun's, they judge each other.
///  - An agent that waits for a key sends no heartbeats, having one connection. It is kept in the state.
///  - A participant that is lost, or one of ours that is about to restart its workers, makes the others form another
///    round. Torchrun's agents take a silent one out of the state, each by the lease of its own configuration, but look
///    at nothing but the wait list: their workers would wait for the lost one. So an entry of ours stands on the wait
///    list until they all have left the round, before anybody can join the next. There are two exceptions: where fewer
///    than the minimum are left and none of ours is among them, for they could only wait for a replacement, which calls
///    them by itself when it comes, while the silent one may come back and go on (ours stop their workers without it,
///    and then nobody's round goes on); and in the exit barrier, which nobody leaves again.
///  - An agent that others took for dead, and that still runs in a round which is over, is shown a state in which it is
///    called: so it comes back.
///  - An agent that is in no list does not end the job. A node that comes back when the others have gone on, and has no
///    restart left, would close the rendezvous for all, and so would one that has waited in vain.
///  - Between two rounds nobody sleeps. An agent that can do nothing until somebody else has acted would look again
///    after a second; its answer is held back instead until it can act. And the last call is for a job's beginning: a
///    later round is complete when all who are known have come and they are at least the minimum. Where ours take part,
///    the end of the first one's last call is found here for all of them.
///
/// Durations are measured on the monotonic clock. Heartbeats are torchrun's, times of day by their writer's clock.
class TorchrunCare {
 public:
  struct Settings {
    RunId run_id{""};
    bool common_place = false;  ///< workers meet at a place of ours, not on group rank 0's node
    /// Whether a state that takes up so many bytes may be kept. Unset: every one.
    std::function<bool(std::size_t bytes)> room = {};
  };
  explicit TorchrunCare(Settings settings)
      : settings_{std::move(settings)}, place_{settings_.run_id, settings_.common_place} {}

  /// The job's state was written: by a client of the store, or by ourselves.
  void wrote(std::optional<ClientId> client, TorchrunStore& store);

  /// Where workers meet in this job.
  [[nodiscard]] TorchrunPlace& place() { return place_; }

  /// Reads the state anew where it has changed. Errors: what stands there is none.
  Result<> look(TorchrunStore& store);
  /// Writes what has changed for agents of ours into the state, by torchrun's rules: one node in each write, for these
  /// rules compare numbers of nodes with ==, and all their heartbeats in one. `ours`: all that have a part in the job,
  /// by torchrun's group order or another; `terms`: theirs.
  Result<> project(const std::vector<OurNode>& ours, const JobTerms& terms, TorchrunStore& store, UtcTime utc);
  /// None of ours has a part any more; what they are in the state stays.
  void forget_ours() { ours_.clear(); }
  [[nodiscard]] bool has_ours() const { return !ours_.empty(); }
  /// Ends the rendezvous for all, whatever stands there: what is no state is replaced by one.
  Result<> close(TorchrunStore& store);

  /// Whether that client's look at the state has to wait until `nobody_waits`.
  [[nodiscard]] bool holds(ClientId client);
  [[nodiscard]] bool nobody_waits() const { return !news_ || !news_->held; }
  /// Whether all of the round's torchrun agents have seen that another one is called, or had the time to.
  [[nodiscard]] bool all_know() const { return !news_; }

  /// What that client is to be shown in place of the state, to call it back.
  [[nodiscard]] std::optional<std::string> recall(ClientId client, TorchrunStore& store) const;

  /// Whether that client's agent is nowhere in the state of a job that goes on without it.
  [[nodiscard]] bool outsider(ClientId client, TorchrunStore& store) const;

  /// Whether that client's agent, knowing the state as it is, has to wait for another's step.
  [[nodiscard]] bool idles(ClientId client) const;

  /// The client's connection has ended.
  void gone(ClientId client, TorchrunStore& store);

  /// To be called some times a second. `waits`: whether that client waits for a key.
  void turn(TorchrunStore& store, const std::function<bool(ClientId)>& waits, TimePoint now, UtcTime utc);

  /// Its memory is needed elsewhere: as if it had not been read, until another is written.
  void let_go_of_state();

  [[nodiscard]] const TorchrunState& state() const { return known_; }
  /// Texts read so far, those that are no state included: what costs most here, so each text is read once.
  [[nodiscard]] std::size_t read_count() const { return read_count_; }
  /// The job as torchrun's state shows it, with all of its agents; `known` says what that state does not, and `ours` of
  /// agents of ours: node, local world size and first rank.
  [[nodiscard]] JobView view(JobView known, const std::map<TorchrunNode, JobView::Node>& ours = {}) const;
  /// What was done since the last call, for people.
  [[nodiscard]] std::vector<std::string> notes();

 private:
  /// Somebody stands on the wait list of a complete round.
  struct News {
    std::set<ClientId> unaware = {};
    bool strangers = false;  ///< some of the round's torchrun agents speak by no client that we know
    bool held = false;       ///< who looks has to wait for the others
    std::optional<TimePoint> since = {};
    [[nodiscard]] bool told() const { return unaware.empty() && !strangers; }
  };

  void find_lost(const TorchrunState& former, std::optional<ClientId> writer);
  void learn_terms(const TorchrunState& former);
  void tell_at_once(const TorchrunState& former);
  void begin_round(TorchrunStore& store);
  [[nodiscard]] bool leaving(TorchrunStore& store) const;
  [[nodiscard]] std::vector<TorchrunNode> lost_members(const TorchrunState& state) const;
  [[nodiscard]] bool may_call(const TorchrunState& state, TorchrunStore& store) const;
  Result<> take_out(const std::vector<TorchrunNode>& nodes, TorchrunStore& store);
  void drop_silent(TorchrunStore& store, TimePoint now);
  void call_together(TorchrunStore& store, TimePoint now);
  bool call_for_ours(TorchrunStore& store);
  Result<> let_leave(const std::vector<OurNode>& ours, TorchrunStore& store);
  Result<> let_in(const OurNode& one, const TorchrunTerms& terms, TorchrunStore& store, UtcTime utc);
  Result<> keep_ours_alive(TorchrunStore& store, UtcTime utc);
  void call(TorchrunStore& store, const std::string& why);
  [[nodiscard]] bool all_have_come() const;
  void complete_again(TorchrunStore& store, TimePoint now);
  void keep_waiting_alive(TorchrunStore& store, const std::function<bool(ClientId)>& waits, UtcTime utc);
  Result<> rewrite(const TorchrunState& state, TorchrunStore& store);
  [[nodiscard]] TorchrunTerms terms() const;

  Settings settings_;
  TorchrunPlace place_;
  std::string text_;  ///< the state as it was last seen
  /// By its hash, the text that is none, or had no room, and was last seen, and why: it is not read again.
  std::optional<std::pair<std::size_t, Error>> refused_;
  std::size_t read_count_ = 0;
  TorchrunState known_;
  std::map<ClientId, TorchrunNode> agents_;
  std::map<TorchrunNode, OurNode::Stage> ours_;  ///< those that do not leave
  Duration lease_{};                             ///< of ours
  TorchrunInterval interval_;                    ///< of torchrun's agents
  TorchrunSilence silence_;
  std::set<TorchrunNode> members_;  ///< of the last complete round
  std::set<TorchrunNode> lost_;     ///< of agents_: taken out of the state by others
  int min_nodes_ = 0;               ///< 0 until it has shown
  Duration last_call_{};
  std::optional<TimePoint> last_call_until_;
  std::optional<TimePoint> lost_since_;  ///< that a member is nowhere in the state, and nobody waits
  std::optional<News> news_;
  std::vector<std::string> notes_;
};

/// Which round of which job a store's key belongs to: `/torch.rendezvous.<run id>.<round>/<name>`.
struct TorchrunRoundKey {
  RunId run_id;
  std::int64_t round = 0;
  std::string_view name;
};
[[nodiscard]] std::optional<TorchrunRoundKey> read_round_key(std::string_view wire_key);

/// What torchrun's keys of all jobs begin with.
inline constexpr std::string_view torchrun_keys = "/torch.rendezvous.";

}  // namespace torchup

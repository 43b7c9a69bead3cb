#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/diagnosis/hang_watch.hpp"
#include "rendezvous/core/diagnosis/straggler_watch.hpp"
#include "rendezvous/core/diagnosis/told_parts.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/round/rendezvous.hpp"

namespace torchup {

/// Looks that people ask for are no closer together; who asks sooner waits for the next one.
inline constexpr Duration asked_look_pace = std::chrono::seconds{2};
/// Of all that agents tell of one window. Beyond it only what is within a node counts of the others.
inline constexpr std::size_t arrivals_bytes_max = std::size_t{64} << 20;
/// What members are told of one look, all of them together; the one or two that print a whole page apart, and the looks
/// at their own ranks. Each is told the verdict in any case, for which there is the second number.
inline constexpr std::size_t found_told_bytes_max = std::size_t{16} << 20;
inline constexpr std::size_t found_told_bytes_least = std::size_t{4} << 10;
/// And what one member is told of it: all in one turn, of the 2 MiB that wait on a connection at most (net/io's
/// unsent_bytes_max), where much else may be waiting. Of more looks those at culprits are told, then the lowest ranks'.
inline constexpr std::size_t found_told_in_one_turn_max = std::size_t{3} << 19;
/// Ranks whose lateness is shown as a number: those that are latest.
inline constexpr std::size_t late_workers_shown_max = 1024;

/// How late a worker is at collectives, by the newest window.
struct LateWorker {
  Rank rank{0};
  std::string host = {};
  Duration late{0};  ///< below 0 for who is early
  friend bool operator==(const LateWorker&, const LateWorker&) = default;
};

/// What the watch over a job is told.
namespace watch {

/// The round machine has taken a step, or time has passed.
struct RoundStepped {};
/// Torchrun's agents have a part in the job: nobody watches over the whole.
struct OthersDecide {};
struct Progressed {
  Peer peer;
  ProgressReport report = {};
};
struct Answered {
  Peer peer;
  Examined examined = {};
};
struct Asked {
  Peer peer;
};
struct Arrived {
  Peer peer;
  Arrivals arrivals = {};
};
using Event = std::variant<RoundStepped, OthersDecide, Progressed, Answered, Asked, Arrived>;

/// What a member has said, if it is for the watch; the message is moved from then.
[[nodiscard]] std::optional<Event> event_of(Peer peer, AgentMessage& message);

}  // namespace watch

/// Watches over one job beside its round machine, which it only reads: what hangs (HangWatch), and who is late
/// (StragglerWatch). Pure: same events, rounds and times in, same actions out.
///
/// An attempt begins with each round that runs, with its nodes and their ranks, and ends with it: stopped, drained,
/// re-formed or over. While a coordinator without memory still restores a round, there is none; afterwards there is no
/// look before all agents have told of themselves. Found, Over and stragglers are told to all members of the attempt;
/// the node of the least group rank, and who asked, is told all looks, the others theirs and the culprits'.
///
/// Each straggler window, counted here, all are asked for their arrivals, while anybody is watched. A node's answer
/// counts once, until look_wait_max later.
class JobWatch {
 public:
  /// `now` never goes backwards. Tells go to members that have a connection.
  [[nodiscard]] std::vector<RendezvousAction> step(const watch::Event& event, const Rendezvous& rounds, TimePoint now);
  /// When to send the next RoundStepped if nothing else happens; empty while only an event can change anything.
  [[nodiscard]] std::optional<TimePoint> deadline() const;

  /// Of the attempt's newest window, the latest first.
  [[nodiscard]] const std::vector<LateWorker>& late_workers() const { return late_; }
  /// Memory for what agents have answered so far.
  [[nodiscard]] std::size_t held_bytes() const;

 private:
  /// Nodes are looked for among the members no more often, for that takes as long as there are many.
  static constexpr Duration prune_pace = std::chrono::seconds{1};

  struct Node {
    NodeRanks ranks;
    GroupRank group_rank{0};
  };
  struct Window {
    std::uint64_t number = 0;
    TimePoint until{};
    std::map<NodeId, NodeWindow> nodes = {};
    std::vector<LateWorker> late = {};
    std::size_t bytes = 0;
  };

  void on(const watch::RoundStepped&, const Rendezvous&, TimePoint) {}
  void on(const watch::OthersDecide&, const Rendezvous& rounds, TimePoint now);
  void on(const watch::Progressed& event, const Rendezvous& rounds, TimePoint now);
  void on(const watch::Answered& event, const Rendezvous& rounds, TimePoint now);
  void on(const watch::Asked& event, const Rendezvous& rounds, TimePoint now);
  void on(const watch::Arrived& event, const Rendezvous& rounds, TimePoint now);

  void follow(const Rendezvous& rounds, TimePoint now);
  void begin(const Rendezvous& rounds, TimePoint now);
  void end(const Rendezvous& rounds, TimePoint now);
  void prune(const Rendezvous& rounds, TimePoint now);
  void due(const Rendezvous& rounds, TimePoint now);
  void ask(const NodeId& node, const Rendezvous& rounds, TimePoint now);
  void open_window(const Rendezvous& rounds, TimePoint now);
  void close_window(const Rendezvous& rounds);
  /// The node that speaks by `peer`, if it is one of the attempt's.
  [[nodiscard]] const Node* node_of(Peer peer, const Rendezvous& rounds) const;

  void heed(const hang::Event& event, const Rendezvous& rounds, TimePoint now);
  void perform(const hang::Examine& examine, const Rendezvous& rounds);
  void perform(const hang::Found& found, const Rendezvous& rounds);
  void perform(const hang::Over& over, const Rendezvous& rounds);
  void perform(const hang::Void& look, const Rendezvous& rounds);
  void tell(const Node& node, const Rendezvous& rounds, CoordinatorMessage message);
  void tell_all(const Rendezvous& rounds, const CoordinatorMessage& message);
  void tell_parts(const Node& node, const Rendezvous& rounds, const std::vector<std::string>& parts);
  void tell_news(const Rendezvous& rounds, const DiagnosisNews& news);

  std::optional<Round> round_;  ///< whose attempt is watched
  std::map<NodeId, Node> nodes_;
  std::optional<HangWatch> hangs_;  ///< of the job
  HangSettings settings_ = {};      ///< of `hangs_`
  std::optional<NodeId> asker_;     ///< whose look is under way
  TimePoint ask_at_{};              ///< no look that is asked for begins sooner
  std::optional<NodeId> ask_waits_;

  Duration window_every_{0};
  StragglerWatch stragglers_;
  ComparedNumbers compared_;  ///< between nodes
  std::optional<TimePoint> window_at_;
  std::optional<Window> window_;
  std::uint64_t windows_ = 0;
  std::vector<LateWorker> late_;

  std::uint64_t pruned_revision_ = 0;
  std::optional<TimePoint> prune_at_;
  TimePoint pruned_at_{};
  std::vector<RendezvousAction> actions_;
};

}  // namespace torchup

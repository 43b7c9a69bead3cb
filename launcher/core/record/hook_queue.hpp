#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/core/options/launch_config.hpp"
#include "launcher/core/record/launch_event.hpp"
#include "rendezvous/base/types.hpp"

namespace torchup {

/// Of --on-event: further events are not told while so many wait.
inline constexpr std::size_t hook_waiting_max = 64;
inline constexpr Duration hook_limit = std::chrono::seconds{10};
/// At the end of the job, for all that is left.
inline constexpr Duration hook_farewell = std::chrono::seconds{5};

/// What the queue is told.
namespace hook {

struct Happened {
  std::string name;     ///< of the event
  std::string line;     ///< as in --events
  bool of_job = false;  ///< as concerns_job
};
/// The rounds are made in this process.
struct Hosts {};
/// This node has a place in a round.
struct Placed {
  GroupRank group_rank{0};
};
/// What was started is gone. `problem`: why it has failed; empty: it has not.
struct Ended {
  std::string problem = {};
};
/// Nothing is recorded any more.
struct JobEnds {};
struct Wake {};  ///< nothing happened but time
using Event = std::variant<Happened, Hosts, Placed, Ended, JobEnds, Wake>;

/// What it wants done.
struct Start {
  std::string name;
  std::string line;
  friend bool operator==(const Start&, const Start&) = default;
};
/// What was started last, with all that it has started. Nobody waits for its end: no Ended.
struct Kill {
  friend bool operator==(const Kill&, const Kill&) = default;
};
/// To be recorded as hook_failed.
struct Failed {
  std::string reason;
  friend bool operator==(const Failed&, const Failed&) = default;
};
using Action = std::variant<Start, Kill, Failed>;

}  // namespace hook

/// Whether an event is about the job, of which all nodes hear, and not about this node or its workers. An order is
/// recorded by one node alone, the one that makes the rounds.
[[nodiscard]] bool concerns_job(const EventBody& event);

/// Which node tells what concerns the job.
enum class JobTeller : std::uint8_t {
  here,
  elsewhere,
  unknown,  ///< nobody has a place yet, and who hosts the rounds is not known here
};
/// What is known of it before the first round, and before the rounds are made here or elsewhere: a node that is alone
/// tells, and where nodes were told their indices the first of them does. Who is told not to host leaves it to another.
[[nodiscard]] JobTeller job_teller(const LaunchConfig& config);

/// Which events --on-event hears of on this node, and when: one after the other, in the order in which they happened.
/// A hook's own failures are not told to it. Pure.
///
/// What concerns the job is told on group rank 0's node, before the first round on the one that hosts it. Until it is
/// known whether that is this one such events are kept, hook_waiting_max of them. A job may end before that: without a
/// round, its rounds made elsewhere, at a torchupd perhaps which is no node, and its nodes without indices. Then each
/// of these nodes tells how it has ended (job_ended), for nobody else may, and nothing else of the job.
class HookQueue {
 public:
  HookQueue(const EventHookOptions& options, JobTeller teller) : kinds_{options.kinds}, teller_{teller} {}

  /// Whether this node tells what concerns the job, as far as is known.
  [[nodiscard]] bool tells_of_job() const { return teller_ != JobTeller::elsewhere; }
  /// `now` never goes backwards.
  std::vector<hook::Action> step(const hook::Event& event, TimePoint now);
  /// When to send the next Wake if nothing else happens.
  [[nodiscard]] std::optional<TimePoint> deadline() const;
  /// Nothing runs and nothing waits.
  [[nodiscard]] bool idle() const { return !running_ && waiting_.empty(); }

 private:
  struct Running {
    std::string name;
    TimePoint until{};
  };
  void on(const hook::Happened& event);
  void on(const hook::Hosts&);
  void on(const hook::Placed& event) {
    know(event.group_rank == GroupRank{0} ? JobTeller::here : JobTeller::elsewhere);
  }
  void on(const hook::Ended& event);
  void on(const hook::JobEnds& event);
  void on(const hook::Wake&) {}
  void know(JobTeller teller);
  void queue(hook::Start event);
  void due();
  void fail(std::string reason) { actions_.push_back(hook::Failed{std::move(reason)}); }

  const std::vector<std::string> kinds_;
  JobTeller teller_;
  std::deque<hook::Start> undecided_;  ///< of the job, until it is known who tells of it
  std::deque<hook::Start> waiting_;
  std::optional<Running> running_;
  std::optional<TimePoint> job_ends_;
  bool overflow_told_ = false;  ///< since the queue was full last
  TimePoint now_{};
  std::vector<hook::Action> actions_;
};

}  // namespace torchup

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/diagnosis/gathered_looks.hpp"
#include "rendezvous/core/diagnosis/hang_verdict.hpp"
#include "rendezvous/core/diagnosis/progress_tally.hpp"
#include "rendezvous/core/link/hang_terms.hpp"

namespace torchup {

/// An agent answers within the first, and counts as unknown after the second; a person who asks waits the third.
inline constexpr Duration look_answer_limit = std::chrono::seconds{3};
inline constexpr Duration look_wait_max = std::chrono::seconds{5};
inline constexpr Duration asked_look_wait_max = std::chrono::seconds{2};
/// Looks that go with a verdict: the culprits', then the lowest ranks'.
inline constexpr std::size_t told_looks_max = 1024;
/// What is done for a verdict has ended the attempt by then, else it was not heard, or came too late.
inline constexpr Duration action_patience = std::chrono::seconds{60};

struct HangSettings {
  HangTimeout timeout = {};
  OnHang on_hang = OnHang::report;
  bool may_act = true;  ///< false where ranks are nobody's of ours: a mixed job, torchrun's rendezvous
  friend bool operator==(const HangSettings&, const HangSettings&) = default;
};

/// What the watch is told, and what it wants done.
namespace hang {

// Events.

/// A round's workers start. A world of more than looked_ranks_max ranks is not watched.
struct AttemptBegins {
  std::vector<NodeRanks> nodes = {};
  int world_size = 0;
};
/// They are to end: by themselves, or because the round stops, is re-formed, drained.
struct AttemptEnds {};
struct Reported {
  NodeId node;
  ProgressReport report;
};
/// An agent is there no more.
struct Gone {
  NodeId node;
};
/// One part of an agent's answer to Examine.
struct Answered {
  NodeId node;
  std::uint64_t number = 0;
  std::string part = {};
  bool last = true;
};
/// A person wants to see all ranks: `kill -QUIT`, `torchupctl stacks`.
struct Asked {};
/// Nothing happened but time.
struct Wake {};
using Event = std::variant<AttemptBegins, AttemptEnds, Reported, Gone, Answered, Asked, Wake>;

// Actions.

/// To all agents of the attempt: look at your ranks, twice, and answer with this number.
struct Examine {
  std::uint64_t number = 0;
  bool asked = false;  ///< by a person, who waits
  friend bool operator==(const Examine&, const Examine&) = default;
};
/// To be told to all agents.
struct Found {
  std::uint64_t number = 0;                 ///< of what is told, in this job from 0; events and files have it
  bool asked = false;                       ///< a person wanted to see it; nothing is done
  std::optional<HangVerdict> verdict = {};  ///< without one, the ranks get on
  Duration silence{0};
  HangAction action = HangAction::none;
  HangSpared spared = HangSpared::nobody;  ///< why an action that the user wants is not taken
  std::vector<Rank> ended = {};            ///< by the action
  std::vector<RankLook> looks = {};        ///< told_looks_max at most, in order
  friend bool operator==(const Found&, const Found&) = default;
};
/// There is progress again.
struct Over {
  std::uint64_t number = 0;  ///< the last Found that was not asked for
  Duration after{0};         ///< how long it was silent in all
  friend bool operator==(const Over&, const Over&) = default;
};
/// A look that led to nothing, and why: for the log.
struct Void {
  std::uint64_t number = 0;  ///< as in Examine
  std::string reason = {};
  friend bool operator==(const Void&, const Void&) = default;
};
using Action = std::variant<Examine, Found, Over, Void>;

}  // namespace hang

/// The coordinator's watch over one job's progress. Pure: same events and times in, same actions out.
///
/// It is a hang when the least silence of all agents is longer than the limit, and all have told theirs. Then all are
/// asked to look; those that have not answered within look_wait_max are unknown. The look is void when a rank has made
/// progress between its two looks, or an agent has told of progress meanwhile. The next one comes at double the silence
/// of this one, until there is progress. Who answers later than look_answer_limit may have looked when others had done
/// so already: what happened between is told of within look_wait_max, and the verdict waits for that.
///
/// Ranks that seem to wait for the network but move are ended when another look says the same. While ranks are being
/// ended there is no other look, for action_patience.
///
/// An answer has as many parts as an agent of ours makes of its ranks (look_parts_max); what comes after them, by
/// another number or from who is no agent of the attempt is passed over. What one report or one part costs does not
/// depend on how many agents there are.
class HangWatch {
 public:
  explicit HangWatch(HangSettings settings) : settings_{settings} {}

  /// `now` never goes backwards.
  std::vector<hang::Action> step(const hang::Event& event, TimePoint now);
  /// When to send the next Wake if nothing else happens; empty while only an event can change anything.
  [[nodiscard]] std::optional<TimePoint> deadline() const;

  [[nodiscard]] bool looking() const { return look_.has_value(); }
  /// Whether any worker of the attempt is watched, by the agents' word.
  [[nodiscard]] bool anybody_watched() const { return tally_.watched(); }
  /// Memory for what agents have answered so far.
  [[nodiscard]] std::size_t held_bytes() const { return look_ ? look_->looks.bytes() : 0; }

 private:
  struct Agent {
    NodeRanks ranks;
    std::optional<ProgressReport> report = {};
    TimePoint reported{};
    std::size_t parts_left = 0;  ///< of its answer to the look that is under way; 0: it has answered
  };
  struct Look {
    std::uint64_t number = 0;
    TimePoint begun{};
    TimePoint until{};
    Duration silence{0};
    bool asked = false;
    bool hang = false;  ///< it began for silence
    bool late = false;  ///< an answer came so late that it may be of another moment
    bool progress = false;
    GatheredLooks looks{0};
  };
  struct Told {
    std::uint64_t number = 0;
    Duration silence{0};
  };

  void on(const hang::AttemptBegins& event, TimePoint now);
  void on(const hang::AttemptEnds& event, TimePoint now);
  void on(const hang::Reported& event, TimePoint now);
  void on(const hang::Gone& event, TimePoint now);
  void on(const hang::Answered& event, TimePoint now);
  void on(const hang::Asked& event, TimePoint now);
  void on(const hang::Wake& event, TimePoint now);
  void note_progress(Agent& agent, const ProgressReport& report, TimePoint now);
  void begin_look(bool asked, Duration silence, TimePoint now);
  void look_when_silent(TimePoint now);
  void judge_when_done(TimePoint now);
  [[nodiscard]] bool is_done(TimePoint now) const;
  void judge(const Look& look, TimePoint now);
  void decide(hang::Found& found, const HangJudge& judge, TimePoint now);
  [[nodiscard]] std::vector<RankLook> told_looks(const Look& look, const std::vector<Rank>& culprits) const;

  HangSettings settings_;
  int world_size_ = 0;
  std::map<NodeId, Agent> agents_;
  ProgressTally tally_;
  std::size_t untold_ = 0;      ///< agents that have not told of themselves
  std::size_t unanswered_ = 0;  ///< agents that have not answered
  std::optional<Look> look_;
  std::optional<Told> told_;             ///< what is not over
  Duration next_silence_{0};             ///< after a look: no other one at less
  std::optional<TimePoint> acts_until_;  ///< this attempt is being ended for a verdict
  bool doubted_ = false;                 ///< the verdict before was the network's, though ranks move
  std::uint64_t looks_ = 0, found_ = 0;
  std::vector<hang::Action> actions_;
};

}  // namespace torchup

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/core/diagnosis/rank_look.hpp"
#include "rendezvous/core/diagnosis/wait_graph.hpp"
#include "rendezvous/core/link/hang_terms.hpp"

namespace torchup {

enum class HangKind : std::uint8_t {
  debugged,  ///< somebody debugs a rank
  mismatch,  ///< members of a group are in different collectives, or in one with different sizes
  raised,    ///< an exception has left a rank's program, which has not ended
  stopped,   ///< others wait for a rank that a signal has stopped
  stuck,     ///< others wait for a rank that does not move
  busy,      ///< others wait for a rank that computes, reads or writes
  order,     ///< ranks wait for each other in a circle
  network,   ///< all have begun, and nothing arrives
};
/// "stuck": as events and files have it.
[[nodiscard]] std::string_view to_text(HangKind kind);

/// One of the different things that members of a group do at one number.
struct OperationSide {
  RankSet ranks = {};
  std::string operation = {};  ///< plain: "all_reduce"
  std::string sizes = {};
  std::int64_t elements = -1;  ///< -1: not known
  std::string dtype = {};      ///< plain: "float32"
  std::int64_t bytes = -1;     ///< -1: not known
  friend bool operator==(const OperationSide&, const OperationSide&) = default;
};

/// Where the others wait.
struct AwaitedCollective {
  std::string group = {};
  std::string description = {};
  std::int64_t number = 0;
  bool point_to_point = false;
  std::string operation = {};  ///< plain
  std::string sizes = {};
  std::int64_t elements = -1;
  std::string dtype = {};  ///< plain
  std::int64_t bytes = -1;
  RankSet missing = {};                        ///< members that have not begun it, or give no answer
  RankSet waiting = {};                        ///< those that have begun it and not finished
  std::vector<OperationSide> operations = {};  ///< of a mismatch: the sides, the largest first
  friend bool operator==(const AwaitedCollective&, const AwaitedCollective&) = default;
};

/// Sides of a mismatch that are told; what more there is counts, and is not told.
inline constexpr std::size_t sides_told_max = 8;

struct HangVerdict {
  HangKind kind = HangKind::busy;
  std::vector<Rank> culprits = {};  ///< in order; none where the network is
  std::optional<AwaitedCollective> collective = {};
  std::optional<std::int64_t> last_step = {};  ///< the newest that a rank has ended
  RankSet unseen = {};                         ///< ranks that no look reached
  friend bool operator==(const HangVerdict&, const HangVerdict&) = default;
};

/// Judges what one look at all ranks gave: the first of these that fits.
///
/// debugged: a rank is traced, or a debugger is in its stack.
/// mismatch: members of a group have different operations at a number that is not finished, or, where sizes must be
///   equal, different counts or types. Culprits are the fewer; all where two sides are equally many.
/// raised: a rank has raised and not ended; culprits are those whose exception is no consequence. Where all are, the
///   rules below decide.
/// by waiting: the roots, who are waited for and wait for nobody, as far as that is sure.
/// order: else a circle of ranks that wait for each other and for nobody outside of it.
/// by waiting, where it is not sure: first, with a rank in recv or send whose peer nobody knows, anybody for whom it
/// may
///   wait: all who do not wait. Then roots that may not be any: who waits itself as far as its stack tells (such a rank
///   in recv or send, one in a collective whose helper gave no answer), who has ended, who has more groups than it
///   tells. At last roots that were not seen.
/// network: somebody waits, and all members have begun.
/// else: those that do not move, or all; but not who has ended, nor, beside others, who is in a call of
///   torch.distributed of which no recorder tells: it makes a group, and waits for those who have not come to that.
/// Of the roots, and of those of the last rule, count those that are stopped; else those that do not move, by whose
/// word it is stuck; else it is busy, with all of them.
///
/// Time and memory grow with what add() was given: a second for a hundred thousand ranks.
class HangJudge {
 public:
  explicit HangJudge(int world_size);
  /// Each rank once; one beyond the world size is passed over.
  void add(const RankLook& look);
  /// After the last add, once.
  [[nodiscard]] HangVerdict verdict();

  /// The ranks that an action ends for a verdict: its culprits; all where the network is, or where the culprits have
  /// ended and others wait for them. Nobody who was not seen, or has ended.
  [[nodiscard]] std::vector<Rank> ended_by(const HangVerdict& verdict) const;
  /// Somebody computes, reads or writes.
  [[nodiscard]] bool anybody_moves() const;

 private:
  struct Facts {
    bool seen = false;
    bool ended = false;
    bool debugged = false;
    bool raised = false;  ///< on its own account, and lives
    bool stopped = false;
    bool moving = false;
    bool in_p2p = false;
    bool in_collective = false;         ///< its stack is in torch.distributed
    bool silent_in_collective = false;  ///< and its helper gave no answer
  };
  using Ranks = std::vector<int>;
  [[nodiscard]] Ranks ranks_where(const auto& holds) const;
  [[nodiscard]] bool in_unknown_call(int rank) const;
  [[nodiscard]] bool is_weak(int rank) const;
  [[nodiscard]] HangVerdict decide();
  [[nodiscard]] bool is_root(int rank) const;
  [[nodiscard]] std::optional<HangVerdict> sure_roots() const;
  [[nodiscard]] std::optional<HangVerdict> likely_roots() const;
  [[nodiscard]] Ranks left_over() const;
  [[nodiscard]] HangVerdict by_movement(const Ranks& ranks) const;
  [[nodiscard]] HangVerdict made(HangKind kind, const Ranks& culprits) const;

  std::vector<Facts> facts_;  ///< by rank
  std::optional<std::int64_t> last_step_;
  WaitGraph graph_;
};

[[nodiscard]] HangVerdict judge_hang(int world_size, std::span<const RankLook> looks);

// What is done about it.

enum class HangAction : std::uint8_t { none, abort, restart };
/// "none", "abort", "restart".
[[nodiscard]] std::string_view to_text(HangAction action);

/// Why an action that the user wants is not taken.
enum class HangSpared : std::uint8_t {
  nobody,    ///< it is taken, or none is wanted
  debugged,  ///< who is debugged is never touched
  busy,      ///< and who is busy only where the user said how long is too long
  foreign,   ///< ranks are nobody's of ours: a mixed job, torchrun's rendezvous
  unseen,    ///< of the culprits nobody was seen
  doubtful,  ///< it seems to be the network, but ranks move: another look decides
};

/// What is done for a verdict.
struct HangDecision {
  HangAction action = HangAction::none;
  HangSpared spared = HangSpared::nobody;
  friend bool operator==(const HangDecision&, const HangDecision&) = default;
};

/// By its kind alone. report: nothing, ever. `silence_given`: by the user.
[[nodiscard]] HangDecision decision_for(HangKind kind, OnHang wanted, bool silence_given);

}  // namespace torchup

#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/base/types.hpp"

namespace torchup {

/// Since when nobody else can have become a job's coordinator, as far as this one knows: its answers to keep-alives say
/// how old that proof is, and agents count their fence from it. Pure.
///
/// Proof at a time e is the younger of two. *Seated*: a linearizable read of the seat, sent at e, showed our term.
/// *Complete*: all members of the running round are attached to us, and e is the least over them of the time at which
/// we sent the newest answer that the member has echoed. Complete counts only until a decision, told or still held,
/// has ended the round: what was committed may be known to a successor though its answer was lost.
class Proof {
 public:
  static constexpr std::size_t unechoed_max = 64;  ///< answers that are remembered of each member; the oldest goes

  /// A read of the seat, sent at `sent`, showed our term.
  void seated(TimePoint sent);
  /// A round runs with these members, one at least. Each counts from its first echo on.
  void round_runs(const std::vector<NodeId>& members);
  /// A decision has ended the round, told or not.
  void round_over();
  void detached(const NodeId& member);  ///< its answers are none any more: it is to echo one of its next line
  void answered(const NodeId& member, std::uint64_t number, TimePoint sent);
  void echoed(const NodeId& member, std::uint64_t number);

  /// Nothing: neither was ever so.
  [[nodiscard]] std::optional<TimePoint> at() const;
  /// How old it is; nothing as at().
  [[nodiscard]] std::optional<Duration> age(TimePoint now) const;

 private:
  struct Answer {
    std::uint64_t number;
    TimePoint sent;
  };
  struct Member {
    std::deque<Answer> unechoed = {};
    std::optional<TimePoint> proved = {};
  };
  void set_proved(Member& member, std::optional<TimePoint> at);

  std::optional<TimePoint> seated_;
  std::map<NodeId, Member> members_;
  std::multiset<TimePoint> proved_;  ///< of all members that have one: the least is found at once among 12,500
};

}  // namespace torchup

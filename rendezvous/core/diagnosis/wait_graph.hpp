#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rendezvous/core/diagnosis/rank_look.hpp"

namespace torchup {

/// Ranks that are looked up as members of groups in which somebody waits, of all groups together. A job of 100,000
/// ranks in eight groups each has 800,000; beyond that, of the groups that fewest ranks name, only those ranks count.
inline constexpr std::size_t member_visits_max = 2'000'000;

/// Who waits for whom in collectives and point-to-point calls. Pure; its memory and time grow with what was looked at,
/// and not with what was said there.
///
/// A rank waits for a member of a group when it has an unfinished collective there that the member has not begun, or
/// when the member gives no answer, or has more groups than it tells and not that one. In a point-to-point call whose
/// peer is known it waits for that peer, unless the peer is in the other end of such a call.
class WaitGraph {
 public:
  static constexpr std::uint32_t no_text = 0xffffffff;
  static constexpr std::int64_t unknown = -2;  ///< a member's newest number where it gives no answer

  /// One call that a rank has begun; texts by their numbers in text().
  struct Begun {
    int rank = 0;
    std::int64_t number = 0;
    bool finished = false;
    std::uint32_t backend = no_text, operation = no_text, sizes = no_text, dtype = no_text;
    std::int64_t elements = -1;
  };
  struct Member {
    int rank = 0;
    std::int64_t newest = -1;  ///< begun; `unknown` where it gives no answer
  };
  struct Group {
    std::string name = {};
    std::string description = {};
    RankSet ranks = {};                ///< empty: not known, those who name it are its members
    std::vector<Begun> begun = {};     ///< collectives, by number, then by backend, then by rank
    std::vector<Member> members = {};  ///< by newest number and then by rank; only where `waited_in`
    bool waited_in = false;            ///< somebody has an unfinished collective here
  };
  struct PeerCall {
    Begun begun = {};
    std::size_t group = 0;  ///< in groups()
    int peer = 0;
    bool met = false;  ///< the peer is in the other end of such a call
  };

  explicit WaitGraph(int world_size);

  /// Each rank once; one that was not seen, or is beyond the world size, is as one that was not added.
  void add(const RankLook& look);
  /// After the last add, once.
  void finish();

  [[nodiscard]] const std::vector<Group>& groups() const { return groups_; }
  [[nodiscard]] const std::vector<PeerCall>& peer_calls() const { return peer_calls_; }
  [[nodiscard]] std::string_view text(std::uint32_t number) const;

  [[nodiscard]] bool waits(int rank) const { return waits_[index(rank)]; }
  [[nodiscard]] bool is_waited_for(int rank) const { return waited_for_[index(rank)]; }
  /// It may as well have begun what it is waited for in: it has more groups than it tells.
  [[nodiscard]] bool may_have_begun(int rank) const { return waited_for_[index(rank)] && !behind_[index(rank)]; }
  /// It has begun what is not finished.
  [[nodiscard]] bool is_in_call(int rank) const { return in_call_[index(rank)]; }
  /// Somebody has begun what is not finished.
  [[nodiscard]] bool anything_unfinished() const { return anything_unfinished_; }
  /// A call whose peer is not known is not among those that wait.
  [[nodiscard]] bool knows_peer(int rank) const { return knows_peer_[index(rank)]; }

  /// The ranks that wait for each other in a circle, and for nobody outside of it, in order; of all such circles.
  [[nodiscard]] std::vector<int> circles() const;

 private:
  /// What is known of a rank's groups.
  enum class Answer : std::uint8_t { none, all, cut };
  /// A position in a group whose members this rank does not tell, or of which it tells calls alone.
  struct Unplaced {
    int rank = 0;
    GroupPosition position = {};
    std::vector<Collective> calls = {};
  };
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] bool is_rank(int rank) const { return rank >= 0 && rank < world_size_; }
  std::size_t group_of(const GroupPosition& position);
  std::size_t likely_group(const Unplaced& unplaced);
  std::uint32_t number_of(const std::string& text);
  void place(int rank, std::size_t group, const GroupPosition& position, const std::vector<Collective>& calls);
  void place_call(int rank, std::size_t group, const Collective& call);
  void gather_members();
  void gather_members(Group& group, std::vector<std::size_t>& named_by, std::size_t stamp);
  void find_waiting();
  void find_peers();

  int world_size_;
  std::vector<Group> groups_;
  std::vector<PeerCall> peer_calls_;
  std::vector<std::string> texts_;
  std::unordered_map<std::string, std::uint32_t> text_numbers_;
  std::unordered_map<std::string, std::size_t> groups_by_key_;  ///< by name and ranks
  std::unordered_map<std::string, std::vector<std::size_t>> groups_by_name_;
  std::vector<Unplaced> unplaced_;
  std::vector<Answer> answers_;
  std::vector<bool> waits_, waited_for_, behind_, in_call_, knows_peer_;
  std::size_t visits_left_ = member_visits_max;
  bool anything_unfinished_ = false;
};

}  // namespace torchup

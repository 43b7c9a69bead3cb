#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/core/diagnosis/rank_look.hpp"
#include "rendezvous/core/link/messages.hpp"

/// Looks at the ranks of small worlds, for tests.
namespace torchup::looks {

inline RankSet ranks(const std::string& text) { return parse_rank_set(text).value(); }

inline std::vector<Rank> list(std::initializer_list<int> numbers) {
  std::vector<Rank> ranks;
  for (const int number : numbers) ranks.emplace_back(number);
  return ranks;
}

/// A rank that sleeps, and whose helper answers.
inline RankLook still(int rank) {
  return {.rank = Rank{rank}, .host = "nodea", .pid = 4000 + rank, .seen = true, .state = 'S', .groups_known = true};
}
inline RankLook moving(int rank) {
  RankLook look = still(rank);
  look.state = 'R';
  look.moving = true;
  return look;
}
/// One whose helper gives no answer.
inline RankLook silent(int rank) {
  RankLook look = still(rank);
  look.groups_known = false;
  return look;
}

/// The rank has begun everything up to `number` in a group and finished it.
inline RankLook at(RankLook look, const std::string& group, const std::string& members, std::int64_t number) {
  look.groups.push_back({.name = group, .description = group + "_pg", .ranks = ranks(members), .number = number});
  return look;
}
inline Collective call(const std::string& group, std::int64_t number, const std::string& operation = "gloo:all_reduce",
                       std::int64_t elements = 1024, const std::string& dtype = "Float") {
  return {.group = group,
          .number = number,
          .operation = operation,
          .sizes = "[" + std::to_string(elements) + "]",
          .elements = elements,
          .dtype = dtype};
}
/// The rank is in a collective there.
inline RankLook in(RankLook look, const std::string& group, const std::string& members, const Collective& collective) {
  look = at(std::move(look), group, members, collective.number);
  look.collectives.push_back(collective);
  return look;
}
inline RankLook in(RankLook look, const std::string& group, const std::string& members, std::int64_t number) {
  return in(std::move(look), group, members, call(group, number));
}
/// The rank is in a point-to-point call whose peer the recorder names.
inline RankLook with_peer(RankLook look, const std::string& operation, int peer) {
  Collective one = call("0", 7, operation);
  one.point_to_point = true;
  one.peer = Rank{peer};
  look.collectives.push_back(one);
  return look;
}
/// The rank is in a recv of gloo's, of which no recorder tells.
inline RankLook in_recv(RankLook look) {
  look.in_p2p = true;
  return look;
}

}  // namespace torchup::looks

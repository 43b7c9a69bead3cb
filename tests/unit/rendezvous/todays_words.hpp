#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "rendezvous/core/link/messages.hpp"

/// What today's release knows, in words of which a later one may have more to say.
namespace torchup::todays {

using namespace std::chrono_literals;

inline std::string number(std::uint32_t value) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  return bytes;
}

inline WorkerFailure failure() {
  return {Rank{5}, LocalRank{1}, -9, 70000, "a", 1700000000000000, "line\nline", "/tmp/error.json"};
}
inline Placement placement() {
  return {Round{4}, GroupRank{1}, 2, Rank{8}, 16, Rank{4}, 8, "node-a", Port{4000}, 2, 5};
}
inline JobTerms terms() {
  return {.min_nodes = 2, .max_nodes = 4, .max_restarts = 3, .lease = 1500ms, .hostlist = "n[1-4]"};
}

inline Join todays_join() {
  Join join{.node = NodeId{"n"}, .host = "h", .addresses = {"10.0.0.1"}, .local_world_size = 2};
  join.group_rank = GroupRank{1};
  join.terms = terms();
  join.facts = {{"torch", "2.15.0"}, {"program", "x"}};
  join.former = placement();
  join.unfit = "GPU 3 is lost";
  join.needed = true;
  join.needed_code = 2;
  return join;
}

}  // namespace torchup::todays

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "launcher/core/diagnosis/hang_files.hpp"
#include "rendezvous/base/worker_channel.hpp"
#include "rendezvous/core/diagnosis/lateness.hpp"
#include "rendezvous/core/diagnosis/rank_look.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// A worker that is to be looked at.
struct LookedAt {
  Rank rank{0};
  LocalRank local_rank{0};
  pid_t pid = 0;
  UniqueFd page = {};           ///< of the memory that it shares with us, a duplicate; empty: there is none
  std::string error_file = {};  ///< where its exception would lie; empty: nowhere
  /// Says it to it. Called on the loop. Empty: it cannot be asked.
  std::function<void(const LookWanted& question)> ask = {};
};

struct LookOrder {
  std::uint64_t number = 0;       ///< comes back with the result
  bool asked = false;             ///< a person waits: one moment, as fast as it can be
  bool native = false;            ///< the native stacks too of those of whom Python's are known; where it is asked
  std::vector<LookedAt> workers;  ///< one of each local rank
};

/// Of each worker of the order, in that order. The host is left empty. Looks are not fitted yet.
struct LookTaken {
  std::uint64_t number = 0;
  std::vector<RankLook> looks;
  std::vector<RankStacks> stacks;
};

/// For somebody who waits for a look: called once, on the loop.
using LooksShown = std::function<void(std::vector<RankLook>, std::vector<RankStacks>)>;

/// Of those that have answered.
struct ArrivalsTaken {
  std::uint64_t number = 0;
  std::vector<RankArrivals> ranks;
  std::vector<std::string> shared_groups;  ///< in order: groups with members that the order does not name
};

}  // namespace torchup

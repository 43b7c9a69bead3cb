#include "torchup/zero_first.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <torchup/error.hpp>

#include "worker_runtime/group/group_rounds.hpp"
#include "worker_runtime/place/worker_place.hpp"
#include "worker_runtime/store/job_store.hpp"
#include "worker_runtime/worker/last_words.hpp"

namespace torchup {

// What stands under the guard's key: "done", or "failed: " and why.
constexpr std::string_view done = "done";
constexpr std::string_view failed = "failed: ";

struct ZeroFirst::State {
  ProcessGroup group;
  std::string key;
  int uncaught;  ///< exceptions under way when the guard was made

  void publish(const std::string& outcome) { torchup::publish(*group.store(), key, outcome); }
};

namespace {

/// Who is first for this rank: a name that all ranks of a node share, and nobody else.
std::string node_name(bool per_node) {
  if (!per_node) return "job";
  for (const char* const name : {"GROUP_RANK", "SLURM_NODEID"}) {
    if (const auto number = environment_variable(name)) return "node " + *number;
  }
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return std::string{"host "} + host.data();
}

}  // namespace

ZeroFirst::ZeroFirst(const ProcessGroup& group, const ZeroFirstOptions& options) {
  if (group.name() != "0")
    throw Error{"ZeroFirst: takes the job's group, for a part of it may have no first rank on a node"};
  // Guards are counted in the store, per rank: all ranks count alike, and a group's keys are its own.
  const std::string counter = fmt::format("zero_first/count/{}", group.rank());
  const std::string key = fmt::format("zero_first/{}/{}", group.store()->add(counter, 1), node_name(options.per_node));
  // Who comes first on a node is its first one. The local rank could not say: it is 0 in all workers where the launcher
  // shows each of them its own GPU as the first (--virtual-local-rank).
  // In a round that others have survived, being elsewhere, it is the first of those that come.
  const bool by_coming = options.per_node || sets_up_alone(group);
  const bool is_first = by_coming ? group.store()->add(key + "/came", 1) == 1 : group.rank() == 0;
  if (is_first) {
    state_ = std::make_unique<State>(State{group, key, std::uncaught_exceptions()});
    at_failure(
        [](void* state, const char* message) {
          try {
            static_cast<State*>(state)->publish(std::string{failed} + message);
          } catch (const std::exception&) {
            // The store is gone: so will the others be.
          }
        },
        state_.get());
    return;
  }
  try {
    group.store()->wait({key}, options.timeout);
  } catch (const std::exception& error) {
    throw Error{"ZeroFirst: the first rank of this node was not done in time: " + std::string{error.what()}};
  }
  const std::vector<std::uint8_t> bytes = group.store()->get(key);
  const std::string outcome{bytes.begin(), bytes.end()};
  if (outcome != done)
    throw Error{"ZeroFirst: the first rank of this node failed: " +
                outcome.substr(std::min(outcome.size(), failed.size()))};
}

ZeroFirst::~ZeroFirst() {
  if (!state_) return;
  cancel_at_failure(state_.get());
  try {
    state_->publish(std::uncaught_exceptions() > state_->uncaught ? std::string{failed} + "an exception left its scope"
                                                                  : std::string{done});
  } catch (const std::exception&) {
    // The store is gone: so will the others be, by time-out at the latest.
  }
}

bool ZeroFirst::first() const { return state_ != nullptr; }

}  // namespace torchup

#include "worker_runtime/group/group_rounds.hpp"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "torchup/error.hpp"
#include "worker_runtime/group/join_job.hpp"
#include "worker_runtime/store/job_store.hpp"

namespace torchup {

void take_down(const ProcessGroup& group) {
  ProcessGroup::State& state = GroupAccess::state(group);
  state.ended = true;
  set_job_store(nullptr);
  if (state.connection) {
    state.connection->interrupt();
    if (!state.connection->ends_at_once()) abandon(std::move(state.connection));
    state.connection.reset();
  }
  end_abandoned_connections();
}

void join_again(const ProcessGroup& group, std::function<void()> check) {
  ProcessGroup::State& state = GroupAccess::state(group);
  ProcessGroupOptions options = *state.joined_by;
  options.backend = state.backend_name;
  ++state.round;
  state.children = 0;
  state.keys_used.clear();
  join_job(state, options,
           {.kept = true, .check = std::move(check), .device = state.device, .connect_limit = connect_limit});
}

bool can_join_again(const ProcessGroup& group) {
  const auto& joined_by = GroupAccess::state(group).joined_by;
  return joined_by && joined_by->init_method == "env://" && !joined_by->rank && !joined_by->world_size;
}

int round_of(const ProcessGroup& group) { return GroupAccess::state(group).round; }

void enter_run(const ProcessGroup& group, int number) {
  ProcessGroup::State& state = GroupAccess::state(group);
  state.run = RunPhase::inside;
  state.keys_used.clear();
  state.user_store = c10::make_intrusive<c10d::PrefixStore>("torchup/run/" + std::to_string(number), state.group_store);
}

void leave_run(const ProcessGroup& group) { GroupAccess::state(group).run = RunPhase::none; }

std::int64_t uses_before_run(const ProcessGroup& group) { return GroupAccess::state(group).uses_before_run; }

void meet_all(const ProcessGroup& group, const std::string& where) {
  if (group.size() == 1) return;
  c10d::Store& store = *group.store();
  const std::string key = "torchup/meet/" + where;
  if (store.add(key + "/count", 1) == group.size())
    publish(store, key + "/all", "1");
  else
    store.wait({key + "/all"}, group.timeout());
}

bool sets_up_alone(const ProcessGroup& group) { return GroupAccess::state(group).run == RunPhase::others; }

OwnCollectives::OwnCollectives(const ProcessGroup& group)
    : uses_{GroupAccess::state(group).uses_before_run}, before_{uses_} {}
OwnCollectives::~OwnCollectives() { uses_ = before_; }

}  // namespace torchup

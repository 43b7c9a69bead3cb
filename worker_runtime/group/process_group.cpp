#include "torchup/process_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "torchup/error.hpp"
#include "worker_runtime/group/group_rounds.hpp"
#include "worker_runtime/group/group_state.hpp"
#include "worker_runtime/group/join_job.hpp"
#include "worker_runtime/store/job_store.hpp"

namespace torchup {
namespace {

using namespace std::chrono_literals;

constexpr auto farewell_limit = 10s;  // how long the store's host waits for the others to be done

/// Counts what the program does with its group. Throws where the others of its round are elsewhere.
void use(ProcessGroup::State& state) {
  if (state.run == RunPhase::others)
    throw Error{
        "a collective, or a group, before Elastic::run, in a round that other ranks have survived: they are inside of "
        "it, and take no part. Move it into the function that Elastic::run calls"};
  ++state.uses_before_run;
}

/// The end of a good run.
void end(ProcessGroup::State& state) {
  state.ended = true;
  if (state.name == "0") set_job_store(nullptr);
  state.connection->backend().shutdown();
  state.connection.reset();
  if (state.name != "0" || !state.job->all_native || state.global_ranks.size() == 1) return;
  // The process that serves the store stays until the others have said that they need it no more.
  try {
    auto& store = *state.user_store;
    if (store.add("farewell", 1) == static_cast<std::int64_t>(state.global_ranks.size()))
      publish(store, "all_gone", "1");
    if (!state.job->hosts_store) return;
    store.wait({"all_gone"}, std::min<std::chrono::milliseconds>(farewell_limit, state.timeout));
  } catch (const std::exception&) {
    // Somebody died or never ends its group; the launcher will say who. Or we came late, and who serves the store has
    // gone: a farewell that nobody hears is none the worse.
  }
}

}  // namespace

std::shared_ptr<ProcessGroup::State> ProcessGroup::State::child() const {
  auto child = std::make_shared<State>();
  child->job = job;
  child->backend_name = backend_name;
  child->device = device;
  child->timeout = timeout;
  return child;
}

ProcessGroup::State::~State() {
  if (!connection) return;
  if (ended) {
    // Aborted. What cannot be ended from outside would wait for its peers: it is left to the end of the process.
    if (!connection->ends_at_once()) abandon(std::move(connection));
    return;
  }
  // While an exception passes, peers may be gone or wait for us: the backend's destructor could wait for them in turn.
  if (std::uncaught_exceptions() > 0) {
    abandon(std::move(connection));
    return;
  }
  try {
    end(*this);  // NCCL's must not be left to its destructor
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torchup: process group %s ended badly: %s\n", name.c_str(), error.what());
    abandon(std::move(connection));
  }
}

int ProcessGroup::rank() const { return state_->rank; }
int ProcessGroup::size() const { return static_cast<int>(state_->global_ranks.size()); }
int ProcessGroup::local_rank() const { return state_->job->place.local_rank; }
int ProcessGroup::local_size() const { return state_->job->place.local_size; }
torch::Device ProcessGroup::device() const { return state_->device; }
const std::string& ProcessGroup::backend() const { return state_->backend_name; }
const std::string& ProcessGroup::name() const { return state_->name; }
std::chrono::milliseconds ProcessGroup::timeout() const { return state_->timeout; }
const std::vector<int>& ProcessGroup::global_ranks() const { return state_->global_ranks; }
c10::intrusive_ptr<c10d::Store> ProcessGroup::store() const { return state_->user_store; }
std::string ProcessGroup::fresh_key(const std::string& purpose) const {
  return purpose + "/" + std::to_string(state_->keys_used[purpose]++);
}
bool ProcessGroup::has_python_ranks() const { return !state_->job->all_native; }
c10d::Backend& ProcessGroup::c10d_backend() const {
  if (state_->ended) throw Error{"process group " + state_->name + " was shut down or aborted"};
  use(*state_);
  return state_->connection->backend();
}

std::optional<ProcessGroup> ProcessGroup::new_group(std::span<const int> ranks) const {
  std::vector<int> members{ranks.begin(), ranks.end()};
  std::sort(members.begin(), members.end());
  if (members.empty()) throw Error{"new_group: no ranks"};
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] < 0 || members[i] >= size())
      throw Error{fmt::format("new_group: rank {} is not in this group of {}", members[i], size())};
    if (i && members[i] == members[i - 1]) throw Error{fmt::format("new_group: rank {} is there twice", members[i])};
  }
  use(*state_);
  const std::string number = std::to_string(++state_->children);  // counted on every rank, members or not
  const auto self = std::find(members.begin(), members.end(), rank());
  if (self == members.end()) return std::nullopt;

  auto child = state_->child();
  child->rank = static_cast<int>(self - members.begin());
  for (const int member : members)
    child->global_ranks.push_back(state_->global_ranks[static_cast<std::size_t>(member)]);
  // Children of the job's group are named as Python names them; deeper ones carry their parent's name, since two
  // parents may have as many children.
  child->name = state_->name == "0" ? number : state_->name + "." + number;
  open_stores(*child, state_->group_store);  // within the parent's, as Python's
  ProcessGroup group{std::move(child)};
  if (state_->run != RunPhase::inside) {
    connect_group(*group.state_);
  } else {
    meet_all(group, "connect");
    connect_group(*group.state_, connect_limit);
  }
  return group;
}

void ProcessGroup::shutdown() {
  if (!state_->ended) end(*state_);
}

void ProcessGroup::abort() {
  if (state_->ended.exchange(true)) return;
  if (state_->name == "0") set_job_store(nullptr);
  state_->connection->interrupt();
}

void open_stores(ProcessGroup::State& state, const c10::intrusive_ptr<c10d::Store>& parent) {
  state.group_store = c10::make_intrusive<c10d::PrefixStore>(state.name + "/", parent);
  state.user_store = c10::make_intrusive<c10d::PrefixStore>("torchup/user", state.group_store);
}

}  // namespace torchup

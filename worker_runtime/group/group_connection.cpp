#include "worker_runtime/group/group_connection.hpp"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

namespace torchup {
namespace {

std::mutex known_mutex;
// Never destroyed: at the end of the process there may be connections, and threads that interrupt them.
auto& known = *new std::set<GroupConnection*>;  // guarded by known_mutex, as the next one
auto& abandoned = *new std::vector<std::unique_ptr<GroupConnection>>;

std::int64_t day_ns() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

}  // namespace

GroupConnection::GroupConnection(Kind kind, GroupMembers members,
                                 const std::function<c10::intrusive_ptr<c10d::Backend>()>& connect)
    : members_{std::make_shared<const GroupMembers>(std::move(members))}, since_ns_{day_ns()} {
  if (kind == Kind::gloo) gloo_.emplace();
  {
    const std::lock_guard lock{known_mutex};
    known.insert(this);
  }
  try {
    auto backend = connect();
    {
      const std::lock_guard lock{mutex_};
      backend_ = std::move(backend);
    }
    if (gloo_) gloo_->made();
  } catch (...) {
    const std::lock_guard lock{known_mutex};
    known.erase(this);
    throw;
  }
}

GroupConnection::~GroupConnection() {
  // Known until the backend has gone: its destructor may wait for what is ended from outside.
  c10::intrusive_ptr<c10d::Backend> backend;
  {
    const std::lock_guard lock{mutex_};
    backend = std::move(backend_);
  }
  backend.reset();
  const std::lock_guard lock{known_mutex};
  known.erase(this);
}

bool GroupConnection::ends_at_once() const { return gloo_ && gloo_->found(); }

void GroupConnection::interrupt() {
  if (gloo_) {
    gloo_->shut_down();
    return;
  }
  c10::intrusive_ptr<c10d::Backend> backend;
  {
    const std::lock_guard lock{mutex_};
    if (backend_ && !std::exchange(aborted_, true)) backend = backend_;
  }
  if (backend) backend->abort();
}

std::optional<std::int64_t> GroupConnection::sequence() {
  // Under the lock, and not on a copy of the pointer: whoever lets the last one go may wait for peers.
  const std::lock_guard lock{mutex_};
  if (!backend_ || left_) return std::nullopt;
  try {
    return static_cast<std::int64_t>(backend_->getSequenceNumberForGroup());
  } catch (const std::exception&) {
    return -1;
  }
}

void abandon(std::unique_ptr<GroupConnection> connection) {
  {
    const std::lock_guard lock{connection->mutex_};
    connection->left_ = true;
  }
  const std::lock_guard lock{known_mutex};
  abandoned.push_back(std::move(connection));
}

void end_abandoned_connections() {
  std::vector<std::unique_ptr<GroupConnection>> ending;
  {
    const std::lock_guard lock{known_mutex};
    for (auto& each : abandoned) {
      each->interrupt();
      if (each->ends_at_once()) ending.push_back(std::move(each));
    }
    std::erase(abandoned, nullptr);
  }
}

std::vector<ConnectedGroup> connected_groups() {
  std::vector<ConnectedGroup> groups;
  {
    const std::lock_guard lock{known_mutex};
    for (GroupConnection* const each : known) {
      const auto kind = each->gloo_ ? GroupConnection::Kind::gloo : GroupConnection::Kind::nccl;
      if (const auto sequence = each->sequence()) groups.push_back({kind, each->members_, each->since_ns_, *sequence});
    }
  }
  std::ranges::sort(groups, {}, &ConnectedGroup::since_ns);
  return groups;
}

void interrupt_connections() {
  // Whoever would go meanwhile waits for this.
  const std::lock_guard lock{known_mutex};
  for (GroupConnection* const each : known) each->interrupt();
}

}  // namespace torchup

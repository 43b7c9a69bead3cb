#include "worker_runtime/group/group_connection.hpp"

#include <set>
#include <utility>
#include <vector>

namespace torchup {
namespace {

std::mutex known_mutex;
// Never destroyed: at the end of the process there may be connections, and threads that interrupt them.
auto& known = *new std::set<GroupConnection*>;  // guarded by known_mutex, as the next one
auto& abandoned = *new std::vector<std::unique_ptr<GroupConnection>>;

}  // namespace

GroupConnection::GroupConnection(Kind kind, const std::function<c10::intrusive_ptr<c10d::Backend>()>& connect) {
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

void abandon(std::unique_ptr<GroupConnection> connection) {
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

void interrupt_connections() {
  // Whoever would go meanwhile waits for this.
  const std::lock_guard lock{known_mutex};
  for (GroupConnection* const each : known) each->interrupt();
}

}  // namespace torchup

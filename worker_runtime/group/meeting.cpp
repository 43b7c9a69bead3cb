#include "worker_runtime/group/meeting.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "torchup/error.hpp"
#include "worker_runtime/group/roll_call.hpp"
#include "worker_runtime/store/client_store.hpp"

namespace torchup {
namespace {

using namespace std::chrono_literals;
constexpr auto rival_limit = 2s;  // for finding out who has our port

/// Says one line when what its owner does takes longer than `first_notice`: for calls that block and cannot be asked.
class SlowNotice {
 public:
  SlowNotice(const std::function<void(std::string_view)>& say, std::string line) {
    thread_ = std::thread{[this, say, line = std::move(line)] {
      std::unique_lock lock{mutex_};
      if (!over_.wait_for(lock, first_notice, [this] { return done_; })) say(line);
    }};
  }
  ~SlowNotice() {
    {
      const std::lock_guard lock{mutex_};
      done_ = true;
    }
    over_.notify_one();
    thread_.join();
  }
  SlowNotice(const SlowNotice&) = delete;
  SlowNotice& operator=(const SlowNotice&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool done_ = false;
  std::thread thread_;
};

std::uint16_t port_of(const WorkerPlace& place) { return static_cast<std::uint16_t>(place.master_port); }

/// Becomes a client, and is counted: a Python rank 0 waits until it has counted everybody.
c10::intrusive_ptr<c10d::Store> join_store(const WorkerPlace& place, std::chrono::milliseconds timeout) {
  const auto store = c10::make_intrusive<ClientStore>(place.master_addr, port_of(place), timeout);
  store->count_worker();
  return store;
}

/// Serves the store to all ranks. Does not wait for them here: it could not say for whom.
c10::intrusive_ptr<c10d::Store> serve_store(const WorkerPlace& place, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port_of(place);
  options.isServer = true;
  options.timeout = timeout;
  options.multiTenant = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>(place.master_addr, options);
}

Meeting open_store(const MeetingPlan& plan) {
  const WorkerPlace& place = plan.place;
  Meeting meeting;
  if (!plan.file.empty()) {
    meeting.store = c10::make_intrusive<c10d::FileStore>(plan.file, place.world_size);
    meeting.store->setTimeout(plan.timeout);
    return meeting;
  }
  if (place.master_addr.empty()) {
    meeting.store = c10::make_intrusive<c10d::HashStore>();
    return meeting;
  }
  meeting.hosts_store = place.rank == 0 && !place.agent_store;
  const SlowNotice notice{plan.on_waiting, fmt::format("rank {} waits for the store at {}, which {} serves", place.rank,
                                                       endpoint(plan), place.agent_store ? "the launcher" : "rank 0")};
  if (!meeting.hosts_store) {
    try {
      meeting.store = join_store(place, plan.timeout);
    } catch (const std::exception& error) {
      throw Error{fmt::format("rank {} cannot reach the store at {}: {}; has rank 0 started, and is MASTER_ADDR right?",
                              place.rank, endpoint(plan), reason(error))};
    }
    return meeting;
  }
  try {
    meeting.store = serve_store(place, plan.timeout);
  } catch (const std::exception& error) {
    // Another process that says it is rank 0 may have the port. Then it should hear of us.
    meeting.hosts_store = false;
    try {
      meeting.store = c10::make_intrusive<ClientStore>(place.master_addr, port_of(place),
                                                       std::min<std::chrono::milliseconds>(plan.timeout, rival_limit));
    } catch (const std::exception&) {
      throw Error{"rank 0 cannot serve the store at " + endpoint(plan) + ": " + reason(error) +
                  "; is MASTER_ADDR this machine and the port free?"};
    }
  }
  return meeting;
}

}  // namespace

Meeting meet(const MeetingPlan& plan) {
  Meeting meeting = open_store(plan);
  if (plan.place.world_size > 1) {
    hold_roll_call(plan, meeting);
  } else {
    meeting.backend = vote_on_backend({&plan.offer, 1}).backend;
    meeting.some_kept = plan.kept;
  }
  return meeting;
}

}  // namespace torchup

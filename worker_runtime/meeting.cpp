#include "worker_runtime/meeting.hpp"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "torchup/error.hpp"
#include "worker_runtime/client_store.hpp"

namespace torchup {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto first_notice = 5s;  // long enough for a healthy start, short enough that a person still looks
constexpr auto poll_first = 1ms;   // asking again, ever more rarely: the store's own wait logs a warning when it ends
constexpr auto poll_most = 100ms;
constexpr auto poll_python =
    20ms;  // a Python rank says nothing to us and is looked for by its traces, once others were slow
constexpr auto rival_limit = 2s;       // for finding out who has our port
constexpr auto last_words_limit = 2s;  // how long the store's host stays, so that the others read why all end
constexpr std::size_t named_ranks_max = 16;

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

std::string endpoint(const MeetingPlan& plan) {
  if (!plan.file.empty()) return plan.file;
  return plan.place.master_addr + ":" + std::to_string(plan.place.master_port);
}

std::string seconds(std::chrono::milliseconds duration) {
  return std::to_string(duration.count() / 1000) +
         (duration.count() % 1000 ? "." + std::to_string(duration.count() % 1000 / 100) : "") + " s";
}

std::string this_process() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return std::string{host} + ", pid " + std::to_string(getpid());
}

/// c10::Error's what() carries a backtrace of two pages; this is the sentence.
std::string reason(const std::exception& error) {
  if (const auto* c10_error = dynamic_cast<const c10::Error*>(&error)) return c10_error->what_without_backtrace();
  return error.what();
}

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
  const SlowNotice notice{plan.on_waiting,
                          "rank " + std::to_string(place.rank) + " waits for the store at " + endpoint(plan) +
                              (place.agent_store ? ", which the launcher serves" : ", which rank 0 serves")};
  if (!meeting.hosts_store) {
    try {
      meeting.store = join_store(place, plan.timeout);
    } catch (const std::exception& error) {
      throw Error{"rank " + std::to_string(place.rank) + " cannot reach the store at " + endpoint(plan) + ": " +
                  reason(error) + "; has rank 0 started, and is MASTER_ADDR right?"};
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

/// The talk of the ranks before the backend exists, under keys of their own.
class RollCall {
 public:
  RollCall(const MeetingPlan& plan, const c10::intrusive_ptr<c10d::Store>& job)
      : plan_{plan}, job_{job}, store_{c10::make_intrusive<c10d::PrefixStore>(
                                    "torchup/meeting/" + std::to_string(plan.place.restart_count), job)} {}

  /// True when all ranks are ours, false when some are Python's.
  bool run(bool hosts_store) {
    try {
      store_->add("came", 1);
      say_terms();
      say_name();
      if (store_->add("arrived", 1) == plan_.place.world_size) decide("all");
      return wait_for_all();
    } catch (const Error&) {
      stay_for_last_words(hosts_store);
      throw;
    } catch (const std::exception& error) {
      throw Error{"rank " + rank() + " lost the store at " + endpoint(plan_) +
                  " while the ranks met: " + reason(error) + "; look at what rank 0 says"};
    }
  }

 private:
  void say_terms() {
    const std::string ours = "world size " + std::to_string(plan_.place.world_size) + ", backend " + plan_.backend;
    const std::string first = store_->compareSet("terms", std::string{}, ours);
    if (first != ours)
      fail("the ranks do not agree: rank " + rank() + " (" + this_process() + ") has " + ours + ", another one " +
           first + "; start all of them with the same world size and backend");
  }
  void say_name() {
    const std::string ours =
        this_process() + (plan_.place.rank == plan_.place.local_rank ? "" : ", not its local rank");
    const std::string first = store_->compareSet("rank/" + rank(), std::string{}, ours);
    if (first != ours)
      fail("two processes say that they are rank " + rank() + ": " + first + " and " + ours + "; " +
           (plan_.place.rank == plan_.place.local_rank ? "LOCAL_RANK passed as rank? " : "") +
           (plan_.file.empty()
                ? "give every process a rank of its own"
                : "give every process a rank of its own, and every job a file of its own (remove " + plan_.file + ")"));
  }

  bool wait_for_all() {
    const auto start = Clock::now();
    auto next_notice = start + first_notice;
    std::string last_notice;
    for (std::chrono::milliseconds pause = poll_first;;
         pause = std::min<std::chrono::milliseconds>(pause * 2, poll_most)) {
      // In this order: our ranks decide before they publish a gloo address of their own.
      const bool python = pause > poll_python && others_are_python();
      if (store_->check({"decision"})) {
        const std::string decision = store_->get_to_str("decision");
        if (decision == "all") return true;
        throw Error{decision};
      }
      if (python) return false;
      if (Clock::now() >= start + plan_.timeout)
        fail("after " + seconds(plan_.timeout) + " " + absent() + " (meeting at " + endpoint(plan_) +
             "); look at what these processes say, or raise the timeout");
      if (Clock::now() >= next_notice) {
        const std::string notice = absent();
        if (notice != last_notice) plan_.on_waiting("waiting at " + endpoint(plan_) + ": " + notice);
        last_notice = notice;
        next_notice += 1s;
      }
      std::this_thread::sleep_for(pause);
    }
  }

  bool here(int other) { return store_->check({"rank/" + std::to_string(other)}); }
  /// A Python rank says nothing to us, but publishes its gloo address under this key.
  std::string python_key(int other) const { return "default_pg/0//cpu//0/" + std::to_string(other); }

  bool others_are_python() {
    if (plan_.backend != "gloo") return false;
    std::vector<std::string> keys;
    for (int other = 0; other < plan_.place.world_size; ++other)
      if (!here(other)) keys.push_back(python_key(other));
    return !keys.empty() && job_->check(keys);
  }

  std::string absent() {
    std::size_t count = 0;
    std::string names;
    for (int other = 0; other < plan_.place.world_size; ++other) {
      if (here(other) || job_->check({python_key(other)})) continue;
      if (++count > named_ranks_max) continue;
      if (count > 1) names += ", ";
      names += std::to_string(other);
    }
    if (count > named_ranks_max) names += ", …";
    return std::to_string(plan_.place.world_size - static_cast<int>(count)) + " of " +
           std::to_string(plan_.place.world_size) + " ranks are here, missing: rank" + (count > 1 ? "s " : " ") + names;
  }

  /// The store ends with the process that serves it: it waits until everybody who came has read the decision.
  void stay_for_last_words(bool hosts_store) {
    const auto end = Clock::now() + last_words_limit;
    auto heard = store_->add("heard", 1);
    while (hosts_store && heard < store_->add("came", 0) && Clock::now() < end) {
      std::this_thread::sleep_for(poll_most);
      heard = store_->add("heard", 0);
    }
  }

  void decide(const std::string& decision) { store_->compareSet("decision", std::string{}, decision); }
  [[noreturn]] void fail(const std::string& message) {
    decide(message);
    throw Error{message};
  }
  std::string rank() const { return std::to_string(plan_.place.rank); }

  const MeetingPlan& plan_;
  c10::intrusive_ptr<c10d::Store> job_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace

Meeting meet(const MeetingPlan& plan) {
  Meeting meeting = open_store(plan);
  if (plan.place.world_size > 1) meeting.all_native = RollCall{plan, meeting.store}.run(meeting.hosts_store);
  return meeting;
}

}  // namespace torchup

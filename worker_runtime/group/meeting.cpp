#include "worker_runtime/group/meeting.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "torchup/error.hpp"
#include "worker_runtime/store/client_store.hpp"
#include "worker_runtime/store/job_store.hpp"

namespace torchup {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto first_notice = 5s;  // long enough for a healthy start, short enough that a person still looks
constexpr auto poll_first = 1ms;   // asking again, ever more rarely: the store's own wait logs a warning when it ends
constexpr auto poll_most = 100ms;
// A Python rank says nothing to us and is looked for by its traces, once others were slow.
constexpr auto poll_python = 20ms;
constexpr auto scribe_start = 2s;  // the scribe came first, so its time is up first, and it says for all who is missing
constexpr auto rival_limit = 2s;   // for finding out who has our port
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
  return fmt::format("{}:{}", plan.place.master_addr, plan.place.master_port);
}

std::string seconds(std::chrono::milliseconds duration) {
  return std::to_string(duration.count() / 1000) +
         (duration.count() % 1000 ? "." + std::to_string(duration.count() % 1000 / 100) : "") + " s";
}

std::string this_process() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return fmt::format("{}, pid {}", host, getpid());
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

/// The talk of the ranks before the backend exists, under keys of their own.
///
/// "decision" ends it: "all nccl" or "all gloo" and why, "mixed" when some ranks are Python's, or what is wrong. The
/// rank that comes first is the scribe: it alone looks who is there, and writes the roster that the others read.
class RollCall {
 public:
  RollCall(const MeetingPlan& plan, const c10::intrusive_ptr<c10d::Store>& job)
      : plan_{plan}, job_{job}, store_{c10::make_intrusive<c10d::PrefixStore>(
                                    fmt::format("torchup/meeting/{}", plan.place.restart_count), job)} {
    for (int rank = 0; rank < plan.place.world_size; ++rank) missing_.push_back(rank);
  }

  /// Says into `meeting` who was there and what they agreed on.
  void run(Meeting& meeting) {
    try {
      store_->add("came", 1);
      say_terms();
      say_name();
      is_scribe_ = store_->compareSet("scribe", std::string{}, rank()) == rank();
      if (store_->add("arrived", 1) == plan_.place.world_size) decide(verdict());
      take(wait_for_decision(), meeting);
    } catch (const Error&) {
      stay_for_last_words(meeting.hosts_store);
      throw;
    } catch (const std::exception& error) {
      throw Error{fmt::format("rank {} lost the store at {} while the ranks met: {}; look at what rank 0 says", rank(),
                              endpoint(plan_), reason(error))};
    }
  }

 private:
  void say_terms() {
    const auto agree = [&](const char* key, const std::string& ours) {
      const std::string first = store_->compareSet(key, std::string{}, ours);
      if (first != ours)
        fail(
            fmt::format("the ranks do not agree: rank {} ({}) has {}, another one {}; start all of them with the same "
                        "world size and backend",
                        rank(), this_process(), ours, first));
    };
    agree("terms", fmt::format("world size {}", plan_.place.world_size));
    if (plan_.asked_backend != "auto") agree("backend", "backend " + plan_.asked_backend);
    publish(*store_, "offer/" + rank(), to_text(plan_.offer));
  }
  void say_name() {
    const bool local = plan_.place.rank == plan_.place.local_rank;
    const std::string ours = this_process() + (local ? "" : ", not its local rank");
    const std::string first = store_->compareSet("rank/" + rank(), std::string{}, ours);
    if (first != ours)
      fail(fmt::format(
          "two processes say that they are rank {}: {} and {}; {}give every process a rank of its own{}", rank(), first,
          ours, local ? "LOCAL_RANK passed as rank? " : "",
          plan_.file.empty() ? "" : fmt::format(", and every job a file of its own (remove {})", plan_.file)));
  }

  /// Of the rank that came last, and so sees what all offer.
  std::string verdict() {
    std::vector<BackendOffer> offers;
    for (int other = 0; other < plan_.place.world_size; ++other)
      offers.push_back(offer_from_text(store_->get_to_str(fmt::format("offer/{}", other))));
    try {
      const BackendVote vote = vote_on_backend(offers);
      return fmt::format("{}{}\n{}", all_are_here, vote.backend, vote.why);
    } catch (const Error& error) {
      return error.what();
    }
  }

  void take(const std::string& decision, Meeting& meeting) {
    if (decision == some_are_python) {
      meeting.all_native = false;
      meeting.backend = "gloo";
    } else if (decision.starts_with(all_are_here)) {
      const auto line_end = decision.find('\n');
      meeting.backend = decision.substr(all_are_here.size(), line_end - all_are_here.size());
      const std::string why = decision.substr(line_end + 1);
      if (!why.empty() && plan_.place.rank == 0)
        plan_.on_waiting(fmt::format("all ranks use gloo and leave the GPUs alone: {}", why));
    } else {
      throw Error{decision};
    }
  }

  std::string wait_for_decision() {
    const auto start = Clock::now();
    const auto end = start + plan_.timeout + (is_scribe_ ? 0s : scribe_start);
    auto next_notice = start + first_notice;
    std::string last_notice;
    for (std::chrono::milliseconds pause = poll_first;;
         pause = std::min<std::chrono::milliseconds>(pause * 2, poll_most)) {
      if (is_scribe_ && pause > poll_python && others_are_python()) decide(some_are_python);
      if (store_->check({"decision"})) return store_->get_to_str("decision");
      if (Clock::now() >= end)
        fail(fmt::format("after {} {} (meeting at {}); look at what these processes say, or raise the timeout",
                         seconds(plan_.timeout), absent(), endpoint(plan_)));
      if (Clock::now() >= next_notice) {
        const std::string notice = is_scribe_ ? absent() : roster();
        if (is_scribe_ && notice != last_notice) publish(*store_, "roster", notice, last_notice);
        if (!notice.empty() && notice != last_notice)
          plan_.on_waiting(fmt::format("waiting at {}: {}", endpoint(plan_), notice));
        last_notice = notice;
        next_notice += 1s;
      }
      std::this_thread::sleep_for(pause);
    }
  }

  bool here(int other) { return store_->check({fmt::format("rank/{}", other)}); }
  /// A Python rank says nothing to us, but publishes its gloo address under this key.
  std::string python_key(int other) const { return fmt::format("default_pg/0//cpu//0/{}", other); }

  bool others_are_python() {
    if (!plan_.offer.gloo) return false;
    std::erase_if(missing_, [&](int other) { return here(other); });
    std::vector<std::string> keys;
    for (const int other : missing_) keys.push_back(python_key(other));
    return !keys.empty() && job_->check(keys);
  }

  /// What the scribe last wrote, if anything.
  std::string roster() { return store_->check({"roster"}) ? store_->get_to_str("roster") : ""; }

  std::string absent() {
    std::erase_if(missing_, [&](int other) { return here(other); });
    std::vector<int> absent = missing_;
    std::erase_if(absent, [&](int other) { return job_->check({python_key(other)}); });
    if (absent.empty()) return "all ranks are here, but the last that came has not said how they meet";
    const auto named = std::span{absent}.first(std::min(absent.size(), named_ranks_max));
    return fmt::format("{} of {} ranks are here, missing: rank{} {}{}",
                       plan_.place.world_size - static_cast<int>(absent.size()), plan_.place.world_size,
                       absent.size() > 1 ? "s" : "", fmt::join(named, ", "), absent.size() > named.size() ? ", …" : "");
  }

  /// The store ends with the process that serves it: it waits until everybody who came has read the decision.
  void stay_for_last_words(bool hosts_store) {
    const auto end = Clock::now() + last_words_limit;
    try {
      auto heard = store_->add("heard", 1);
      while (hosts_store && heard < store_->add("came", 0) && Clock::now() < end) {
        std::this_thread::sleep_for(poll_most);
        heard = store_->add("heard", 0);
      }
    } catch (const std::exception&) {
      // The host has left: that must not be what is said instead of the decision.
    }
  }

  void decide(const std::string& decision) { store_->compareSet("decision", std::string{}, decision); }
  [[noreturn]] void fail(const std::string& message) {
    decide(message);
    throw Error{message};
  }
  std::string rank() const { return std::to_string(plan_.place.rank); }

  static constexpr std::string_view all_are_here = "all ";
  static constexpr const char* some_are_python = "mixed";

  const MeetingPlan& plan_;
  c10::intrusive_ptr<c10d::Store> job_;
  c10::intrusive_ptr<c10d::Store> store_;
  bool is_scribe_ = false;
  std::vector<int> missing_;  ///< ranks that have not been seen yet; looked at by the scribe
};

}  // namespace

Meeting meet(const MeetingPlan& plan) {
  Meeting meeting = open_store(plan);
  if (plan.place.world_size > 1)
    RollCall{plan, meeting.store}.run(meeting);
  else
    meeting.backend = vote_on_backend({&plan.offer, 1}).backend;
  return meeting;
}

}  // namespace torchup

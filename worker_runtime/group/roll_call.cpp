#include "worker_runtime/group/roll_call.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "torchup/error.hpp"
#include "worker_runtime/store/job_store.hpp"

namespace torchup {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto poll_first = 1ms;  // asking again, ever more rarely: the store's own wait logs a warning when it ends
constexpr auto poll_most = 100ms;
// A Python rank says nothing to us and is looked for by its traces, once others were slow.
constexpr auto poll_python = 20ms;
constexpr auto scribe_start = 2s;  // the scribe came first, so its time is up first, and it says for all who is missing
constexpr auto last_words_limit = 2s;  // how long the store's host stays, so that the others read why all end
constexpr std::size_t named_ranks_max = 16;

std::string seconds(std::chrono::milliseconds duration) {
  return std::to_string(duration.count() / 1000) +
         (duration.count() % 1000 ? "." + std::to_string(duration.count() % 1000 / 100) : "") + " s";
}

std::string this_process() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return fmt::format("{}, pid {}", host, getpid());
}

/// The talk of the ranks before the backend exists, under keys of their own.
///
/// "decision" ends it: "all nccl" or "all gloo" (", some kept": they were in the round before) and why, "mixed" when
/// some ranks are Python's, "over" when another round has begun before all were here, or what is wrong. The rank that
/// comes first is the scribe: it alone looks who is there, and writes the roster that the others read.
///
/// A store that an agent serves may hold what earlier rounds have left, and nothing in a rank's environment tells one
/// round from the next: torchrun keeps one store for all, and its agents count restarts each for itself. So rank 0
/// numbers the rounds there, and decides alone. Who finds what cannot be of a round that goes on waits for the next.
class RollCall {
 public:
  RollCall(const MeetingPlan& plan, const c10::intrusive_ptr<c10d::Store>& job)
      : plan_{plan}, job_{job}, numbered_{plan.place.agent_store}, end_{Clock::now() + plan.timeout} {}

  /// Says into `meeting` who was there and what they agreed on.
  void run(Meeting& meeting) {
    try {
      do {
        begin_round();
      } while (!meets_in_round(meeting));
      meeting.round = round_name_;
    } catch (const Error&) {
      if (store_) stay_for_last_words(meeting.hosts_store);
      throw;
    } catch (const std::exception& error) {
      throw Error{fmt::format("rank {} lost the store at {} while the ranks met: {}; look at what rank 0 says", rank(),
                              endpoint(plan_), reason(error))};
    }
  }

 private:
  /// Of a round that is over: another has begun, or will.
  struct OfAnotherRound {};

  void begin_round() {
    round_ = numbered_ ? number_of_round() : 0;
    round_name_ = numbered_ ? fmt::format("n{}", round_) : std::to_string(plan_.place.restart_count);
    store_ = c10::make_intrusive<c10d::PrefixStore>("torchup/meeting/" + round_name_, job_);
    missing_.clear();
    for (int rank = 0; rank < plan_.place.world_size; ++rank) missing_.push_back(rank);
  }

  /// Rank 0 begins one; the others take the last one that was begun. 0: rank 0 is Python's and numbers none.
  std::int64_t number_of_round() {
    if (plan_.place.rank == 0) return job_->add(rounds_key, 1);
    std::int64_t number = 0;
    wait_for("missing: rank 0", [&](std::chrono::milliseconds pause) {
      if (job_->check({rounds_key})) number = job_->add(rounds_key, 0);
      return number > 0 || (pause > poll_python && plan_.offer.gloo && job_->check({python_key(0)}));
    });
    return number;
  }

  /// Whether another round than ours was begun last.
  bool is_over() { return round_ > 0 && job_->add(rounds_key, 0) != round_; }

  /// False: in that round nobody meets any more.
  bool meets_in_round(Meeting& meeting) {
    try {
      if (follows() && store_->check({"decision"})) contradicted(store_->get_to_str("decision"));
      store_->add("came", 1);
      say_terms();
      say_name();
      is_scribe_ = store_->compareSet("scribe", std::string{}, rank()) == rank();
      const auto arrived = store_->add("arrived", 1);
      if (round_ == 0 && arrived == plan_.place.world_size) decide(verdict());
      take(wait_for_decision(), meeting);
      return true;
    } catch (const OfAnotherRound&) {
      return false;
    }
  }

  /// Whether somebody else than this rank says which round goes on.
  [[nodiscard]] bool follows() const { return round_ > 0 && plan_.place.rank != 0; }

  /// What stands there does not go with what this rank says: an error, where the round goes on.
  [[noreturn]] void contradicted(const std::string& message) {
    if (!follows()) fail(message);
    const auto alive = store_->add("alive", 0);
    bool goes_on = false;
    wait_for(message, [&](std::chrono::milliseconds) {
      goes_on = store_->add("alive", 0) > alive + 1;
      return goes_on || is_over();
    });
    if (goes_on) fail(message);
    throw OfAnotherRound{};
  }

  /// Until `condition`, which gets the time since it was asked last; says `what` when that takes long, and fails with
  /// it when the time is up.
  void wait_for(const std::string& what, const std::function<bool(std::chrono::milliseconds)>& condition) {
    auto next_notice = Clock::now() + first_notice;
    for (std::chrono::milliseconds pause = poll_first; !condition(pause);
         pause = std::min<std::chrono::milliseconds>(pause * 2, poll_most)) {
      plan_.check();
      if (Clock::now() >= end_)
        throw Error{fmt::format("after {}: {} (meeting at {})", seconds(plan_.timeout), what, endpoint(plan_))};
      if (Clock::now() >= next_notice) {
        plan_.on_waiting(fmt::format("waiting at {}: {}", endpoint(plan_), what));
        next_notice = end_;
      }
      std::this_thread::sleep_for(pause);
    }
  }

  void say_terms() {
    const auto agree = [&](const char* key, const std::string& ours) {
      const std::string first = store_->compareSet(key, std::string{}, ours);
      if (first != ours)
        contradicted(
            fmt::format("the ranks do not agree: rank {} ({}) has {}, another one {}; start all of them with the same "
                        "world size and backend",
                        rank(), this_process(), ours, first));
    };
    agree("terms", fmt::format("world size {}", plan_.place.world_size));
    if (plan_.asked_backend != "auto") agree("backend", "backend " + plan_.asked_backend);
    publish(*store_, "offer/" + rank(), to_text(plan_.offer));
    if (plan_.kept) publish(*store_, "kept", "1");
  }
  void say_name() {
    const bool local = plan_.place.rank == plan_.place.local_rank;
    const std::string ours = this_process() + (local ? "" : ", not its local rank");
    const std::string first = store_->compareSet("rank/" + rank(), std::string{}, ours);
    if (first != ours)
      contradicted(fmt::format(
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
      return fmt::format("{}{}{}\n{}", all_are_here, vote.backend, store_->check({"kept"}) ? some_are_kept : "",
                         vote.why);
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
      if (meeting.backend.ends_with(some_are_kept)) {
        meeting.some_kept = true;
        meeting.backend.resize(meeting.backend.size() - some_are_kept.size());
      }
      const std::string why = decision.substr(line_end + 1);
      if (!why.empty() && plan_.place.rank == 0)
        plan_.on_waiting(fmt::format("all ranks use gloo and leave the GPUs alone: {}", why));
    } else if (follows() && is_over()) {
      throw OfAnotherRound{};
    } else if (decision == nobody_meets) {
      throw Error{"two processes say that they are rank 0, or another round has begun; this one gives way"};
    } else {
      throw Error{decision};
    }
  }

  std::string wait_for_decision() {
    const auto end = end_ + (is_scribe_ ? 0s : scribe_start);
    auto next_notice = Clock::now() + first_notice;
    std::string last_notice;
    for (std::chrono::milliseconds pause = poll_first;;
         pause = std::min<std::chrono::milliseconds>(pause * 2, poll_most)) {
      plan_.check();
      if (is_scribe_ && pause > poll_python && others_are_python()) decide(some_are_python);
      if (is_over()) {
        decide(nobody_meets);  // all of them, or none: the verdict may just be on its way
      } else if (round_ > 0 && plan_.place.rank == 0) {
        store_->add("alive", 1);
        pause = std::min<std::chrono::milliseconds>(pause, poll_python);
        if (store_->add("arrived", 0) == plan_.place.world_size) decide(verdict());
      }
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
  static constexpr std::string_view some_are_kept = ", some kept";
  static constexpr const char* some_are_python = "mixed";
  static constexpr const char* nobody_meets = "over";

  static constexpr const char* rounds_key = "torchup/rounds";

  const MeetingPlan& plan_;
  c10::intrusive_ptr<c10d::Store> job_;
  const bool numbered_;  ///< the rounds in this store are, for it may hold several
  const Clock::time_point end_;
  std::int64_t round_ = 0;  ///< 0: not numbered
  std::string round_name_;
  c10::intrusive_ptr<c10d::Store> store_;  ///< the round's
  bool is_scribe_ = false;
  std::vector<int> missing_;  ///< ranks that have not been seen yet; looked at by the scribe
};

}  // namespace

std::string endpoint(const MeetingPlan& plan) {
  if (!plan.file.empty()) return plan.file;
  return fmt::format("{}:{}", plan.place.master_addr, plan.place.master_port);
}

std::string reason(const std::exception& error) {
  if (const auto* c10_error = dynamic_cast<const c10::Error*>(&error)) return c10_error->what_without_backtrace();
  return error.what();
}

void hold_roll_call(const MeetingPlan& plan, Meeting& meeting) { RollCall{plan, meeting.store}.run(meeting); }

}  // namespace torchup

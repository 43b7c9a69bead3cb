#include "worker_runtime/worker/stop_agreement.hpp"

#include <chrono>
#include <cstdio>
#include <limits>
#include <vector>

#include "worker_runtime/store/job_store.hpp"

namespace torchup {

namespace {

using namespace std::chrono_literals;

constexpr auto look_at_self = 100ms;  // our own page and signals: memory
constexpr int looks_per_store_look = 10;
constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();

std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

/// Sets `key` to the largest number that any rank has given.
void raise(c10d::Store& store, const std::string& key, std::int64_t number) {
  std::string seen;
  for (;;) {
    const std::string now = text_of(store.compareSet(key, bytes_of(seen), bytes_of(std::to_string(number))));
    if (now == std::to_string(number) || (!now.empty() && std::stoll(now) >= number)) return;
    seen = now;
  }
}

}  // namespace

StopAgreement::StopAgreement(Ranks ranks, std::function<bool()> asked)
    : ranks_{std::move(ranks)}, asked_{std::move(asked)} {
  thread_ = std::thread{[this] { watch(); }};
}

StopAgreement::~StopAgreement() {
  {
    const std::lock_guard lock{mutex_};
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool StopAgreement::end_step() {
  // Both accesses are sequentially consistent: either we see the wish to hold, or the thread sees this step as done.
  const std::int64_t done = ++done_;
  if (!holding_) return false;
  std::unique_lock lock{mutex_};
  changed_.wait(lock, [&] { return stop_at_ != 0 || ending_; });
  return stop_at_ != 0 && done >= stop_at_;
}

bool StopAgreement::pause(std::chrono::milliseconds time) {
  std::unique_lock lock{mutex_};
  return !changed_.wait_for(lock, time, [&] { return ending_; });
}

void StopAgreement::watch() {
  const std::string wish = ranks_.prefix + "asked";
  c10::intrusive_ptr<c10d::Store> store;
  for (int look = 0; pause(look_at_self); ++look) {
    bool wanted = asked_();
    if (ranks_.world_size > 1 && (wanted || look % looks_per_store_look == 0)) {
      try {
        if (!store) store = watching_job_store();
        if (!store) continue;  // no process group yet: nobody to agree with
        if (wanted)
          store->set(wish, bytes_of("1"));
        else
          wanted = store->check({wish});
      } catch (const std::exception&) {
        return;  // the store is gone, and with it the job
      }
    }
    if (!wanted) continue;
    holding_ = true;
    agree(done_, store);
    return;
  }
}

void StopAgreement::agree(std::int64_t done, const c10::intrusive_ptr<c10d::Store>& store) {
  std::int64_t stop_at = never;
  if (ranks_.world_size == 1) {
    stop_at = done + 1;
  } else {
    try {
      const std::string decision = ranks_.prefix + "stop_at";
      raise(*store, ranks_.prefix + "done", done);
      if (store->add(ranks_.prefix + "answers", 1) == ranks_.world_size) {
        const std::int64_t largest = std::stoll(text_of(store->get(ranks_.prefix + "done")));
        store->compareSet(decision, {}, bytes_of(std::to_string(largest + 1)));
      }
      try {
        store->wait({decision}, ranks_.answer_limit);
      } catch (const std::exception&) {
        // Somebody does not answer. All that did go on, and none alone: the first to give up decides for all.
        store->compareSet(decision, {}, bytes_of(std::to_string(never)));
      }
      stop_at = std::stoll(text_of(store->get(decision)));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "torchup: rank %d was asked to stop, but cannot agree with the others on a step: %s\n",
                   ranks_.rank, error.what());
    }
    if (stop_at == never) {
      std::fprintf(stderr, "torchup: rank %d was asked to stop, but not all ranks have answered: training goes on\n",
                   ranks_.rank);
    }
  }
  {
    const std::lock_guard lock{mutex_};
    stop_at_ = stop_at;
  }
  changed_.notify_all();
}

}  // namespace torchup

#include "worker_runtime/worker/stop_agreement.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <limits>
#include <utility>
#include <vector>

#include "worker_runtime/store/client_store.hpp"
#include "worker_runtime/store/job_store.hpp"

namespace torchup {

namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds look_at_self = 100ms;  // our own page and signals: memory
constexpr int looks_per_store_look = 10;
constexpr std::chrono::milliseconds store_limit = 10s;  // for a lost connection to the store to come back
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
    : ranks_{std::move(ranks)}, asked_{std::move(asked)}, wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {
  thread_ = std::thread{[this] { watch(); }};
}

StopAgreement::~StopAgreement() {
  ending_ = true;
  decide(never);
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);  // without it the thread ends a moment later
  thread_.join();
}

bool StopAgreement::end_step() {
  // Both accesses are sequentially consistent: either we see the wish to hold, or the thread sees this step as done.
  const std::int64_t done = ++done_;
  if (!holding_) return false;
  std::unique_lock lock{mutex_};
  changed_.wait(lock, [&] { return stop_at_ != 0 || !holding_; });
  return stop_at_ != 0 && done >= stop_at_;
}

std::string StopAgreement::key(int attempt, const char* what) const {
  return fmt::format("torchup/stop/{}/{}/{}/{}", round_, ranks_.run, attempt, what);
}

void StopAgreement::pause() const {
  pollfd ending{wake_.get(), POLLIN, 0};
  ::poll(&ending, 1, static_cast<int>(look_at_self.count()));
}

void StopAgreement::decide(std::int64_t stop_at) {
  {
    const std::lock_guard lock{mutex_};
    stop_at_ = stop_at;
    holding_ = stop_at != 0;
  }
  changed_.notify_all();
}

void StopAgreement::watch() {
  try {
    for (int attempt = 0; wait_for_wish(attempt); ++attempt) {
      holding_ = true;
      const std::int64_t stop_at = ranks_.world_size == 1 ? done_ + 1 : agree(attempt);
      decide(stop_at);
      if (stop_at != never || ending_) return;
      std::fprintf(stderr, "torchup: rank %d was asked to stop, but not all ranks have answered: training goes on\n",
                   ranks_.rank);
      if (!wait_for(key(attempt, "all_answered"), [&] { return ending_.load(); })) return;
      decide(0);
    }
  } catch (const std::exception& error) {
    // The store is gone, and mostly the job with it: only who is asked all the same hears of that.
    while (!ending_ && !holding_ && !asked_()) pause();
    if (ending_) return;
    std::fprintf(stderr, "torchup: rank %d was asked to stop, but cannot agree with the others on a step: %s\n",
                 ranks_.rank, error.what());
    decide(never);
  }
}

bool StopAgreement::wait_for_wish(int attempt) {
  bool asked = false;
  const auto give_up = [&] { return ending_ || (asked = asked_()); };
  if (ranks_.world_size == 1) {
    while (!give_up()) pause();
    return asked;
  }
  while (!store_ && !ending_) {  // no process group yet: nobody to agree with
    store_ = watching_job_store();
    round_ = job_round();
    if (auto* const client = dynamic_cast<ClientStore*>(store_.get())) client->setTimeout(store_limit);
    if (!store_) pause();
  }
  if (ending_) return false;
  if (wait_for(key(attempt, "asked"), give_up)) return true;
  if (asked) publish(*store_, key(attempt, "asked"), "1");
  return asked;
}

bool StopAgreement::wait_for(const std::string& key, const std::function<bool()>& give_up) {
  if (auto* const client = dynamic_cast<ClientStore*>(store_.get())) {
    for (;;) {
      try {
        return client->wait_unless(key, look_at_self, wake_.get(), give_up);
      } catch (const c10::DistError&) {
        pause();
        if (give_up()) return false;
        if (client->check({key})) return true;  // makes the connection again, or throws where the store is gone
      }
    }
  }
  // LibTorch's own stores cannot be left while they wait: they are asked, now and then.
  for (int look = 0; !give_up(); ++look) {
    if (look % looks_per_store_look == 0 && store_->check({key})) return true;
    pause();
  }
  return false;
}

std::int64_t StopAgreement::agree(int attempt) {
  const std::string decision = key(attempt, "stop_at");
  raise(*store_, key(attempt, "done"), done_);
  if (store_->add(key(attempt, "answers"), 1) == ranks_.world_size) {
    const std::int64_t largest = std::stoll(text_of(store_->get(key(attempt, "done"))));
    store_->compareSet(decision, {}, bytes_of(std::to_string(largest + 1)));
    publish(*store_, key(attempt, "all_answered"), "1");
  }
  const auto end = std::chrono::steady_clock::now() + ranks_.answer_limit;
  const auto give_up = [&] { return ending_ || std::chrono::steady_clock::now() >= end; };
  // Somebody may not answer. All that did go on, and none alone: the first to give up decides for all.
  if (!wait_for(decision, give_up)) store_->compareSet(decision, {}, bytes_of(std::to_string(never)));
  return std::stoll(text_of(store_->get(decision)));
}

}  // namespace torchup

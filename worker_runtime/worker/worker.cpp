#include "torchup/worker.hpp"

#include <signal.h>

#include <atomic>
#include <utility>

#include "worker_runtime/worker/worker_state.hpp"

namespace torchup {
namespace {

std::atomic<bool> stop_signal_came{false};

}  // namespace

Worker::Worker(std::unique_ptr<State> state) : state_{std::move(state)} {}
Worker::~Worker() = default;
int Worker::rank() const { return state_->place.rank; }
int Worker::world_size() const { return state_->place.world_size; }
int Worker::local_rank() const { return state_->place.local_rank; }
int Worker::local_world_size() const { return state_->place.local_size; }
int Worker::restart_count() const { return state_->place.restart_count; }
torch::Device Worker::device() const { return state_->device; }

StepEnd Worker::end_step(std::int64_t step) {
  set_last_words_step(step);
  if (state_->page) state_->page->beat(step);
  return {.stop = state_->stop && state_->stop->end_step()};
}

void Worker::State::listen_for_stop(int signal) {
  struct sigaction before {};
  if (signal == 0 || ::sigaction(signal, nullptr, &before) != 0 || (before.sa_flags & SA_SIGINFO) != 0 ||
      before.sa_handler != SIG_DFL)
    return;
  struct sigaction ours {};
  ours.sa_handler = [](int) { stop_signal_came = true; };
  ours.sa_flags = SA_RESTART;
  ::sigaction(signal, &ours, nullptr);
}

// ---- the rounds of a worker that outlives them

void Worker::State::take_place() {
  AskedPlace asked;
  asked.local_rank = asked_local_rank;
  place = worker_place_from_environment(asked, environment_variable);
  speaker.rank = place.rank;
  speaker.local_rank = place.local_rank;
  speaker.restart_count = place.restart_count;
  speaker.error_file = environment_variable("TORCHELASTIC_ERROR_FILE").value_or("");
  speak_last_words(speaker);
}

void Worker::State::begin_round(int run) {
  stop.reset();  // first: its end would wait for the next one, with which it shares a connection to the store
  StopAgreement::Ranks ranks{.rank = place.rank, .world_size = place.world_size, .run = run};
  stop = std::make_unique<StopAgreement>(
      std::move(ranks), [own = page.get()] { return stop_signal_came || (own != nullptr && own->drain_requested()); });
}

}  // namespace torchup

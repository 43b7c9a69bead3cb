#include "torchup/worker.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "torchup/error.hpp"
#include "worker_runtime/group/backend_factory.hpp"
#include "worker_runtime/place/device_choice.hpp"
#include "worker_runtime/place/launcher_arguments.hpp"
#include "worker_runtime/place/worker_page.hpp"
#include "worker_runtime/place/worker_place.hpp"
#include "worker_runtime/worker/last_words.hpp"
#include "worker_runtime/worker/stop_agreement.hpp"

namespace torchup {

struct Worker::State {
  WorkerPlace place;
  torch::Device device{torch::kCPU};
  std::unique_ptr<WorkerPage> page;
  std::unique_ptr<StopAgreement> stop;
};

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
  return {.stop = state_->stop->end_step()};
}

namespace {

std::atomic<bool> stop_signal_came{false};

/// A signal that asks the job to stop at a step's end. A handler of the program's own is left alone.
void listen_for_stop(int signal) {
  struct sigaction before {};
  if (signal == 0 || ::sigaction(signal, nullptr, &before) != 0 || (before.sa_flags & SA_SIGINFO) != 0 ||
      before.sa_handler != SIG_DFL)
    return;
  struct sigaction ours {};
  ours.sa_handler = [](int) { stop_signal_came = true; };
  ours.sa_flags = SA_RESTART;
  ::sigaction(signal, &ours, nullptr);
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// The GPU of this worker, made current before anything else can use another one.
torch::Device bind_device(const WorkerPlace& place, const std::string& asked) {
  if (asked != "auto" && asked != "cpu" && asked != "cuda")
    throw Error{fmt::format("device \"{}\" is none of auto, cpu, cuda", asked)};
  using Kind = DeviceWish::Kind;
  const DeviceWish wish{.kind = asked == "cpu" ? Kind::cpu : asked == "cuda" ? Kind::gpu : Kind::automatic};
  const auto gpu = choose_device(wish, place, visible_gpus()).gpu;
  if (!gpu) return torch::kCPU;
  const torch::Device device{torch::kCUDA, static_cast<c10::DeviceIndex>(*gpu)};
  bind_gpu(device);
  return device;
}

}  // namespace

int worker_main(int argc, char** argv, const Train& train, const WorkerOptions& options) {
  // The error file's place is known before the rest is understood, so that a refusal of the rest is in it.
  Speaker speaker{.host = host_name(), .error_file = environment_variable("TORCHELASTIC_ERROR_FILE").value_or("")};
  speak_last_words(speaker);

  LauncherArguments arguments = take_launcher_arguments({argv, static_cast<std::size_t>(argc)});
  // The process group asks the environment.
  if (arguments.local_rank) ::setenv("LOCAL_RANK", std::to_string(*arguments.local_rank).c_str(), 0);
  auto state = std::make_unique<Worker::State>();
  AskedPlace asked;
  asked.local_rank = arguments.local_rank;
  state->place = worker_place_from_environment(asked, environment_variable);
  speaker.rank = state->place.rank;
  speaker.local_rank = state->place.local_rank;
  speaker.restart_count = state->place.restart_count;
  speak_last_words(speaker);
  if (state->place.launcher == "nobody") {
    std::fprintf(stderr,
                 "torchup: started without a launcher (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set): "
                 "running alone as rank 0 of 1\n");
  }
  state->device = bind_device(state->place, options.device);
  state->page = WorkerPage::open();
  listen_for_stop(options.stop_signal);
  StopAgreement::Ranks ranks{state->place.rank, state->place.world_size,
                             "torchup/stop/" + std::to_string(state->place.restart_count) + "/"};
  state->stop = std::make_unique<StopAgreement>(std::move(ranks), [page = state->page.get()] {
    return stop_signal_came || (page != nullptr && page->drain_requested());
  });
  Worker worker{std::move(state)};
  return train(worker, {arguments.rest.data(), arguments.rest.size() - 1});
}

}  // namespace torchup

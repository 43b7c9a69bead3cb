#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "torchup/error.hpp"
#include "torchup/worker.hpp"
#include "worker_runtime/group/backend_factory.hpp"
#include "worker_runtime/place/device_choice.hpp"
#include "worker_runtime/place/launcher_arguments.hpp"
#include "worker_runtime/worker/template_service.hpp"
#include "worker_runtime/worker/worker_state.hpp"

namespace torchup {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// The GPU of this worker, made current before anything else can use another one.
torch::Device bind_device(const WorkerPlace& place, const std::string& asked) {
  if (asked != "auto" && asked != "cpu" && asked != "cuda")
    throw Error{fmt::format("device \"{}\" is none of auto, cpu, cuda", asked)};
  DeviceWish wish;
  if (asked == "cpu") wish.kind = DeviceWish::Kind::cpu;
  if (asked == "cuda") wish.kind = DeviceWish::Kind::gpu;
  const auto gpu = choose_device(wish, place, visible_gpus()).gpu;
  if (!gpu) return torch::kCPU;
  const torch::Device device{torch::kCUDA, static_cast<c10::DeviceIndex>(*gpu)};
  bind_gpu(device);
  return device;
}

}  // namespace

int worker_main(int argc, char** argv, const Train& train, const WorkerOptions& options) {
  serve_as_template();
  // The error file's place is known before the rest is understood, so that a refusal of the rest is in it.
  auto state = std::make_unique<Worker::State>();
  state->speaker = {.host = host_name(), .error_file = environment_variable("TORCHELASTIC_ERROR_FILE").value_or("")};
  speak_last_words(state->speaker);

  LauncherArguments arguments = take_launcher_arguments({argv, static_cast<std::size_t>(argc)});
  // The process group asks the environment.
  if (arguments.local_rank) ::setenv("LOCAL_RANK", std::to_string(*arguments.local_rank).c_str(), 0);
  state->asked_local_rank = arguments.local_rank;
  state->take_place();
  if (state->place.launcher == "nobody") {
    std::fprintf(stderr,
                 "torchup: started without a launcher (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set): "
                 "running alone as rank 0 of 1\n");
  }
  state->device = bind_device(state->place, options.device);
  state->page = WorkerPage::open();
  state->channel = AgentChannel::open();
  if (state->page) state->answerer = std::make_unique<LookAnswerer>(*state->page, state->channel.get());
  Worker::State::listen_for_stop(options.stop_signal);
  state->begin_round(0);
  Worker worker{std::move(state)};
  return train(worker, {arguments.rest.data(), arguments.rest.size() - 1});
}

}  // namespace torchup

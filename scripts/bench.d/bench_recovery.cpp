// The C++ side of bench_recovery.py.
//
// usage: bench_recovery job FOLDER
//   A job that recovers inside the process, until it is ended. Each worker appends STEP PID MONOTONIC_NS to
//   FOLDER/stamps after each commit; a checkpoint is left every 20 steps, from which the job goes on where nobody has
//   survived.
// usage: bench_recovery main FOLDER
//   A worker that appends RESTART_COUNT RANK MONOTONIC_NS PID to FOLDER/stamps as soon as worker_main has called it,
//   and waits to be ended.
// usage: bench_recovery state ROUNDS
//   One of two ranks. Rank 0 prints one JSON object, seconds: in which a newcomer takes 100 MB of state from a
//   survivor; of a plain broadcast of as many bytes to memory that is as much in use; of a commit of a model with 21
//   buffers, without and with a seed.
#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <torchup/torchup.hpp>
#include <utility>
#include <vector>

#include "worker_runtime/elastic/state_image.hpp"
#include "worker_runtime/elastic/training_state.hpp"

namespace {

using namespace std::chrono_literals;
using Seconds = std::vector<double>;

std::int64_t monotonic_ns() {
  const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
  return now.count();
}

/// Lines of numbers that several processes append.
class Stamps {
 public:
  explicit Stamps(const std::filesystem::path& folder)
      : file_{::open((folder / "stamps").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC)} {}
  bool write(std::initializer_list<std::int64_t> numbers) const {
    std::ostringstream line;
    for (const std::int64_t number : numbers) line << number << ' ';
    line << '\n';
    const std::string text = line.str();
    return ::write(file_, text.data(), text.size()) > 0;
  }

 private:
  int file_;
};

int stamp_and_wait(torchup::Worker& worker, const std::filesystem::path& folder) {
  const std::int64_t begun = monotonic_ns();
  if (!Stamps{folder}.write({worker.restart_count(), worker.rank(), begun, ::getpid()})) return 1;
  std::this_thread::sleep_for(1000s);
  return 0;
}

int train(torchup::Worker& worker, const std::filesystem::path& folder) {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  const auto group = torchup::init_process_group({.backend = "gloo"});
  torch::nn::Sequential net{torch::nn::Linear{512, 512}, torch::nn::ReLU{}, torch::nn::Linear{512, 10}};
  torchup::DistributedDataParallel ddp{net, group};
  torch::optim::SGD optimizer{ddp.parameters(), torch::optim::SGDOptions{0.01}.momentum(0.9)};
  torchup::Checkpoint checkpoint{folder / "checkpoint", group, {.keep_last = 2}};
  const Stamps stamps{folder};
  torchup::Elastic elastic{worker, group, {.seed = 1, .load = [&] { return checkpoint.resume(net, optimizer, ddp); }}};
  return elastic.run(
      [&](torchup::Position at) {
        for (;;) {
          ddp(torch::randn({32, 512})).square().mean().backward();
          elastic.step(optimizer);
          optimizer.zero_grad();
          ++at.step;
          if (elastic.commit(at).stop) return checkpoint.save_and_requeue(at);
          if (!stamps.write({at.step, ::getpid(), monotonic_ns()})) return 1;
          if (at.step % 20 == 0) checkpoint.save(at, net, optimizer, ddp);
          std::this_thread::sleep_for(10ms);
        }
      },
      net, optimizer, ddp);
}

double timed(const torchup::ProcessGroup& group, const std::function<void()>& work) {
  torchup::barrier(group);
  const auto begin = std::chrono::steady_clock::now();
  work();
  torchup::barrier(group);
  return std::chrono::duration<double>{std::chrono::steady_clock::now() - begin}.count();
}

struct Tensors : torch::nn::Module {
  explicit Tensors(double value) {
    constexpr int count = 54;
    constexpr std::int64_t numbers = 100'000'000 / count / 4;
    for (int i = 0; i < count; ++i) register_parameter(std::to_string(i), torch::full({numbers}, value));
  }
};

/// The parameters are there already, with the newcomer's first values in them.
double newcomer(const torchup::ProcessGroup& group) {
  auto net = std::make_shared<Tensors>(group.rank());
  torchup::TrainingState state{torchup::CheckpointParts::of(net), true};
  if (group.rank() == 0) state.commit({.epoch = 0, .step = 5});
  const double seconds = timed(group, [&] { torchup::exchange_state(state, group, 0, /*takes=*/group.rank() == 1); });
  if (state.position().step != 5 || net->parameters().back().any().item<bool>()) std::abort();
  return seconds;
}

double broadcast(const torchup::ProcessGroup& group) {
  auto tensor = torch::full({100'000'000 / 4}, static_cast<double>(group.rank()), torch::kFloat32);
  const double seconds = timed(group, [&] { torchup::broadcast(tensor, group, 0); });
  if (tensor.any().item<bool>()) std::abort();
  return seconds;
}

Seconds commits(std::optional<std::uint64_t> seed) {
  torch::nn::Sequential net;
  for (int i = 0; i < 7; ++i) net->push_back(torch::nn::BatchNorm1d{64});
  torch::optim::AdamW optimizer{net->parameters()};
  torchup::TrainingState state{torchup::CheckpointParts::of(net, optimizer), true};
  state.begin(seed);
  Seconds seconds;
  for (int step = 1; step <= 200; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    state.step_begins();
    state.commit({.epoch = 0, .step = step});
    seconds.push_back(std::chrono::duration<double>{std::chrono::steady_clock::now() - begin}.count());
  }
  return seconds;
}

int measure(int rounds) {
  torch::set_num_threads(1);
  const auto group = torchup::init_process_group({.backend = "gloo"});
  Seconds newcomers, broadcasts;
  for (int round = 0; round <= rounds; ++round) {
    double taken = 0, sent = 0;
    if (round % 2 == 0) {
      taken = newcomer(group);
      sent = broadcast(group);
    } else {
      sent = broadcast(group);
      taken = newcomer(group);
    }
    if (round == 0) continue;  // to warm up
    newcomers.push_back(taken);
    broadcasts.push_back(sent);
  }
  if (group.rank() != 0) return 0;
  const char* begin = "{";
  for (const auto& [name, seconds] : {std::pair{"newcomer", newcomers},
                                      {"broadcast", broadcasts},
                                      {"commit", commits({})},
                                      {"seeded commit", commits(42)}}) {
    std::printf("%s\"%s\": [", begin, name);
    for (std::size_t i = 0; i < seconds.size(); ++i) std::printf(i == 0 ? "%g" : ", %g", seconds[i]);
    std::printf("]");
    begin = ", ";
  }
  std::printf("}\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 2 ? argv[1] : "";
  if (mode == "state") return measure(std::atoi(argv[2]));
  if (mode != "job" && mode != "main") return 2;
  return torchup::worker_main(argc, argv, [&](torchup::Worker& worker, std::span<char*> arguments) {
    return mode == "main" ? stamp_and_wait(worker, arguments[2]) : train(worker, arguments[2]);
  });
}

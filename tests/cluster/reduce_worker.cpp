// reduce_worker.py in C++: a worker that meets the others by gloo and sums until it is told to end. Argument: the
// folder.
//
// Says in FOLDER/workers.jsonl that it started once the first sum was right. FOLDER/release: all exit 0 together.
// FOLDER/fail.PID: exits with the number in it.
#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <torchup/torchup.hpp>

#include "tests/worker_runtime/test_program.hpp"

namespace reduce_worker {

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value) throw std::runtime_error{std::string{name} + " is not set"};
  return value;
}

void say_started(const std::string& folder, const torchup::Worker& worker) {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const std::string line =
      "{\"pid\": " + std::to_string(::getpid()) + ", \"host\": \"" + host +
      "\", \"rank\": " + std::to_string(worker.rank()) + ", \"world\": " + std::to_string(worker.world_size()) +
      ", \"group_rank\": " + variable("GROUP_RANK") + ", \"restarts\": " + std::to_string(worker.restart_count()) +
      ", \"master\": \"" + variable("MASTER_ADDR") + ":" + variable("MASTER_PORT") +
      "\", \"time\": " + std::to_string(static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9) +
      "}\n";
  const int log = ::open((folder + "/workers.jsonl").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (log < 0 || ::write(log, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    throw std::runtime_error{"the log cannot be written"};
  }
  ::close(log);
}

int work(torchup::Worker& worker, std::span<char*> arguments) {
  const std::string folder = arguments[1], fail = folder + "/fail." + std::to_string(::getpid());
  auto group = torchup::init_process_group({.backend = "gloo"});
  const auto total = [&](float value) {
    torch::Tensor sum = torch::full({1}, value);
    torchup::all_reduce(sum, group);
    return sum.item<float>();
  };
  const int world = worker.world_size();
  if (total(static_cast<float>(worker.rank() + 1)) != static_cast<float>(world * (world + 1)) / 2) return 9;
  say_started(folder, worker);
  while (total(std::filesystem::exists(folder + "/release") ? 1 : 0) == 0) {
    if (int code = 0; std::ifstream{fail} >> code) std::_Exit(code);
    std::this_thread::sleep_for(std::chrono::milliseconds{100});
  }
  group.shutdown();
  return 0;
}

}  // namespace

int run_as_program(int argc, char** argv) { return torchup::worker_main(argc, argv, work); }

const TestProgram program{"reduce_worker", run_as_program};

}  // namespace reduce_worker

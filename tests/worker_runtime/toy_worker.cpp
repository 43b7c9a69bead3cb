// A worker that does what the first argument says; driven by worker_test.py.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <torchup/torchup.hpp>

namespace {

[[gnu::noinline]] void fail_here(std::string_view how) {
  if (how == "throw") throw std::out_of_range{"no sample 7"};
  if (how == "throw-error") throw torchup::Error{"said \"no\"\nin two lines"};
  if (how == "throw-int") throw 7;
  if (how == "throw-torch") torch::ones({2, 3}).matmul(torch::ones({2, 3}));
  if (how == "abort") std::abort();
  if (how == "segv") {
    volatile int* nowhere = nullptr;
    *nowhere = 1;
  }
}

[[gnu::noinline]] int overflow(int depth) {
  if (depth < 0) return 0;  // never: the stack ends first
  volatile char page[4096] = {};
  page[depth % 4096] = static_cast<char>(depth);
  return overflow(depth + 1) + page[0];
}

/// Prints a line that no destructor may print after a failure.
struct Farewell {
  ~Farewell() { std::puts("destroyed"); }
};

int train(torchup::Worker& worker, std::span<char*> arguments) {
  const Farewell farewell;
  const std::string_view what = arguments.size() > 1 ? arguments[1] : "report";
  if (what == "report") {
    std::printf("rank %d of %d, local rank %d of %d, restart %d, device %s, arguments", worker.rank(), worker.world_size(),
                worker.local_rank(), worker.local_world_size(), worker.restart_count(), worker.device().str().c_str());
    for (const char* argument : arguments) std::printf(" [%s]", argument);
    std::printf("%s\n", arguments.data()[arguments.size()] == nullptr ? " and a null" : "");
    return 0;
  }
  worker.end_step(41);
  if (what == "thread") {
    std::thread{[] { fail_here("throw"); }}.join();
  } else if (what == "overflow") {
    return overflow(0);
  } else if (what == "exit") {
    return 3;
  } else {
    fail_here(what);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return torchup::worker_main(argc, argv, train); }

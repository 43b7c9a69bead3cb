// A worker that does what the first argument says; driven by worker_test.py.
#include <torch/torch.h>

#include <barrier>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <torchup/torchup.hpp>

#include "tests/worker_runtime/test_program.hpp"
#include "worker_runtime/group/outcome_board.hpp"
#include "worker_runtime/worker/last_words.hpp"

namespace toy_worker {

namespace {

[[gnu::noinline]] void fail_here(std::string_view how) {
  if (how == "throw") throw std::out_of_range{"no sample 7"};
  if (how == "throw-error") throw torchup::Error{"said \"no\"\nin two lines"};
  if (how == "throw-int") throw 7;
  if (how == "throw-torch") torch::ones({2, 3}).matmul(torch::ones({2, 3}));
  if (how == "abort") std::abort();
  if (how == "quit") ::raise(SIGQUIT);
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

/// Two threads go wrong in one and the same moment, as those of a kernel do.
[[noreturn]] void fail_together(std::string_view how) {
  std::barrier both{2};
  const auto fail = [&] {
    both.arrive_and_wait();
    fail_here(how);
  };
  std::jthread other{fail};
  fail();
  std::abort();
}

/// Prints a line that no destructor may print after a failure.
struct Farewell {
  ~Farewell() { std::puts("destroyed"); }
};

[[gnu::noinline]] void hang_here() {
  for (;;) std::this_thread::sleep_for(std::chrono::seconds{1});
}

/// Five steps, then rank 1 crashes while the others wait for it.
int five_steps(torchup::Worker& worker, std::string_view then) {
  auto group = torchup::init_process_group({.backend = "gloo"});
  torch::Tensor tensor = torch::ones({1});
  for (std::int64_t step = 1;; ++step) {
    if (step == 6 && worker.rank() == 1) fail_here(then);
    torchup::all_reduce(tensor, group);
    worker.end_step(step);
  }
}

/// Rank 1 hangs once the others are where they wait for it. The step before is the first one that ends, as after a
/// resumption: ranks are watched from there on, and there is none that a busy machine could be too slow for.
int hang(torchup::Worker& worker) {
  auto group = torchup::init_process_group({.backend = "gloo"});
  torch::Tensor tensor = torch::ones({1});
  torchup::all_reduce(tensor, group);
  if (worker.rank() == 1) {
    group.store()->wait({"rank 0 waits", "rank 2 waits"});
    worker.end_step(5);
    hang_here();
  }
  // Before the step ends: from there on rank 1 is not to be waited for by a watched rank.
  group.store()->set("rank " + std::to_string(worker.rank()) + " waits", std::string{"1"});
  worker.end_step(5);
  torchup::all_reduce(tensor, group);
  return 0;
}

/// One of two ranks leaves out a collective: of the job's group, or of another one.
int skip(torchup::Worker& worker, int who, bool other) {
  auto group = torchup::init_process_group({.backend = "gloo"});
  torch::Tensor tensor = torch::ones({256, 4});
  for (int i = 0; i < 3; ++i) torchup::all_reduce(tensor, group);
  const auto pair = group.new_group(std::vector<int>{0, 1});
  if (worker.rank() == who) hang_here();
  if (other) torchup::broadcast(tensor, *pair, 0);
  torchup::all_reduce(tensor, group);
  return 0;
}

/// Rank 1 of two ends in the first round; in the next rank 0, which has survived, leaves out the fifth collective.
int skip_in_elastic_run(torchup::Worker& worker) {
  auto group = torchup::init_process_group({.backend = "gloo"});
  torch::nn::Linear net{2, 1};
  torchup::Elastic elastic{worker, group, {.seed = 1}};
  return elastic.run(
      [&](torchup::Position) {
        torch::Tensor tensor = torch::ones({8});
        const bool first = worker.restart_count() == 0;
        for (int i = 0; i < (first ? 60 : 4); ++i) torchup::all_reduce(tensor, group);
        if (first && worker.rank() == 1) std::_Exit(9);
        if (!first && worker.rank() == 0) hang_here();
        torchup::all_reduce(tensor, group);
        return 0;
      },
      net);
}

/// Steps with a collective every `every` steps: in between, ranks drift apart. Ends when told to stop.
int steps(torchup::Worker& worker, int every) {
  auto group = torchup::init_process_group({.backend = "gloo"});
  torch::Tensor tensor = torch::ones({1});
  for (std::int64_t step = 1; step < 100000; ++step) {
    std::this_thread::sleep_for(std::chrono::microseconds{500 * (worker.rank() + 1)});
    if (step % every == 0) torchup::all_reduce(tensor, group);
    if (worker.end_step(step).stop) {
      std::printf("stop %lld\n", static_cast<long long>(step));
      torchup::barrier(group);
      return torchup::exit_requeue;
    }
    if (step == 1) std::puts("begun"), std::fflush(stdout);
  }
  return 1;
}

int zero_first(torchup::Worker& worker, std::string_view what) {
  auto group = torchup::init_process_group({.backend = "gloo"});
  for (const bool per_node : {true, false}) {
    const torchup::ZeroFirst guard{group, {.per_node = per_node || what != "zero-first"}};
    if (what == "zero-first-waits") {
      if (guard.first()) std::getchar();
      return 0;
    }
    if (guard.first()) std::this_thread::sleep_for(std::chrono::milliseconds{300});
    if (guard.first() && what == "zero-first-fails") {
      try {
        const torchup::ZeroFirst nested{group};
        throw std::runtime_error{"no such data"};
      } catch (const std::runtime_error&) {
        std::this_thread::sleep_for(std::chrono::seconds{1});
        return 0;
      }
    }
    if (guard.first() && what == "zero-first-crashes") throw std::runtime_error{"the disk is full"};
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    std::printf("%s %lld\n", guard.first() ? "first" : "later",
                static_cast<long long>(now.tv_sec) * 1000 + now.tv_nsec / 1000000);
  }
  (void)worker;
  return 0;
}

/// Rank 0 tells the others, once a line of input has come, how something went.
int outcome(torchup::Worker& worker) {
  auto group = torchup::init_process_group({.backend = "gloo"});
  torchup::OutcomeBoard board{group, "toy"};
  std::puts("begun"), std::fflush(stdout);
  if (worker.rank() == 0) {
    std::getchar();
    board.publish(1, "no room");
  } else {
    std::puts(board.wait_for(1).c_str());
  }
  return 0;
}

/// Rank 0 waits for a line of input before it says what its model is.
int wrapped(torchup::Worker& worker) {
  auto group = torchup::init_process_group({.backend = "gloo"});
  torch::nn::Linear net{2, 1};
  std::puts("begun"), std::fflush(stdout);
  if (worker.rank() == 0) std::getchar();
  const torchup::DistributedDataParallel ddp(net, group);
  return 0;
}

int train(torchup::Worker& worker, std::span<char*> arguments) {
  const Farewell farewell;
  const std::string_view what = arguments.size() > 1 ? arguments[1] : "report";
  if (what == "report") {
    std::printf("rank %d of %d, local rank %d of %d, restart %d, device %s, arguments", worker.rank(),
                worker.world_size(), worker.local_rank(), worker.local_world_size(), worker.restart_count(),
                worker.device().str().c_str());
    for (const char* argument : arguments) std::printf(" [%s]", argument);
    std::printf("%s\n", arguments.data()[arguments.size()] == nullptr ? " and a null" : "");
    return 0;
  }
  if (what == "five-steps") return five_steps(worker, arguments[2]);
  if (what == "hang") return hang(worker);
  if (what == "skip") return skip(worker, std::atoi(arguments[2]), arguments.size() > 3);
  if (what == "skip-in-elastic-run") return skip_in_elastic_run(worker);
  if (what == "steps") return steps(worker, std::atoi(arguments[2]));
  if (what == "outcome") return outcome(worker);
  if (what == "wrapped") return wrapped(worker);
  if (what.starts_with("zero-first")) return zero_first(worker, what);
  if (what == "spawned") {
    auto group = torchup::init_process_group({.backend = "gloo"});
    torch::Tensor sum = torch::tensor(worker.rank() + 1);
    torchup::all_reduce(sum, group);
    std::printf("rank %d of %d: sum %d\n", worker.rank(), worker.world_size(), sum.item<int>());
    std::fflush(stdout);
    const bool fails = arguments.size() > 2 && std::atoi(arguments[2]) == worker.rank();
    if (fails) return 7;
    if (arguments.size() > 2) std::this_thread::sleep_for(std::chrono::seconds{60});
    group.shutdown();
    return 0;
  }
  worker.end_step(41);
  if (what == "two-threads") fail_together("segv");
  if (what == "no-utf8") throw torchup::Error{"caf\xe9 " + std::string(400 << 10, '\x80')};
  if (what == "long-message") throw torchup::Error{std::string(400 << 10, '"')};
  if (what == "thread") {
    std::thread{[] { fail_here("throw"); }}.join();
  } else if (what == "action-hangs") {
    torchup::at_failure([](void*, const char*) { hang_here(); }, nullptr);
    fail_here("throw");
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

int run_as_program(int argc, char** argv) {
  if (argc > 1 && std::string_view{argv[1]} == "spawned") return torchup::spawn(argc, argv, train, 3);
  return torchup::worker_main(argc, argv, train);
}

const TestProgram program{"toy_worker", run_as_program};

}  // namespace toy_worker

#include "worker_runtime/worker/stop_agreement.hpp"

#include <catch2/catch.hpp>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "worker_runtime/store/job_store.hpp"
#include "worker_runtime/worker/worker_state.hpp"

using namespace torchup;
using namespace std::chrono_literals;

TEST_CASE("a stop that one rank does not answer: all go on, and stop when it has", "[worker_runtime][stop]") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  set_job_store(store, "n1");
  const auto rank = [](int number) {
    return StopAgreement::Ranks{.rank = number, .world_size = 3, .answer_limit = 2s};
  };
  {
    StopAgreement asked{rank(0), [] { return true; }}, other{rank(1), [] { return false; }};
    store->wait({"torchup/stop/n1/0/0/stop_at"}, 30s);
    for (int step = 0; step < 3; ++step) {
      CHECK_FALSE(asked.end_step());
      CHECK_FALSE(other.end_step());
    }
    const auto answers = store->add("torchup/stop/n1/0/0/answers", 0);
    CHECK((answers == 1 || answers == 2));  // the other may learn of it only now

    StopAgreement late{{.rank = 2, .world_size = 3}, [] { return false; }};
    const auto steps_of = [](StopAgreement& agreement) {
      return std::async(std::launch::async, [&agreement] {
        int steps = 0;
        while (!agreement.end_step()) {
          ++steps;
          std::this_thread::sleep_for(1ms);
        }
        return steps;
      });
    };
    auto first = steps_of(asked), second = steps_of(other), third = steps_of(late);
    CHECK(first.get() == second.get());  // both had made three steps before
    CHECK(third.get() > 0);
  }
  set_job_store(nullptr);
}

TEST_CASE("what was agreed on before Elastic::run is not agreed on in it", "[worker_runtime][stop]") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  set_job_store(store, "n1");
  {
    StopAgreement first{{.rank = 0, .world_size = 2}, [] { return true; }};
    StopAgreement second{{.rank = 1, .world_size = 2}, [] { return false; }};
    store->wait({"torchup/stop/n1/0/0/stop_at"}, 30s);
  }
  {
    StopAgreement later{{.rank = 0, .world_size = 2, .run = 1}, [] { return false; }};
    std::this_thread::sleep_for(300ms);  // three looks
    CHECK_FALSE(later.end_step());
    CHECK(store->add("torchup/stop/n1/1/0/answers", 0) == 0);
  }
  set_job_store(nullptr);
}

TEST_CASE("all ranks stop after the same step", "[worker_runtime][stop]") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  set_job_store(store);
  {
    StopAgreement first{{.rank = 0, .world_size = 2}, [] { return true; }};
    StopAgreement second{{.rank = 1, .world_size = 2}, [] { return false; }};
    int first_steps = 0, second_steps = 0;
    std::thread ahead{[&] {
      while (!first.end_step()) ++first_steps;
    }};
    while (!second.end_step()) ++second_steps;
    ahead.join();
    CHECK(first_steps == second_steps);
  }
  set_job_store(nullptr);
}

namespace {

class WatchedStore : public c10d::HashStore {
 public:
  bool check(const std::vector<std::string>& keys) override {
    asked = true;
    return HashStore::check(keys);
  }
  std::atomic<bool> asked{false};
};

}  // namespace

TEST_CASE("a round's agreement begins when the one before has ended: they share a connection",
          "[worker_runtime][stop]") {
  std::promise<void> entered, leave;
  std::atomic<bool> first_call{true};
  Worker::State state;
  state.place.world_size = 2;
  state.stop = std::make_unique<StopAgreement>(StopAgreement::Ranks{}, [&] {
    if (first_call.exchange(false)) {
      entered.set_value();
      leave.get_future().wait();
    }
    return false;
  });
  entered.get_future().wait();
  const auto store = c10::make_intrusive<WatchedStore>();
  set_job_store(store, "n1");

  std::thread training{[&] { state.begin_round(1); }};
  std::this_thread::sleep_for(300ms);  // three looks of a new one
  CHECK_FALSE(store->asked);
  leave.set_value();
  training.join();
  for (int look = 0; look < 1000 && !store->asked; ++look) std::this_thread::sleep_for(10ms);
  CHECK(store->asked);
  state.stop.reset();
  set_job_store(nullptr);
}

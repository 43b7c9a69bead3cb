// Elastic::run of one rank that nobody has started: what it calls, and what it refuses.
#include "torchup/elastic.hpp"

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <stdexcept>
#include <torchup/collectives.hpp>
#include <torchup/error.hpp>
#include <torchup/zero_redundancy_optimizer.hpp>

#include "worker_runtime/group/group_state.hpp"
#include "worker_runtime/worker/worker_state.hpp"

namespace elastic_test {

using namespace torchup;
using Catch::Contains;

/// A program that is alone.
struct Alone {
  Worker worker{std::make_unique<Worker::State>()};
  ProcessGroup group = init_process_group();
  torch::nn::Linear net{2, 1};
  torch::optim::SGD optimizer{net->parameters(), 0.1};

  void backward() { net->forward(torch::ones({4, 2})).sum().backward(); }
};

TEST_CASE("alone, the function is called once, where load says that the job stands", "[worker_runtime][elastic]") {
  Alone program;
  Elastic elastic{program.worker, program.group, {.seed = 1, .load = [] { return Position{.epoch = 2, .step = 7}; }}};
  int calls = 0;
  const auto before = program.net->weight.detach().clone();
  const auto train = [&](Position at) {
    ++calls;
    REQUIRE(at == Position{.epoch = 2, .step = 7});
    program.backward();
    elastic.step(program.optimizer);
    REQUIRE_FALSE(elastic.commit({.epoch = 2, .step = 8}).stop);
    return 3;
  };
  REQUIRE(elastic.run(train, program.net, program.optimizer) == 3);
  REQUIRE(calls == 1);
  REQUIRE_FALSE(torch::equal(program.net->weight, before));
}

TEST_CASE("groups of two calls have keys of their own in the store", "[worker_runtime][elastic]") {
  Alone program;
  Elastic elastic{program.worker, program.group};
  std::vector<std::string> names;
  const auto train = [&](Position) {
    names.push_back(program.group.new_group(std::vector{0})->name());
    return 0;
  };
  elastic.run(train, program.net);
  elastic.run(train, program.net);
  REQUIRE(names.at(0) != names.at(1));
}

TEST_CASE("an exception of the function's own leaves run as it is", "[worker_runtime][elastic]") {
  Alone program;
  Elastic elastic{program.worker, program.group};
  const auto fail = [](Position) -> int { throw std::out_of_range{"bad batch"}; };
  REQUIRE_THROWS_AS(elastic.run(fail, program.net), std::out_of_range);
  REQUIRE(elastic.run([](Position) { return 0; }, program.net) == 0);  // and it can be called again
}

TEST_CASE("a commit is that of a step", "[worker_runtime][elastic]") {
  Alone program;
  Elastic elastic{program.worker, program.group};
  REQUIRE_THROWS_WITH(elastic.commit({}), Contains("outside of Elastic::run"));
  const auto no_step = [&](Position at) { return elastic.commit(at).stop ? 1 : 0; };
  REQUIRE_THROWS_WITH(elastic.run(no_step, program.net, program.optimizer), Contains("no optimizer's step"));
  REQUIRE(elastic.run(no_step, program.net) == 0);  // what has no optimizer takes none
}

TEST_CASE("run refuses what it cannot do", "[worker_runtime][elastic]") {
  Alone program;
  Elastic elastic{program.worker, program.group};
  const auto train = [](Position) { return 0; };
  SECTION("inside of itself") {
    Elastic another{program.worker, program.group};
    const auto nested = [&](Position) { return another.run(train, program.net); };
    REQUIRE_THROWS_WITH(elastic.run(nested, program.net), Contains("one at a time"));
    REQUIRE(another.run(train, program.net) == 0);
  }
  SECTION("after collectives of the program's own") {
    barrier(program.group);
    REQUIRE_THROWS_WITH(elastic.run(train, program.net), Contains("since init_process_group"));
  }
  SECTION("after groups of the program's own") {
    const auto child = program.group.new_group(std::vector{0});
    REQUIRE_THROWS_WITH(elastic.run(train, program.net), Contains("since init_process_group"));
  }
  SECTION("with ranks that are Python processes") {
    auto& state = GroupAccess::state(program.group);
    JobState job = *state.job;
    job.all_native = false;
    state.job = std::make_shared<const JobState>(job);
    REQUIRE_THROWS_WITH(elastic.run(train, program.net), Contains("Python"));
  }
  SECTION("without a way back, where ranks hold different things") {
    Elastic sharded{program.worker, program.group, {.replicated = false}};
    REQUIRE_THROWS_WITH(sharded.run(train, program.net), Contains("needs a .load"));
  }
  SECTION("ranks that hold different things, and are said to be alike") {
    ZeroRedundancyOptimizer<torch::optim::SGD> zero{program.net->parameters(), program.group,
                                                    torch::optim::SGDOptions{0.1}};
    REQUIRE_THROWS_WITH(elastic.run(train, program.net, zero), Contains(".replicated = false"));
    torch::optim::Optimizer& by_reference = zero;
    REQUIRE_THROWS_WITH(elastic.run(train, program.net, by_reference), Contains(".replicated = false"));
  }
  SECTION("over a group of some ranks") {
    const auto child = program.group.new_group(std::vector{0});
    REQUIRE_THROWS_WITH((Elastic{program.worker, *child}), Contains("takes the job's group"));
  }
}

}  // namespace elastic_test

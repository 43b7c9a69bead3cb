// The thread that tells an agent of groups: a real page and channel, whose other ends are ours.
#include "worker_runtime/worker/look_answerer.hpp"

#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <torchup/torchup.hpp>

#include "tests/worker_runtime/worker/look_agent.hpp"

using namespace torchup;
using namespace std::chrono_literals;
using nlohmann::json;

namespace {

template <class Condition>
void wait_until(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + 60s;
  while (!condition()) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    std::this_thread::sleep_for(1ms);
  }
}

}  // namespace

TEST_CASE("an agent is answered from the first group on", "[worker_runtime][look_answerer]") {
  const LookAgent agent;
  LookAnswerer answerer{agent.page(), &agent.channel()};
  REQUIRE(agent.helper() == 0);
  const ProcessGroup group = init_process_group({.backend = "gloo"});
  wait_until([&] { return agent.helper() != 0; });
  for (int i = 0; i < 3; ++i) all_reduce(torch::ones({2, 3}), group);
  agent.ask(7);
  const auto looked = agent.hear();
  REQUIRE(looked);
  CAPTURE(looked->text);
  REQUIRE(looked->number == 7);
  const json answer = json::parse(looked->text);
  REQUIRE(answer["groups"].size() == 1);
  const json& told = answer["groups"][0];
  CHECK(told["name"] == "0");
  CHECK(told["desc"] == "default_pg");
  CHECK(told["ranks"] == "0");
  REQUIRE(answer["entries"].size() == 3);  // not those of groups of other tests, which have the name too
  const json& last = answer["entries"][2];
  CHECK(last["group"] == "0");
  CHECK(last["number"] == told["number"]);
  CHECK(last["operation"] == "gloo:all_reduce");
  CHECK(last["sizes"] == json::parse("[[2, 3]]"));
  CHECK(last["dtypes"] == json::parse(R"(["Float"])"));
  wait_until([&] { return agent.collectives() == told["seq"].get<std::uint64_t>(); });
  CHECK(agent.collectives_at() != 0);
  CHECK(agent.ending_at() == 0);
  all_reduce(torch::ones({2, 3}), group);
  answerer.stop();
  CHECK(agent.collectives() == told["seq"].get<std::uint64_t>() + 1);
  CHECK(agent.helper() == 0);
  CHECK(agent.ending_at() != 0);
}

TEST_CASE("while the channel is lent another one reads it", "[worker_runtime][look_answerer]") {
  const LookAgent agent;
  LookAnswerer answerer{agent.page(), &agent.channel()};
  const ProcessGroup group = init_process_group({.backend = "gloo"});
  agent.ask(1);
  REQUIRE(agent.hear()->number == 1);
  {
    const ChannelLoan loan{&answerer};
    agent.ask(2);
    loan.ask(3);
    REQUIRE(agent.hear()->number == 3);
    REQUIRE(agent.channel().read() == LookAgent::question(2));
    agent.ask(4);
  }
  REQUIRE(agent.hear()->number == 4);
}

TEST_CASE("a group that was made of another one is told until it has gone", "[worker_runtime][look_answerer]") {
  const LookAgent agent;
  LookAnswerer answerer{agent.page(), &agent.channel()};
  const ProcessGroup group = init_process_group({.backend = "gloo"});
  {
    const auto child = group.new_group(std::vector<int>{0});
    agent.ask(1);
    const json groups = json::parse(agent.hear()->text)["groups"];
    REQUIRE(groups.size() == 2);
    CHECK(groups[1]["name"] == "1");
    CHECK(groups[1]["number"] == -1);
  }
  agent.ask(2);
  CHECK(json::parse(agent.hear()->text)["groups"].size() == 1);
}

TEST_CASE("a child of the process ends without a thread that it has not", "[worker_runtime][look_answerer]") {
  const LookAgent agent;
  LookAnswerer answerer{agent.page(), &agent.channel()};
  const ProcessGroup group = init_process_group({.backend = "gloo"});
  wait_until([&] { return agent.helper() != 0; });
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    answerer.stop();
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  agent.ask(1);
  REQUIRE(agent.hear()->number == 1);
}

TEST_CASE("an agent that is older has counts alone", "[worker_runtime][look_answerer]") {
  const LookAgent agent{LookAgent::Memory::page_alone};
  LookAnswerer answerer{agent.page(), &agent.channel()};
  const ProcessGroup group = init_process_group({.backend = "gloo"});
  all_reduce(torch::ones({1}), group);
  wait_until([&] { return agent.collectives() != 0; });
  agent.ask(1);
  answerer.stop();
  REQUIRE_FALSE(agent.hear(0ms));
}

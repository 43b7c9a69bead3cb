#include "torchup/process_group.hpp"

#include <catch2/catch.hpp>
#include <stdexcept>

#include "worker_runtime/group/group_state.hpp"

using namespace torchup;

namespace {

struct CountingBackend : c10d::Backend {
  CountingBackend(int& shut_down, int& destroyed) : Backend{0, 2}, shut_down_{shut_down}, destroyed_{destroyed} {}
  ~CountingBackend() override { ++destroyed_; }
  void shutdown() override { ++shut_down_; }
  int& shut_down_;
  int& destroyed_;
};

ProcessGroup group_with(const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto state = std::make_shared<ProcessGroup::State>();
  state->name = std::string{"1"};  // g++ 12 warns of the literal
  state->job = std::make_shared<const JobState>();
  state->global_ranks = {0, 1};
  state->connection = std::make_unique<GroupConnection>(GroupConnection::Kind::nccl, [&] { return backend; });
  return ProcessGroup{std::move(state)};
}

}  // namespace

TEST_CASE("a group that is dropped is shut down before its backend goes", "[worker_runtime][process_group]") {
  int shut_down = 0, destroyed = 0;
  SECTION("at the end of its scope") {
    { const auto group = group_with(c10::make_intrusive<CountingBackend>(shut_down, destroyed)); }
    REQUIRE(shut_down == 1);
    REQUIRE(destroyed == 1);
  }
  SECTION("once, when the program did it itself") {
    {
      auto group = group_with(c10::make_intrusive<CountingBackend>(shut_down, destroyed));
      group.shutdown();
    }
    REQUIRE(shut_down == 1);
  }
  SECTION("not while an exception passes: peers may be gone, and the backend's end waits for them") {
    auto kept = c10::make_intrusive<CountingBackend>(shut_down, destroyed);
    try {
      const auto group = group_with(kept);
      throw std::runtime_error{"bad batch"};
    } catch (const std::runtime_error&) {
    }
    REQUIRE(shut_down == 0);
    REQUIRE(kept.use_count() == 2);  // left to the end of the process
  }
}

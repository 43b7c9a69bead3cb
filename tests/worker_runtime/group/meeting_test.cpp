#include "worker_runtime/group/meeting.hpp"

#include <catch2/catch.hpp>
#include <future>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torchup/error.hpp>

#include "tests/support/temporary_folder.hpp"

using namespace torchup;
using namespace std::chrono_literals;
using Catch::Contains;

namespace {

const BackendOffer on_cpu{.nccl = false, .gloo = true, .gpu = ""};
BackendOffer with_gpu(const char* identity) { return {.nccl = true, .gloo = true, .gpu = identity}; }
BackendOffer nccl_only(const char* identity) { return {.nccl = true, .gloo = false, .gpu = identity}; }

std::string vote(const std::vector<BackendOffer>& offers) {
  const auto [backend, why] = vote_on_backend(offers);
  return why.empty() ? backend : backend + ": " + why;
}

/// One rank of a job that meets over a file, and what `on_waiting` was told.
struct Rank {
  std::string result, said;
};
std::vector<Rank> meet_all(const std::vector<BackendOffer>& offers, const std::vector<std::string>& asked = {}) {
  const test::TemporaryFolder folder;
  std::vector<std::future<Rank>> ranks;
  for (std::size_t rank = 0; rank < offers.size(); ++rank)
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      Rank ended;
      MeetingPlan plan{.place = {.rank = static_cast<int>(rank),
                                 .world_size = static_cast<int>(offers.size()),
                                 .local_rank = static_cast<int>(rank),
                                 .local_size = static_cast<int>(offers.size())},
                       .file = folder.path / "store",
                       .asked_backend = asked.empty() ? "auto" : asked[rank],
                       .offer = offers[rank],
                       .timeout = std::chrono::seconds{20},
                       .on_waiting = [&ended](std::string_view line) { ended.said = line; }};
      try {
        ended.result = meet(plan).backend;
      } catch (const Error& error) {
        ended.result = error.what();
      }
      return ended;
    }));
  std::vector<Rank> results;
  for (auto& rank : ranks) results.push_back(rank.get());
  return results;
}

/// A store that an agent serves for as long as it lives, whatever rounds there are.
class AgentStore {
 public:
  AgentStore() {
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    server_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }
  /// A rank of a round, from when it comes: "gloo n1", or the error. `restarts` are those that its own agent has
  /// counted.
  std::future<std::string> come(int rank, int world_size, int restarts = 0, std::chrono::seconds timeout = 60s) {
    return std::async(std::launch::async, [this, rank, world_size, restarts, timeout] {
      MeetingPlan plan{.place = {.rank = rank,
                                 .world_size = world_size,
                                 .local_rank = rank,
                                 .local_size = world_size,
                                 .master_addr = "127.0.0.1",
                                 .master_port = server_->getPort(),
                                 .restart_count = restarts,
                                 .agent_store = true},
                       .file = {},
                       .asked_backend = "auto",
                       .offer = on_cpu,
                       .timeout = timeout,
                       .on_waiting = [](std::string_view) {}};
      try {
        const Meeting meeting = meet(plan);
        return meeting.backend + " " + meeting.round;
      } catch (const Error& error) {
        return std::string{error.what()};
      }
    });
  }
  /// Until the ranks have counted so far.
  void wait_for(const char* key, std::int64_t count) {
    while (server_->add(key, 0) < count) std::this_thread::sleep_for(5ms);
  }

 private:
  c10::intrusive_ptr<c10d::TCPStore> server_;
};

}  // namespace

TEST_CASE("all ranks take nccl, or all take gloo", "[worker_runtime][meeting]") {
  CHECK(vote({with_gpu("a"), with_gpu("b")}) == "nccl");
  CHECK(vote({with_gpu("a"), with_gpu("b"), with_gpu("a")}) == "gloo: ranks 0 and 2 have the same GPU, a");
  CHECK(vote({with_gpu(""), with_gpu("")}) == "nccl");  // NCCL was told that they share one
  CHECK(vote({with_gpu("a"), on_cpu}) == "gloo: rank 1 has no GPU of its own");
  CHECK(vote({on_cpu, on_cpu}) == "gloo");
  CHECK(vote({nccl_only("a"), with_gpu("b")}) == "nccl");
  CHECK_THROWS_WITH(vote({nccl_only("a"), nccl_only("a")}),
                    Contains("ranks 0 and 1") && Contains("one process per GPU"));
  CHECK_THROWS_WITH(vote({on_cpu, nccl_only("a")}), Contains("rank 1 takes only nccl, rank 0 cannot"));
  CHECK(offer_from_text(to_text(with_gpu("GPU-7"))) == with_gpu("GPU-7"));
  CHECK_THROWS_AS(offer_from_text(""), Error);
}

TEST_CASE("the ranks learn at their meeting which backend they use", "[worker_runtime][meeting]") {
  SECTION("each has a GPU") {
    for (const auto& rank : meet_all({with_gpu("a"), with_gpu("b"), with_gpu("c")})) {
      CHECK(rank.result == "nccl");
      CHECK(rank.said.empty());
    }
  }
  SECTION("two see the same GPU: one line says why it is left alone") {
    const auto ranks = meet_all({with_gpu("a"), with_gpu("b"), with_gpu("b")});
    for (const auto& rank : ranks) CHECK(rank.result == "gloo");
    CHECK(ranks[0].said == "all ranks use gloo and leave the GPUs alone: ranks 1 and 2 have the same GPU, b");
    CHECK(ranks[1].said.empty());
  }
  SECTION("two backends were asked for: all are told") {
    for (const auto& rank : meet_all({on_cpu, nccl_only("a")}, {"gloo", "nccl"}))
      CHECK_THAT(rank.result, Contains("do not agree") && Contains("backend gloo") && Contains("backend nccl"));
  }
  SECTION("nobody can have what one insists on") {
    for (const auto& rank : meet_all({with_gpu("a"), nccl_only("a")}, {"auto", "nccl"}))
      CHECK_THAT(rank.result, Contains("ranks 0 and 1 have the same GPU, a"));
  }
}

TEST_CASE("in a store that holds earlier rounds those of this one meet", "[worker_runtime][meeting]") {
  AgentStore store;
  auto first = store.come(0, 2), second = store.come(1, 2);
  CHECK(first.get() == "gloo n1");
  CHECK(second.get() == "gloo n1");
  SECTION("whoever comes first, and whatever their agents have counted") {
    second = store.come(1, 2, 1);
    CHECK(second.wait_for(500ms) == std::future_status::timeout);
    first = store.come(0, 2, 0);
    CHECK(first.get() == "gloo n2");
    CHECK(second.get() == "gloo n2");
  }
  SECTION("when there are more of them, or fewer") {
    auto third = store.come(2, 3);
    second = store.come(1, 3);
    CHECK(second.wait_for(500ms) == std::future_status::timeout);
    first = store.come(0, 3);
    for (auto* rank : {&first, &second, &third}) CHECK(rank->get() == "gloo n2");
    second = store.come(1, 2);
    CHECK(second.wait_for(500ms) == std::future_status::timeout);
    first = store.come(0, 2);
    CHECK(first.get() == "gloo n3");
    CHECK(second.get() == "gloo n3");
  }
  SECTION("after one to which not all came") {
    CHECK_THAT(store.come(0, 2, 0, 3s).get(), Contains("missing: rank 1"));
    second = store.come(1, 2);
    CHECK(second.wait_for(500ms) == std::future_status::timeout);
    first = store.come(0, 2);
    CHECK(first.get() == "gloo n3");
    CHECK(second.get() == "gloo n3");
  }
  SECTION("and who has come to one that is over follows") {
    auto early = store.come(0, 3);
    store.wait_for("torchup/rounds", 2);
    auto lonely = store.come(2, 3);
    store.wait_for("torchup/meeting/n2/arrived", 2);
    first = store.come(0, 3);
    CHECK_THAT(early.get(), Contains("this one gives way"));
    second = store.come(1, 3);
    for (auto* rank : {&first, &second, &lonely}) CHECK(rank->get() == "gloo n3");
  }
  SECTION("and who contradicts them is told") {
    first = store.come(0, 2);
    store.wait_for("torchup/meeting/n2/arrived", 1);
    second = store.come(1, 3);
    CHECK_THAT(second.get(), Contains("do not agree") && Contains("world size 3"));
    CHECK_THAT(first.get(), Contains("do not agree"));
  }
}

#include "worker_runtime/group/meeting.hpp"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <mutex>
#include <torchup/error.hpp>

using namespace torchup;
using Catch::Contains;

namespace {

const BackendOffer on_cpu{.nccl = false, .gloo = true, .gpu = ""};
BackendOffer with_gpu(const char* gpu) { return {.nccl = true, .gloo = true, .gpu = gpu}; }
BackendOffer nccl_only(const char* gpu) { return {.nccl = true, .gloo = false, .gpu = gpu}; }

std::string vote(const std::vector<BackendOffer>& offers) {
  const auto [backend, why] = vote_on_backend(offers);
  return why.empty() ? backend : backend + ": " + why;
}

/// One rank of a job that meets over a file, and what `on_waiting` was told.
struct Rank {
  std::string result, said;
};
std::vector<Rank> meet_all(const std::vector<BackendOffer>& offers, const std::vector<std::string>& asked = {}) {
  std::string folder = (std::filesystem::temp_directory_path() / "torchup-meeting-XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()));
  std::vector<std::future<Rank>> ranks;
  for (std::size_t rank = 0; rank < offers.size(); ++rank)
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      Rank ended;
      MeetingPlan plan{.place = {.rank = static_cast<int>(rank),
                                 .world_size = static_cast<int>(offers.size()),
                                 .local_rank = static_cast<int>(rank),
                                 .local_size = static_cast<int>(offers.size())},
                       .file = folder + "/store",
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
  std::filesystem::remove_all(folder);
  return results;
}

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

#include <catch2/catch.hpp>

#include "rendezvous/core/link/messages.hpp"

using namespace torchup;

namespace {

WorkerFailure failure(const char* host, int second, bool consequence = false) {
  WorkerFailure made;
  made.host = host;
  made.time_us = second * std::int64_t{1'000'000};
  made.consequence = consequence;
  return made;
}

}  // namespace

TEST_CASE("the root cause is no consequence, however early that was", "[unit][cause]") {
  CHECK(root_cause({failure("a", 10, true), failure("a", 12)}) == 1);
  CHECK(root_cause({failure("a", 10, true), failure("b", 1, true), failure("b", 12)}) == 2);
}

TEST_CASE("of several causes the earliest on the node that told first", "[unit][cause]") {
  CHECK(root_cause({failure("a", 10), failure("a", 9)}) == 1);
  CHECK(root_cause({failure("a", 10), failure("a", 10)}) == 0);
  SECTION("for clocks of nodes are not compared") { CHECK(root_cause({failure("a", 10), failure("b", 1)}) == 0); }
}

TEST_CASE("an exception counts from when it left the program, however long its process took to end", "[unit][cause]") {
  const auto raised = [](int second, std::int64_t at_ns) {
    WorkerFailure made = failure("a", second);
    made.raised_at_ns = at_ns;
    return made;
  };
  CHECK(root_cause({raised(10, 5'000), raised(10, 4'999)}) == 1);
  CHECK(root_cause({raised(10, 5'000), raised(9, 5'001)}) == 0);
  SECTION("where that is known of both") { CHECK(root_cause({raised(10, 5'000), failure("a", 9)}) == 1); }
}

TEST_CASE("where all are consequences the first stands for them", "[unit][cause]") {
  CHECK(root_cause({failure("a", 10, true), failure("b", 1, true)}) == 0);
}

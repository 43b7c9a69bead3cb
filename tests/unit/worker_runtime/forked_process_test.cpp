#include "worker_runtime/worker/forked_process.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

namespace {

/// What the template was given, and what a worker is to have: as a launcher makes them.
const Environment given{"HOME=/u", "THREADS=4", "LIST=a"};
const Environment wanted{"RANK=1", "HOST=node0", "HOME=/u", "THREADS=4", "LIST=a"};

}  // namespace

TEST_CASE("a worker has what its main has set, executed or forked", "[unit][preload]") {
  CHECK(as_main_leaves_it(given, given, wanted) == wanted);
  CHECK(as_main_leaves_it(given, {"HOME=/u", "THREADS=1", "LIST=a", "NEW=b"}, wanted) ==
        Environment{"RANK=1", "HOST=node0", "HOME=/u", "THREADS=1", "LIST=a", "NEW=b"});
  CHECK(as_main_leaves_it(given, {"HOME=/u", "LIST="}, wanted) ==
        Environment{"RANK=1", "HOST=node0", "HOME=/u", "LIST="});
}

TEST_CASE("what only a worker is given stays, whatever main has set without it", "[unit][preload]") {
  const Environment made{"HOME=/u", "THREADS=4", "LIST=a", "RANK=0", "HOST=localhost"};
  CHECK(as_main_leaves_it(given, made, wanted) == wanted);
  Environment other = wanted;
  other[3] = "THREADS=2";
  CHECK(as_main_leaves_it(given, {"HOME=/u", "THREADS=1", "LIST=a"}, other) == other);
}

TEST_CASE("of two variables with one name the first counts", "[unit][preload]") {
  const Environment twice{"A=1", "A=2", "B=1"};
  CHECK(as_main_leaves_it(twice, twice, twice) == twice);
  CHECK(as_main_leaves_it({"A=1"}, {"A=1", "A=2"}, {"A=1"}) == Environment{"A=1"});
}

#include "launcher/os/worker/seats.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <thread>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

std::string fresh_name(const char* test) { return fmt::format("torchup.test.{}.{}", test, ::getpid()); }

}  // namespace

TEST_CASE("all tasks of a node end with the agent's code", "[process][seats]") {
  const std::string name = fresh_name("all");
  std::array<int, 2> codes{-1, -1};
  std::thread first{[&] { codes[0] = sit(name, {1, {1}, "1"}); }};
  std::thread second{[&] { codes[1] = sit(name, {2, {2}, {}}); }};
  Seats seats;
  const auto gathered = seats.gather(name, 3);
  REQUIRE(gathered.has_value());
  REQUIRE(seats.cards().size() == 2);
  seats.tell(7);
  first.join();
  second.join();
  REQUIRE(codes == std::array<int, 2>{7, 7});
}

TEST_CASE("tasks that do not come are named, and those that have come hear of it", "[process][seats]") {
  const std::string name = fresh_name("missing");
  int code = -1;
  std::thread third{[&] { code = sit(name, {3, {}, {}}); }};
  Seats seats;
  const auto gathered = seats.gather(name, 5, 300ms);
  REQUIRE(gathered.has_error());
  REQUIRE(gathered.error().message() == "of the 5 tasks on this node these have not come within 1 s: 1-2,4");
  seats.tell(66);
  third.join();
  REQUIRE(code == 66);
}

TEST_CASE("a task without an agent ends with 67, one whose agent goes without a word with 70", "[process][seats]") {
  REQUIRE(sit(fresh_name("nobody"), {1, {}, {}}, 100ms) == 67);
  const std::string name = fresh_name("gone");
  int code = -1;
  std::thread task{[&] { code = sit(name, {1, {}, {}}); }};
  {
    Seats seats;
    const auto gathered = seats.gather(name, 2);
    REQUIRE(gathered.has_value());
  }
  task.join();
  REQUIRE(code == 70);
}

TEST_CASE("two agents of one name are one too many", "[process][seats]") {
  const std::string name = fresh_name("twice");
  std::thread first{[&] {
    Seats seats;
    Result<> gathered;
    do {
      gathered = seats.gather(name, 2);
    } while (gathered.has_error());  // the other one was there for a moment
    seats.tell(3);
  }};
  Result<> taken;
  do {
    taken = Seats{}.gather(name, 2, 0s);
  } while (taken.error().code == make_error_code(errc::refused));  // until the first is there
  REQUIRE(taken.error().code == boost::system::errc::address_in_use);
  REQUIRE(sit(name, {1, {}, {}}) == 3);
  first.join();
}

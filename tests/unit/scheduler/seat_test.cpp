#include "launcher/core/scheduler/seat_words.hpp"

#include <catch2/catch.hpp>

namespace torchup {
namespace {

const std::vector<SeatCard> four_tasks{{1, {1}, "1"}, {0, {0}, "0"}, {3, {3}, "3"}, {2, {2}, "2"}};

std::string why_seat(std::span<const SeatCard> cards, int tasks, std::optional<int> gpus = {}) {
  const auto seated = seat_workers(cards, tasks, tasks, gpus);
  return seated ? "none" : seated.error().message();
}

}  // namespace

TEST_CASE("each worker sits where its task was bound", "[unit][scheduler]") {
  const auto seated = seat_workers(four_tasks, 4, 4, 4);
  REQUIRE(seated.has_value());
  REQUIRE(seated->cpus == std::vector<CpuSet>{{0}, {1}, {2}, {3}});
  REQUIRE(seated->devices == "0,1,2,3");
}

TEST_CASE("another number of workers has all CPUs of all tasks", "[unit][scheduler]") {
  const auto seated = seat_workers(four_tasks, 4, 2, {});
  REQUIRE(seated->cpus == std::vector<CpuSet>{{0, 1, 2, 3}, {0, 1, 2, 3}});
  REQUIRE(seated->devices == "0,1,2,3");
}

TEST_CASE("devices that all tasks see are named once, and none where nobody names any", "[unit][scheduler]") {
  REQUIRE(seat_workers(std::vector<SeatCard>{{0, {0}, "0,1"}, {1, {1}, "0,1"}}, 2, 2, 2)->devices == "0,1");
  REQUIRE(seat_workers(std::vector<SeatCard>{{0, {0}, "1"}, {1, {1}, " 0,1"}}, 2, 2, 2)->devices == "1,0");
  REQUIRE(!seat_workers(std::vector<SeatCard>{{0, {0}, {}}, {1, {1}, {}}}, 2, 2, 4)->devices);
  REQUIRE(seat_workers(std::vector<SeatCard>{{0, {0}, "NoDevFiles"}, {1, {1}, ""}}, 2, 2, {})->devices == "");
}

TEST_CASE("GPUs that are bound to single tasks are refused with the way out", "[unit][scheduler]") {
  const std::vector<SeatCard> bound{{0, {0}, "0"}, {1, {1}, "0"}};
  REQUIRE(why_seat(bound, 2, 2) ==
          "Slurm bound this node's GPUs to single tasks: --ntasks-per-node=1, or --gpu-bind=none");
  REQUIRE(seat_workers(bound, 2, 2, 2).error().code == make_error_code(errc::refused));
  REQUIRE(why_seat(bound, 2, 1) == "none");
  REQUIRE(why_seat(bound, 2) == "none");
}

TEST_CASE("cards that are not those of the tasks are refused", "[unit][scheduler]") {
  REQUIRE(why_seat(std::vector<SeatCard>{{0, {}, {}}}, 2) == "task 1 of 2 is missing");
  REQUIRE(why_seat(std::vector<SeatCard>{{0, {}, {}}, {0, {}, {}}}, 2) == "two processes say that they are task 0");
  REQUIRE(why_seat(std::vector<SeatCard>{{0, {}, {}}, {2, {}, {}}}, 2) == "task 2 is not one of this node's 2");
  REQUIRE(why_seat(std::vector<SeatCard>{{-1, {}, {}}, {0, {}, {}}}, 2) == "task -1 is not one of this node's 2");
}

TEST_CASE("tasks and agent understand each other's packets, and no others", "[unit][scheduler]") {
  for (const SeatCard& card : std::vector<SeatCard>{{3, {0, 1, 2, 7}, "0,1"}, {0, {}, ""}, {1, {5}, {}}}) {
    const auto read = read_card(card_text(card));
    REQUIRE(read.has_value());
    REQUIRE(*read == card);
  }
  for (const char* bad : {"", "x", "0", "0\n1", "-1\n1\n-", "0\nx\n-", "0\n1\n0", "0\n1\n-\n", "99999999999\n1\n-"}) {
    CAPTURE(bad);
    REQUIRE(!read_card(bad).has_value());
  }
  REQUIRE(read_card(card_text({0, {1}, std::string(seat_packet_bytes_max - 6, '0')})).has_value());
  REQUIRE(!read_card(card_text({0, {1}, std::string(seat_packet_bytes_max - 5, '0')})).has_value());
  REQUIRE(read_code(code_text(0)) == 0);
  REQUIRE(read_code("255") == 255);
  for (const char* bad : {"", "256", "-1", "x", "1x"}) REQUIRE(!read_code(bad));
}

TEST_CASE("the name of a node's tasks fits a socket, and differs by step and user", "[unit][scheduler]") {
  REQUIRE(seat_name("slurm.c.17.0.0", 1000) == "torchup.slurm.c.17.0.0.1000");
  const std::string longest(256, 'r');
  REQUIRE(seat_name(longest, 4294967294U).size() <= 107);
  REQUIRE(seat_name(longest, 1) != seat_name(longest + "s", 1));
  REQUIRE(seat_name(longest, 1) != seat_name(longest, 2));
}

}  // namespace torchup

#include "rendezvous/base/worker_page.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

using namespace torchup;
namespace wp = worker_page;

namespace {

struct Page {
  std::vector<std::byte> bytes = std::vector<std::byte>(worker_page_bytes);

  Page& put(std::size_t offset, std::uint64_t value) {
    std::memcpy(bytes.data() + offset, &value, sizeof value);
    return *this;
  }
  Page& beat(std::uint64_t number, std::uint64_t step) {
    const std::size_t slot = wp::beats + (number % 2) * wp::beat_bytes;
    return put(slot + wp::beat_number, number).put(slot + wp::beat_step, step).put(slot + wp::beat_time, 1000 + number);
  }
};

Page opened() { return Page{}.put(wp::magic, wp::magic_value).put(wp::pid, 77); }

}  // namespace

TEST_CASE("the newest beat of a worker is read", "[unit][worker_page]") {
  Page page = opened().beat(4, 40).beat(5, 50).put(wp::newest, 5).put(wp::waiting_since, 9).put(wp::saving_since, 7);
  const auto progress = read_worker_page(page.bytes, 77);
  REQUIRE(progress ==
          WorkerProgress{.beats = 5, .step = 50, .ended_ns = 1005, .waiting_since_ns = 9, .saving_since_ns = 7});
}

TEST_CASE("the first step and all waiting are read where they are known", "[unit][worker_page]") {
  Page page = opened().beat(4, 40).put(wp::newest, 4);
  CHECK(read_worker_page(page.bytes, 77)->first_ns == 0);
  page.put(wp::first_step, 37).put(wp::first_time, 1001).put(wp::total_waited, 12);
  const auto progress = read_worker_page(page.bytes, 77);
  CHECK((progress->first_step == 37 && progress->first_ns == 1001 && progress->total_waited_ns == 12));
  page.put(wp::first_time, ~0ULL).put(wp::total_waited, 1ULL << 63);
  CHECK((read_worker_page(page.bytes, 77)->first_ns == 0 && read_worker_page(page.bytes, 77)->total_waited_ns == 0));
}

TEST_CASE("a beat that is being written does not hide the one before", "[unit][worker_page]") {
  SECTION("the worker died in it") {
    Page page =
        opened().beat(4, 40).beat(5, 50).put(wp::beats + wp::beat_bytes + wp::beat_number, 0).put(wp::newest, 4);
    REQUIRE(read_worker_page(page.bytes, 77)->step == 40);
  }
  SECTION("the copy was overtaken") {
    Page page = opened().beat(5, 50).beat(6, 60).put(wp::beats + wp::beat_number, 0).put(wp::newest, 6);
    REQUIRE(read_worker_page(page.bytes, 77)->step == 50);
  }
}

TEST_CASE("a page that says nothing sensible says nothing", "[unit][worker_page]") {
  REQUIRE_FALSE(read_worker_page(Page{}.bytes, 77));
  REQUIRE_FALSE(read_worker_page(opened().bytes, 77));                                     // no step has ended
  REQUIRE_FALSE(read_worker_page(opened().beat(1, 10).put(wp::newest, 1).bytes, 78));      // another process wrote it
  REQUIRE_FALSE(read_worker_page(opened().beat(1, 10).put(wp::newest, ~0ULL).bytes, 77));  // nonsense
  REQUIRE_FALSE(read_worker_page(std::span{opened().beat(1, 10).put(wp::newest, 1).bytes}.first(100), 77));
}

TEST_CASE("a page is open once its worker has said so", "[unit][worker_page]") {
  REQUIRE(is_worker_page_open(opened().bytes, 77));  // before its first step too
  REQUIRE_FALSE(is_worker_page_open(opened().bytes, 78));
  REQUIRE_FALSE(is_worker_page_open(Page{}.bytes, 77));
  const Page page = opened();
  REQUIRE_FALSE(is_worker_page_open(std::span{page.bytes}.first(100), 77));
}

TEST_CASE("what a hook says is read", "[unit][worker_page]") {
  Page page = opened().put(wp::python, 0x030b02f0).put(wp::signal, 61).put(wp::helper, 79).put(wp::raised_at, 5);
  page.put(wp::collectives, 1234).put(wp::collectives_at, 6).put(wp::thread_raised_at, 7).put(wp::ending_at, 8);
  page.put(wp::recorded, 1);
  std::memcpy(page.bytes.data() + wp::thread_raised, "ValueError: x", 13);
  const HookPage expected{77, 61, 79, 5, 1234, 6, 0x030b02f0, 7, 8, "ValueError: x", true};
  CHECK(read_hook_page(page.bytes) == expected);

  SECTION("a text without an end") {
    std::memset(page.bytes.data() + wp::thread_raised, 'x', worker_page_bytes - wp::thread_raised);
    CHECK(read_hook_page(page.bytes)->thread_raised == std::string(wp::thread_raised_bytes, 'x'));
  }
  SECTION("numbers that are none") {
    page.put(wp::signal, 65).put(wp::helper, 1ULL << 31).put(wp::raised_at, ~0ULL).put(wp::ending_at, 1ULL << 63);
    const auto hook = read_hook_page(page.bytes);
    CHECK(hook->signal == 0);
    CHECK(hook->helper == 0);
    CHECK(hook->raised_at_ns == 0);
    CHECK(hook->ending_at_ns == 0);
    CHECK(read_hook_page(page.put(wp::signal, 64).bytes)->signal == 64);
  }
  SECTION("nobody can be meant by its pid") {
    CHECK_FALSE(read_hook_page(page.put(wp::pid, 0).bytes));
    CHECK_FALSE(read_hook_page(page.put(wp::pid, 1ULL << 31).bytes));
    CHECK(read_hook_page(page.put(wp::pid, (1ULL << 31) - 1).bytes));
  }
  SECTION("it is not set up, or not there") {
    CHECK_FALSE(read_hook_page(page.put(wp::magic, 0).bytes));
    CHECK_FALSE(read_hook_page(opened().bytes));
    CHECK_FALSE(read_hook_page(std::span{page.bytes}.first(worker_page_bytes - 1)));
  }
}

TEST_CASE("a hook below a shell tells of steps, and hears no request to drain", "[unit][worker_page]") {
  const Page page = opened().beat(1, 10).put(wp::newest, 1).put(wp::python, 0x030b02f0);
  CHECK(read_worker_page(page.bytes, 76)->step == 10);
  CHECK_FALSE(is_worker_page_open(page.bytes, 77));
}

TEST_CASE("a program that looks for a request to drain says so, below a shell and beside a hook too",
          "[unit][worker_page]") {
  CHECK(is_worker_page_open(opened().put(wp::hears_drain, 1).bytes, 78));
  CHECK(is_worker_page_open(opened().put(wp::python, 0x030b02f0).put(wp::hears_drain, 1).bytes, 77));
  CHECK_FALSE(is_worker_page_open(Page{}.put(wp::hears_drain, 1).bytes, 77));
}

TEST_CASE("a worker of our runtime tells of its groups once it has one, and of its end", "[unit][worker_page]") {
  Page page = opened().put(wp::helper, 79).put(wp::collectives, 1234).put(wp::collectives_at, 6);
  HookPage expected{.process = 77, .helper = 79, .collectives = 1234, .collectives_at_ns = 6};
  CHECK(read_hook_page(page.bytes) == expected);
  CHECK(is_worker_page_open(page.bytes, 77));
  page.put(wp::helper, 0).put(wp::ending_at, 8);
  expected.helper = 0;
  expected.ending_at_ns = 8;
  CHECK(read_hook_page(page.bytes) == expected);
}

TEST_CASE("the page's address survives the environment", "[unit][worker_page]") {
  const WorkerPageAddress address{.fd = 3, .device = 25, .inode = 1ULL << 40, .pid = 4711};
  REQUIRE(*parse_worker_page_address(to_text(address)) == address);
  for (const char* const text : {"", "3", "3:1:2", "3:1:2:0", "-1:1:2:3", "3:1:2:3:", "3:1:2:x", "a:1:2:3"}) {
    CAPTURE(text);
    REQUIRE(parse_worker_page_address(text).has_error());
  }
}

#include "rendezvous/core/store/store.hpp"

#include <catch2/catch.hpp>

#include "tests/support/store_harness.hpp"

using namespace torchup;
using namespace torchup::test;

namespace {

/// A store and some connected clients that talk in PyTorch's bytes. Answers are compared as hex: WAIT's is "00".
struct Clients : StoreHarness {
  explicit Clients(StoreLimits limits = {}) : StoreHarness{limits} {
    for (std::uint32_t id = 0; id < 8; ++id) send(id, test::validate);
  }
  /// Sends one request and returns what has come back to the same client since it was last asked.
  std::string ask(std::uint32_t id, Query query, std::vector<std::string> keys = {},
                  std::vector<std::string> values = {}, std::int64_t number = 0) {
    send(id, request(query, std::move(keys), std::move(values), number));
    return hex(received(id));
  }
  std::string answer(std::uint32_t id) { return hex(received(id)); }
};

std::string text(std::string_view value) {
  std::string bytes;
  put_bytes(bytes, value);
  return hex(bytes);
}
std::string number(std::int64_t value) {
  std::string bytes;
  put_number(bytes, value);
  return hex(bytes);
}

}  // namespace

TEST_CASE("ADD reads numbers as strtoll does and stores decimal text", "[unit][store]") {
  const auto [stored, sum] = GENERATE(table<std::string, std::int64_t>({{"41", 42},
                                                                        {"-1", 0},
                                                                        {"+5", 6},
                                                                        {"\t\n\v\f\r 7", 8},
                                                                        {"5 ", 6},
                                                                        {"007", 8},
                                                                        {"0x10", 1},
                                                                        {" 12abc", 13},
                                                                        {std::string("3\0004", 3), 4},
                                                                        {"9223372036854775807", INT64_MIN}}));
  Clients c;
  c.ask(0, Query::set, {"/k"}, {stored});
  REQUIRE(c.ask(0, Query::add, {"/k"}, {}, 1) == number(sum));
  REQUIRE(c.ask(0, Query::get, {"/k"}) == text(std::to_string(sum)));
}

TEST_CASE("ADD on what is no number closes and changes nothing", "[unit][store]") {
  const auto stored = GENERATE(as<std::string>{}, "", " ", "abc", "-", "+", "+-5", "- 5", "9223372036854775808",
                               "-9223372036854775809");
  Clients c;
  c.ask(0, Query::set, {"/k"}, {stored});
  REQUIRE(c.ask(0, Query::add, {"/k"}, {}, 1).empty());
  REQUIRE(c.closed(0));
  REQUIRE(c.ask(1, Query::get, {"/k"}) == text(stored));
}

TEST_CASE("COMPARE_SET, row by row", "[unit][store]") {
  Clients c;
  REQUIRE(c.ask(0, Query::compare_set, {"/k"}, {"x", "new"}) == text("x"));
  REQUIRE(c.ask(0, Query::check, {"/k"}) == "01");
  REQUIRE(c.ask(0, Query::compare_set, {"/k"}, {"", ""}) == text(""));
  REQUIRE(c.ask(0, Query::check, {"/k"}) == "00");
  REQUIRE(c.ask(0, Query::compare_set, {"/k"}, {"", "a"}) == text("a"));
  REQUIRE(c.ask(0, Query::compare_set, {"/k"}, {"", "b"}) == text("a"));
  REQUIRE(c.ask(0, Query::compare_set, {"/k"}, {"a", "b"}) == text("b"));
  REQUIRE(c.ask(0, Query::get, {"/k"}) == text("b"));
}

TEST_CASE("COMPARE_SET wakes only when it stored something", "[unit][store]") {
  Clients c;
  REQUIRE(c.ask(1, Query::wait, {"/k"}).empty());
  c.ask(0, Query::compare_set, {"/k"}, {"x", "new"});
  REQUIRE(c.answer(1).empty());
  c.ask(0, Query::compare_set, {"/k"}, {"", "new"});
  REQUIRE(c.answer(1) == "00");
}

TEST_CASE("a wait ends when its last key comes, once", "[unit][store]") {
  Clients c;
  const Query writer =
      GENERATE(Query::set, Query::add, Query::append, Query::multi_set, Query::compare_set, Query::queue_push);
  const std::vector<std::string> values =
      writer == Query::compare_set ? std::vector<std::string>{"", "1"} : std::vector<std::string>{"1"};
  REQUIRE(c.ask(1, Query::wait, {"/a", "/b", "/a"}).empty());
  c.ask(0, writer, {"/a"}, values);
  REQUIRE(c.answer(1).empty());
  c.ask(0, writer, {"/b"}, values);
  REQUIRE(c.answer(1) == "00");
  c.ask(0, writer, {"/b"},
        writer == Query::compare_set ? std::vector<std::string>{"1", "2"} : std::vector<std::string>{"2"});
  REQUIRE(c.answer(1).empty());
  REQUIRE(c.store().waiting_count() == 0);
}

TEST_CASE("a key that a wait names often is waited for once, and answered as often", "[unit][store]") {
  Clients c;
  REQUIRE(c.ask(1, Query::wait_get, {"/a", "/b", "/a", "/a"}).empty());
  for (int i = 0; i < 3; ++i) {
    c.ask(0, Query::set, {"/a"}, {"1"});
    REQUIRE(c.ask(0, Query::delete_key, {"/a"}) == number(1));
  }
  c.ask(0, Query::set, {"/b"}, {"2"});
  REQUIRE(c.answer(1).empty());
  c.ask(0, Query::set, {"/a"}, {"1"});
  REQUIRE(c.answer(1) == "00" + text("1") + text("2") + text("1") + text("1"));
  REQUIRE(c.ask(2, Query::wait, {"/c", "/c"}).empty());
  REQUIRE(c.ask(2, Query::cancel_wait) == "01");
  REQUIRE(c.store().waiting_count() == 0);
}

TEST_CASE("who has all that he waits for is woken by any further write to it", "[unit][store]") {
  Clients c;
  REQUIRE(c.ask(1, Query::wait, {"/q", "/k"}).empty());
  REQUIRE(c.ask(2, Query::wait, {"/q"}).empty());
  c.ask(0, Query::set, {"/k"}, {"1"});
  REQUIRE(c.ask(3, Query::wait, {"/q", "/k"}).empty());
  c.ask(0, Query::queue_push, {"/q"}, {"x"});  // wakes one of the three
  REQUIRE(c.answer(1) == "00");
  c.ask(0, Query::set, {"/other"}, {"1"});
  REQUIRE(c.answer(2).empty());
  c.ask(0, Query::set, {"/k"}, {"2"});
  REQUIRE(c.answer(3) == "00");
  REQUIRE(c.answer(2).empty());
  c.ask(0, Query::queue_pop, {"/q"});
  c.ask(0, Query::set, {"/q"}, {"plain"});
  REQUIRE(c.answer(2) == "00");
  REQUIRE(c.store().waiting_count() == 0);
}

TEST_CASE("a key that was deleted again is missing again", "[unit][store]") {
  Clients c;
  c.ask(1, Query::wait, {"/a", "/b"});
  c.ask(0, Query::set, {"/a"}, {"1"});
  c.ask(0, Query::delete_key, {"/a"});
  c.ask(0, Query::set, {"/b"}, {"1"});
  REQUIRE(c.answer(1).empty());
  c.ask(0, Query::set, {"/a"}, {"1"});
  REQUIRE(c.answer(1) == "00");
}

TEST_CASE("CANCEL_WAIT is always answered, also behind the wait's own answer", "[unit][store]") {
  Clients c;
  REQUIRE(c.ask(1, Query::cancel_wait) == "01");
  c.ask(1, Query::wait, {"/a"});
  REQUIRE(c.ask(1, Query::cancel_wait) == "01");
  c.ask(0, Query::set, {"/a"}, {"1"});
  REQUIRE(c.answer(1).empty());
  c.ask(1, Query::wait, {"/b"});
  c.ask(0, Query::set, {"/b"}, {"1"});
  REQUIRE(c.ask(1, Query::cancel_wait) == "0001");
}

TEST_CASE("while it waits a client may ask, and end its own wait", "[unit][store]") {
  Clients c;
  c.ask(1, Query::wait, {"/a"});
  REQUIRE(c.ask(1, Query::ping, {}, {}, 5) == "05000000");
  REQUIRE(c.ask(1, Query::set, {"/a"}, {"1"}) == "00");
  c.ask(1, Query::wait, {"/n"});
  REQUIRE(c.ask(1, Query::add, {"/n"}, {}, 1) == "00" + number(1));
}

TEST_CASE("a second wait replaces the first", "[unit][store]") {
  Clients c;
  c.ask(1, Query::wait, {"/a"});
  c.ask(1, Query::wait, {"/b"});
  c.ask(0, Query::set, {"/a"}, {"1"});
  REQUIRE(c.answer(1).empty());
  c.ask(0, Query::set, {"/b"}, {"1"});
  REQUIRE(c.answer(1) == "00");
}

TEST_CASE("a wait for nothing, or for what is there, ends at once", "[unit][store]") {
  Clients c;
  REQUIRE(c.ask(1, Query::wait) == "00");
  c.ask(0, Query::queue_push, {"/q"}, {"1"});
  c.ask(0, Query::set, {"/k"}, {""});
  REQUIRE(c.ask(1, Query::wait, {"/q", "/k"}) == "00");
  REQUIRE(c.ask(1, Query::check, {"/q", "/k"}) == "00");
}

TEST_CASE("a full queue counts as present in a longer wait", "[unit][store]") {
  Clients c;
  c.ask(0, Query::queue_push, {"/q"}, {"1"});
  c.ask(1, Query::wait, {"/q", "/k"});
  c.ask(0, Query::set, {"/k"}, {"1"});
  REQUIRE(c.answer(1) == "00");
}

TEST_CASE("a queue that somebody else emptied is missing again", "[unit][store]") {
  Clients c;
  c.ask(1, Query::wait, {"/q", "/k"});
  c.ask(0, Query::queue_push, {"/q"}, {"1"});
  c.ask(2, Query::queue_pop, {"/q"});
  c.ask(0, Query::set, {"/k"}, {"1"});
  REQUIRE(c.answer(1).empty());
  c.ask(0, Query::queue_push, {"/q"}, {"2"});
  REQUIRE(c.answer(1) == "00");
}

TEST_CASE("each push wakes the oldest waiter that it satisfies", "[unit][store]") {
  Clients c;
  c.ask(4, Query::wait, {"/q", "/never"});
  for (const std::uint32_t id : {1U, 2U, 3U}) c.ask(id, Query::wait, {"/q"});
  c.ask(2, Query::cancel_wait);
  c.ask(0, Query::queue_push, {"/q"}, {"a"});
  REQUIRE(c.answer(1) == "00");
  REQUIRE(c.answer(3).empty());
  c.ask(0, Query::queue_push, {"/q"}, {"b"});
  REQUIRE(c.answer(3) == "00");
  REQUIRE(c.answer(4).empty());
}

TEST_CASE("consumers of a queue take turns", "[unit][store]") {
  Clients c;
  c.ask(1, Query::wait, {"/q"});
  c.ask(2, Query::wait, {"/q"});
  for (const std::uint32_t id : {1U, 2U, 1U, 2U}) {
    c.ask(0, Query::queue_push, {"/q"}, {"job"});
    REQUIRE(c.answer(id) == "00");
    REQUIRE(c.ask(id, Query::queue_pop, {"/q"}) == number(1) + text("job"));
    c.ask(id, Query::wait, {"/q"});
  }
}

TEST_CASE("who waited on a queue once is not woken by it later", "[unit][store]") {
  Clients c;
  c.ask(1, Query::wait, {"/q"});
  c.ask(0, Query::queue_push, {"/q"}, {"1"});
  c.ask(1, Query::queue_pop, {"/q"});
  c.received(1);
  c.ask(1, Query::wait, {"/k"});
  c.ask(0, Query::queue_push, {"/q"}, {"2"});
  REQUIRE(c.answer(1).empty());
}

TEST_CASE("queues and plain values are two name spaces", "[unit][store]") {
  Clients c;
  c.ask(0, Query::queue_push, {"/k"}, {"queued"});
  REQUIRE(c.ask(0, Query::get, {"/k"}) == text(""));
  REQUIRE(c.ask(0, Query::get_num_keys) == number(0));
  REQUIRE(c.ask(0, Query::list_keys) == number(0));
  REQUIRE(c.ask(0, Query::delete_key, {"/k"}) == number(0));
  REQUIRE(c.ask(0, Query::queue_len, {"/k"}) == number(1));
}

TEST_CASE("a barrier lets everybody go when the last one comes", "[unit][store]") {
  Clients c;
  REQUIRE(c.ask(1, Query::barrier, {"/b"}, {}, 3).empty());
  REQUIRE(c.ask(2, Query::barrier, {"/b"}, {}, 3).empty());
  REQUIRE(c.ask(0, Query::get, {"/b"}) == text("2"));
  REQUIRE(c.ask(3, Query::barrier, {"/b"}, {}, 3) == "00");
  REQUIRE(c.answer(1) == "00");
  REQUIRE(c.answer(2) == "00");
  REQUIRE(c.ask(4, Query::barrier, {"/b"}, {}, 3) == "00");
}

TEST_CASE("an arrival that left or gave up stays counted", "[unit][store]") {
  Clients c;
  c.ask(1, Query::barrier, {"/b"}, {}, 3);
  c.ask(2, Query::barrier, {"/b"}, {}, 3);
  REQUIRE(c.ask(1, Query::cancel_wait) == "01");
  c.disconnect(2);
  REQUIRE(c.ask(3, Query::barrier, {"/b"}, {}, 3) == "00");
  REQUIRE(c.answer(1).empty());
}

TEST_CASE("a barrier's key is there with the first arrival and any write to it lets go", "[unit][store]") {
  Clients c;
  c.ask(5, Query::wait, {"/b"});
  c.ask(1, Query::barrier, {"/b"}, {}, 9);
  REQUIRE(c.answer(5).empty());
  REQUIRE(c.ask(2, Query::check, {"/b"}) == "00");
  c.ask(0, Query::set, {"/b"}, {"x"});
  REQUIRE(c.answer(1) == "00");
  REQUIRE(c.answer(5) == "00");
}

TEST_CASE("a barrier of world size zero or less passes, one on text closes", "[unit][store]") {
  Clients c;
  REQUIRE(c.ask(1, Query::barrier, {"/z"}, {}, 0) == "00");
  REQUIRE(c.ask(1, Query::barrier, {"/z"}, {}, -4) == "00");
  c.ask(0, Query::set, {"/t"}, {"text"});
  c.ask(1, Query::barrier, {"/t"}, {}, 2);
  REQUIRE(c.closed(1));
}

TEST_CASE("wait_get answers with the values, wait_pop with the element", "[unit][store]") {
  Clients c;
  c.ask(0, Query::set, {"/a"}, {"1"});
  REQUIRE(c.ask(0, Query::wait_get, {"/a"}) == "00" + text("1"));
  REQUIRE(c.ask(1, Query::wait_get, {"/b", "/a"}).empty());
  c.ask(0, Query::set, {"/b"}, {"2"});
  REQUIRE(c.answer(1) == "00" + text("2") + text("1"));

  REQUIRE(c.ask(2, Query::wait_pop, {"/q"}).empty());
  REQUIRE(c.ask(3, Query::wait_pop, {"/q"}).empty());
  c.ask(0, Query::queue_push, {"/q"}, {"x"});
  REQUIRE(c.answer(2) == "00" + number(1) + text("x"));
  REQUIRE(c.answer(3).empty());
  REQUIRE(c.ask(3, Query::cancel_wait) == "01");
  REQUIRE(c.store().queue_count() == 0);
}

TEST_CASE("the extension shows itself to CHECK and to nothing else", "[unit][store]") {
  Clients c;
  const std::string key{extension_key};
  REQUIRE(c.ask(0, Query::check, {key}) == "00");
  REQUIRE(c.ask(0, Query::get, {key}) == text("identity"));
  REQUIRE(c.ask(0, Query::get_num_keys) == number(0));
  REQUIRE(c.ask(0, Query::list_keys) == number(0));
  c.ask(0, Query::set, {key}, {"x"});
  REQUIRE(c.closed(0));
}

TEST_CASE("a disconnected client's waits are gone", "[unit][store]") {
  Clients c;
  c.ask(1, Query::wait, {"/a", "/b"});
  c.ask(2, Query::barrier, {"/c"}, {}, 2);
  REQUIRE(c.store().waiting_count() == 2);
  c.disconnect(1);
  c.disconnect(2);
  REQUIRE(c.store().waiting_count() == 0);
  c.ask(0, Query::multi_set, {"/a", "/b", "/c"}, {"1", "2", "3"});
  REQUIRE(c.ask(0, Query::get_num_keys) == number(3));
}

TEST_CASE("limits close who meets them, and nobody else", "[unit][store]") {
  StoreLimits limits;
  limits.keys_max = 2;
  limits.bytes_max = 1000;
  limits.waits_bytes_max = 3 * (128 + 2);
  Clients c{limits};
  c.ask(0, Query::set, {"/a"}, {"1"});
  c.ask(0, Query::queue_push, {"/q"}, {"1"});
  SECTION("keys_max") { c.ask(1, Query::set, {"/b"}, {"1"}); }
  SECTION("keys_max of queues") { c.ask(1, Query::queue_push, {"/r"}, {"1"}); }
  SECTION("bytes_max") { c.ask(1, Query::set, {"/a"}, {std::string(1000, 'x')}); }
  SECTION("bytes_max by appending") {
    for (int i = 0; i < 4; ++i) c.ask(1, Query::append, {"/a"}, {std::string(300, 'x')});
  }
  SECTION("bytes_max of queues") {
    for (int i = 0; i < 9; ++i) c.ask(1, Query::queue_push, {"/q"}, {"1"});
  }
  SECTION("waits_bytes_max") { c.ask(1, Query::wait, {"/w", "/x", "/y", "/z"}); }
  REQUIRE(c.closed(1));
  REQUIRE(c.reason(1).find("_max") != std::string::npos);
  REQUIRE(c.ask(0, Query::set, {"/a"}, {"2"}).empty());
  REQUIRE(c.ask(0, Query::wait, {"/w", "/x", "/y"}).empty());
  REQUIRE_FALSE(c.closed(0));
}

TEST_CASE("MULTI_SET writes all of its keys or none", "[unit][store]") {
  StoreLimits limits;
  limits.keys_max = 2;
  limits.bytes_max = 1000;
  Clients c{limits};
  SECTION("keys_max") { c.ask(0, Query::multi_set, {"/a", "/b", "/c"}, {"1", "2", "3"}); }
  SECTION("bytes_max") { c.ask(0, Query::multi_set, {"/a", "/b"}, {"1", std::string(800, 'x')}); }
  REQUIRE(c.closed(0));
  REQUIRE(c.store().key_count() == 0);
  REQUIRE(c.ask(1, Query::multi_set, {"/a", "/b"}, {"1", "2"}).empty());
  REQUIRE(c.ask(1, Query::multi_set, {"/a", "/b"}, {"3", "4"}).empty());
  REQUIRE(c.store().key_count() == 2);
}

TEST_CASE("no queue has the reserved key", "[unit][store]") {
  Clients c;
  c.ask(0, Query::queue_push, {std::string{extension_key}}, {"1"});
  REQUIRE(c.closed(0));
  REQUIRE(c.store().queue_count() == 0);
}

TEST_CASE("a queue counts for what its first element takes", "[unit][store]") {
  Clients c;
  for (int i = 0; i < 10; ++i) c.ask(0, Query::queue_push, {"/q" + std::to_string(i)}, {""});
  REQUIRE(c.store().byte_count() > 10 * 700);
}

TEST_CASE("a wait that names a key again and again stands in its line once", "[unit][store]") {
  Clients c;
  c.ask(0, Query::set, {"/k"}, {"0"});
  std::vector<std::string> keys(60'000, "/k");
  keys.emplace_back("/absent");
  for (const std::uint32_t client : {1U, 2U, 3U}) c.ask(client, Query::wait, keys);
  for (int i = 0; i < 10'000; ++i) c.ask(0, Query::set, {"/k"}, {"1"});  // 1.8e9 looks where each mention counted
  REQUIRE(c.store().waiting_count() == 3);
  c.disconnect(3);
  c.ask(0, Query::delete_key, {"/k"});
  c.ask(0, Query::set, {"/absent"}, {"1"});
  REQUIRE(c.answer(1).empty());
  c.ask(0, Query::set, {"/k"}, {"1"});
  REQUIRE(c.answer(1) == "00");
  REQUIRE(c.answer(2) == "00");
  REQUIRE(c.store().waiting_count() == 0);
  REQUIRE(c.ask(1, Query::wait_get, {"/x", "/k", "/x"}).empty());
  c.ask(0, Query::set, {"/x"}, {"2"});
  REQUIRE(c.answer(1) == "00" + text("2") + text("1") + text("2"));
}

TEST_CASE("what is taken out is given back to the limits", "[unit][store]") {
  Clients c;
  c.ask(0, Query::set, {"/a"}, {"1"});
  c.ask(0, Query::set, {"/a"}, {"longer than the last one"});
  c.ask(0, Query::add, {"/n"}, {}, 9);
  c.ask(0, Query::add, {"/n"}, {}, 9);
  c.ask(0, Query::append, {"/a"}, {"tail"});
  for (int i = 0; i < 3; ++i) c.ask(0, Query::queue_push, {"/q"}, {"element"});
  c.ask(0, Query::queue_push, {"/r"}, {"element"});
  REQUIRE(c.store().byte_count() > 0);
  c.ask(0, Query::delete_key, {"/a"});
  c.ask(0, Query::delete_key, {"/n"});
  for (int i = 0; i < 3; ++i) c.ask(0, Query::queue_pop, {"/q"});
  REQUIRE(c.store().erase_if([](std::string_view key) { return key == "/r"; }) == 1);
  REQUIRE(c.store().byte_count() == 0);
}

TEST_CASE("values are shared with replies, and an append leaves those alone", "[unit][store]") {
  GrowingValue growing{Value{std::string(100, 'a')}};
  growing.append("b");
  const Value before = growing.value();
  growing.append("c");
  REQUIRE(before.view() == std::string(100, 'a') + "b");
  REQUIRE(growing.value().view() == std::string(100, 'a') + "bc");
  REQUIRE(before.storage() == growing.value().storage());
}

TEST_CASE("the holder of the store writes and wipes it", "[unit][store]") {
  Clients c;
  c.ask(1, Query::wait, {"/a"});
  REQUIRE(c.store().set("/a", Value{std::string_view{"1"}}));
  REQUIRE(c.answer(1) == "00");
  REQUIRE(c.store().add("init/", 2) == 2);
  REQUIRE_FALSE(c.store().add("/a", 1).value() == 1);
  c.store().set("/run/x", Value{std::string_view{"keep"}});
  REQUIRE(c.store().erase_if([](std::string_view key) { return !key.starts_with("/run/"); }) == 2);
  REQUIRE(c.ask(0, Query::get_num_keys) == number(1));
  c.ask(1, Query::wait, {"/a"});
  c.ask(0, Query::set, {"/a"}, {"2"});
  REQUIRE(c.answer(1) == "00");
}

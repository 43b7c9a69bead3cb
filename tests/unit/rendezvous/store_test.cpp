#include "rendezvous/core/store/store.hpp"

#include <catch2/catch.hpp>

#include "tests/support/store_clients.hpp"

using namespace torchup;
using namespace torchup::test;

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

TEST_CASE("queues and plain values are two name spaces", "[unit][store]") {
  Clients c;
  c.ask(0, Query::queue_push, {"/k"}, {"queued"});
  REQUIRE(c.ask(0, Query::get, {"/k"}) == text(""));
  REQUIRE(c.ask(0, Query::get_num_keys) == number(0));
  REQUIRE(c.ask(0, Query::list_keys) == number(0));
  REQUIRE(c.ask(0, Query::delete_key, {"/k"}) == number(0));
  REQUIRE(c.ask(0, Query::queue_len, {"/k"}) == number(1));
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

TEST_CASE("a value grows to its limit and not beyond", "[unit][store]") {
  Clients c{{.value_bytes_max = 10}};
  c.ask(0, Query::set, {"/a"}, {"1234567"});
  c.ask(0, Query::append, {"/a"}, {"890"});
  REQUIRE(c.ask(0, Query::get, {"/a"}) == text("1234567890"));
  c.ask(0, Query::append, {"/a"}, {"1"});
  REQUIRE(c.reason(0).starts_with("value_bytes_max: "));
  REQUIRE(c.ask(1, Query::get, {"/a"}) == text("1234567890"));
}

TEST_CASE("a list of all keys has its limit", "[unit][store]") {
  Clients c{{.listed_bytes_max = 8 + 2 * (8 + 2)}};
  c.ask(0, Query::multi_set, {"/a", "/b"}, {"", ""});
  REQUIRE(c.ask(0, Query::list_keys).size() == 2 * (8 + 2 * (8 + 2)));
  c.ask(0, Query::set, {"/c"}, {""});
  c.ask(0, Query::list_keys);
  REQUIRE(c.reason(0).starts_with("listed_bytes_max: "));
  c.ask(1, Query::delete_key, {"/c"});
  REQUIRE_FALSE(c.ask(1, Query::list_keys).empty());
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

TEST_CASE("a value counts for its block, with the room that an append has left behind it", "[unit][store]") {
  Clients c;
  c.ask(0, Query::set, {"/a"}, {std::string(100, 'x')});
  const std::size_t before = c.store().byte_count();
  REQUIRE(before >= 100 + 40 + 140);
  c.ask(0, Query::append, {"/a"}, {"y"});
  REQUIRE(c.store().byte_count() == before + 100);
  c.ask(0, Query::append, {"/a"}, {std::string(99, 'y')});
  REQUIRE(c.store().byte_count() == before + 100);
  c.ask(0, Query::append, {"/a"}, {"z"});
  REQUIRE(c.store().byte_count() == before + 300);
  c.ask(0, Query::set, {"/a"}, {"z"});
  REQUIRE(c.store().byte_count() < before - 100);
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

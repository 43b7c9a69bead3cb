// Who waits for keys, queues and barriers, and who wakes them.
#include "rendezvous/core/store/store.hpp"

#include <catch2/catch.hpp>

#include "tests/support/store_clients.hpp"

using namespace torchup;
using namespace torchup::test;

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

TEST_CASE("a push is for who takes the element with his answer, whoever came first", "[unit][store]") {
  Clients c;
  const bool plain_first = GENERATE(true, false);
  REQUIRE(c.ask(1, plain_first ? Query::wait : Query::wait_pop, {"/q"}).empty());
  REQUIRE(c.ask(2, plain_first ? Query::wait_pop : Query::wait, {"/q"}).empty());
  const std::uint32_t pops = plain_first ? 2 : 1, waits = plain_first ? 1 : 2;
  c.ask(0, Query::queue_push, {"/q"}, {"x"});
  REQUIRE(c.answer(pops) == "00" + number(1) + text("x"));
  REQUIRE(c.answer(waits).empty());
  c.ask(0, Query::queue_push, {"/q"}, {"y"});
  REQUIRE(c.answer(waits) == "00");
  REQUIRE(c.ask(waits, Query::queue_pop, {"/q"}) == number(1) + text("y"));
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

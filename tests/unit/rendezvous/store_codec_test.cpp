#include "rendezvous/core/store/store_codec.hpp"

#include <catch2/catch.hpp>

#include "tests/support/store_harness.hpp"

using namespace torchup;
using namespace torchup::test;

namespace {

struct Vector {
  const char* name;
  const char* request;
  const char* reply;
};

/// One conversation of one client, in PyTorch's bytes: written down by hand from its wire, not by our encoder.
const Vector conversation[] = {
    {"PING", "0d92100000", "92100000"},
    {"ADD init/ 1", "040500000000000000696e69742f0100000000000000", "0100000000000000"},
    {"SET k=v", "0102000000000000002f6b010000000000000076", ""},
    {"SET to nothing", "0102000000000000002f650000000000000000", ""},
    {"GET k", "0302000000000000002f6b", "010000000000000076"},
    {"GET absent", "0305000000000000002f6e6f7065", "0000000000000000"},
    {"ADD -3 to nothing", "0402000000000000002f6efdffffffffffffff", "fdffffffffffffff"},
    {"ADD 5 to -3", "0402000000000000002f6e0500000000000000", "0200000000000000"},
    {"CHECK present", "05010000000000000002000000000000002f6b", "00"},
    {"CHECK with an absent one", "05020000000000000002000000000000002f6b03000000000000002f7a7a", "01"},
    {"CHECK of nothing", "050000000000000000", "00"},
    {"SET a", "0102000000000000002f61010000000000000031", ""},
    {"SET b", "0102000000000000002f6202000000000000003232", ""},
    {"WAIT, both there", "06020000000000000002000000000000002f6102000000000000002f62", "00"},
    {"CANCEL_WAIT", "0c", "01"},
    {"GETNUMKEYS", "07", "0600000000000000"},
    {"DELETE_KEY", "0802000000000000002f65", "0100000000000000"},
    {"DELETE_KEY absent", "0802000000000000002f65", "0000000000000000"},
    {"COMPARE_SET absent, expecting nothing", "0202000000000000002f63000000000000000003000000000000006e6577",
     "03000000000000006e6577"},
    {"COMPARE_SET absent, expecting something", "0203000000000000002f63320300000000000000626164010000000000000078",
     "0300000000000000626164"},
    {"COMPARE_SET wrong", "0202000000000000002f630300000000000000626164010000000000000078", "03000000000000006e6577"},
    {"APPEND", "0902000000000000002f6b010000000000000077", ""},
    {"GET appended", "0302000000000000002f6b", "02000000000000007677"},
    {"MULTI_GET", "0a020000000000000002000000000000002f6102000000000000002f62",
     "01000000000000003102000000000000003232"},
    {"MULTI_SET", "0b020000000000000002000000000000002f6101000000000000003302000000000000002f6202000000000000003434",
     ""},
    {"MULTI_GET again", "0a020000000000000002000000000000002f6102000000000000002f62",
     "01000000000000003302000000000000003434"},
    {"QUEUE_PUSH 1", "0e02000000000000002f71010000000000000031", ""},
    {"QUEUE_PUSH 2", "0e02000000000000002f71010000000000000032", ""},
    {"QUEUE_LEN", "1002000000000000002f71", "0200000000000000"},
    {"QUEUE_POP", "0f02000000000000002f71", "0200000000000000010000000000000031"},
    {"QUEUE_POP", "0f02000000000000002f71", "0100000000000000010000000000000032"},
    {"QUEUE_POP of nothing", "0f02000000000000002f71", "0000000000000000"},
    {"BARRIER of one", "1202000000000000002f640100000000000000", "00"},
};

}  // namespace

TEST_CASE("the server speaks PyTorch's bytes", "[unit][store_codec]") {
  StoreHarness server;
  server.send(0, validate);
  for (const Vector& vector : conversation) {
    INFO(vector.name);
    server.send(0, unhex(vector.request));
    REQUIRE(hex(server.received(0)) == vector.reply);
    REQUIRE_FALSE(server.closed(0));
  }
}

TEST_CASE("a conversation may be cut into pieces of any size", "[unit][store_codec]") {
  std::string requests = validate, replies;
  for (const Vector& vector : conversation) requests += unhex(vector.request), replies += unhex(vector.reply);
  const std::size_t size =
      GENERATE_COPY(range(std::size_t{1}, std::size_t{64}), Catch::Generators::value(requests.size()));
  StoreHarness server;
  for (std::size_t i = 0; i < requests.size(); i += size) server.send(0, std::string_view{requests}.substr(i, size));
  REQUIRE(hex(server.received(0)) == hex(replies));
}

TEST_CASE("two pieces, cut at every byte, with a large value inside", "[unit][store_codec]") {
  const std::string large(2 * FieldReader::direct_min + 5, 'x');
  const std::string small(FieldReader::direct_min - 1, 'y');
  const std::string bytes = validate + request(Query::multi_set, {"/a", "/b", "/c"}, {large, small, large + "z"}) +
                            request(Query::set, {"/d"}, {"w"}) + request(Query::ping, {}, {}, 7);
  for (std::size_t cut = 0; cut <= bytes.size(); cut += cut < 64 || cut + 64 > bytes.size() ? 1 : 37) {
    StoreHarness server;
    server.send(0, std::string_view{bytes}.substr(0, cut));
    server.send(0, std::string_view{bytes}.substr(cut));
    REQUIRE(hex(server.received(0)) == "07000000");
    REQUIRE(server.store().find("/a")->view() == large);
    REQUIRE(server.store().find("/b")->view() == small);
    REQUIRE(server.store().find("/c")->view() == large + "z");
    REQUIRE(server.store().find("/d")->view() == "w");
  }
}

TEST_CASE("every query survives one byte at a time", "[unit][store_codec]") {
  const std::string large(FieldReader::direct_min + 1, 'x');
  const std::string bytes = validate + request(Query::set, {"/s"}, {large}) +
                            request(Query::compare_set, {"/s"}, {large, "new"}) +
                            request(Query::wait_get, {"/s", "/s"}) + request(Query::queue_push, {"/q"}, {"e"}) +
                            request(Query::wait_pop, {"/q"});
  StoreHarness server;
  for (const char c : bytes) server.send(0, {&c, 1});
  std::string expected;
  put_bytes(expected, "new");
  put_byte(expected, 0), put_bytes(expected, "new"), put_bytes(expected, "new");
  put_byte(expected, 0), put_number(expected, 1), put_bytes(expected, "e");
  REQUIRE(hex(server.received(0)) == hex(expected));
}

TEST_CASE("keys and values are bytes, not text", "[unit][store_codec]") {
  const std::string key{"/\0\xff//", 5}, value{"\0\n\xfe", 3};
  StoreHarness server;
  server.send(0, validate + request(Query::set, {key}, {value}) + request(Query::get, {key}));
  std::string expected;
  put_bytes(expected, value);
  REQUIRE(server.received(0) == expected);
}

TEST_CASE("who does not begin with VALIDATE is closed unanswered", "[unit][store_codec]") {
  const auto bytes = GENERATE(as<std::string>{}, "0d92100000", "474554202f20485454502f312e310d0a",
                              "160301020001000001fc", "00cef7853d", "00cef7853d0d92100000", "ff");
  StoreHarness server;
  server.send(0, unhex(bytes));
  REQUIRE(server.closed(0));
  REQUIRE(server.received(0).empty());
}

TEST_CASE("four bytes of VALIDATE are waited on", "[unit][store_codec]") {
  StoreHarness server;
  server.send(0, unhex("00cef785"));
  REQUIRE_FALSE(server.closed(0));
  REQUIRE_FALSE(server.reader(0).validated());
  server.send(0, unhex("3c"));
  REQUIRE(server.reader(0).validated());
}

TEST_CASE("a code that nobody knows, and a second VALIDATE, close", "[unit][store_codec]") {
  const auto bytes = GENERATE(as<std::string>{}, "13", "3f", "42", "ff", "00cef7853c");
  StoreHarness server;
  server.send(0, validate + unhex(bytes));
  REQUIRE(server.closed(0));
}

TEST_CASE("a length is refused one past its limit, before its bytes come", "[unit][store_codec]") {
  struct Case {
    std::string at_limit, past_limit, name;
  };
  const Case c = GENERATE(values<Case>({
      {"010020000000000000", "010120000000000000", "key_bytes_max"},
      {"0102000000000000002f6b0000800000000000", "0102000000000000002f6b0100800000000000", "value_bytes_max"},
      {"060000020000000000", "060100020000000000", "count_max"},
      {"0b0000020000000000", "0b0100020000000000", "count_max"},
      {"06", "06ffffffffffffffff", "count_max"},
      {"01", "01ffffffffffffffff", "key_bytes_max"},
      {"0102000000000000002f6b", "0102000000000000002f6bffffffffffffffff", "value_bytes_max"},
  }));
  StoreHarness server;
  server.send(0, validate + unhex(c.at_limit));
  REQUIRE_FALSE(server.closed(0));
  server.send(1, validate + unhex(c.past_limit));
  REQUIRE(server.closed(1));
  REQUIRE(server.reason(1).find(c.name) != std::string::npos);
  REQUIRE(server.received(1).empty());
}

TEST_CASE("one request has a limit on all its bytes", "[unit][store_codec]") {
  FieldLimits limits;
  limits.message_bytes_max = 100;
  StoreHarness server{{}, limits};
  server.send(0, validate + request(Query::set, {"/k"}, {std::string(82, 'v')}));
  REQUIRE_FALSE(server.closed(0));
  server.send(1, validate + request(Query::set, {"/k"}, {std::string(83, 'v')}));
  REQUIRE(server.closed(1));
}

TEST_CASE("a reader between two requests holds next to nothing", "[unit][store_codec]") {
  StoreHarness server;
  std::vector<std::string> keys(10'000, "/key");
  const std::string bytes =
      validate + request(Query::check, keys) + request(Query::set, {"/k"}, {std::string(1 << 20, 'v')});
  server.send(0, std::string_view{bytes}.substr(0, 100'000));
  REQUIRE(server.reader(0).held_bytes() > 90'000);
  server.send(0, std::string_view{bytes}.substr(100'000));
  REQUIRE(server.reader(0).held_bytes() < 1024);
}

TEST_CASE("a claimed count or length alone takes no memory", "[unit][store_codec]") {
  StoreHarness server;
  server.send(0, validate + unhex("060000020000000000"));
  REQUIRE(server.reader(0).held_bytes() < 1024);
}

TEST_CASE("replies are read back by their layout", "[unit][store_codec]") {
  std::string bytes;
  put_byte(bytes, 0), put_bytes(bytes, "one"), put_bytes(bytes, std::string(5000, 'v'));  // wait_get of two
  put_number(bytes, 0);                                                                   // queue_pop of nothing
  put_number(bytes, 2), put_bytes(bytes, "head");                                         // queue_pop
  put_byte(bytes, 1);                                                                     // wait_get, cancelled
  put_number(bytes, 2), put_bytes(bytes, "init/"), put_bytes(bytes, "/k");                // list_keys
  const std::size_t size = GENERATE(as<std::size_t>{}, 1, 3, 7, 1000, 100'000);
  FieldReader reader{{}};
  std::size_t at = 0;
  std::string_view input;
  const auto read = [&](Query query, std::size_t count = 0) {
    reader.begin(reply_layout(query), count);
    while (reader.read(input) == FieldReader::Status::incomplete) {
      REQUIRE(at < bytes.size());
      input = std::string_view{bytes}.substr(at, size);
      at += input.size();
    }
  };
  read(Query::wait_get, 2);
  REQUIRE(reader.values().size() == 2);
  REQUIRE(reader.values()[0].view() == "one");
  REQUIRE(reader.values()[1].view() == std::string(5000, 'v'));
  read(Query::queue_pop);
  REQUIRE(reader.number() == 0);
  REQUIRE(reader.values().empty());
  read(Query::queue_pop);
  REQUIRE(reader.number() == 2);
  REQUIRE(reader.values()[0].view() == "head");
  read(Query::wait_get, 2);
  REQUIRE(reader.byte() == 1);
  REQUIRE(reader.values().empty());
  read(Query::list_keys);
  REQUIRE(reader.key_count() == 2);
  REQUIRE(reader.key(0) == "init/");
  REQUIRE(reader.key(1) == "/k");
}

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "rendezvous/core/store/sip_hash.hpp"
#include "rendezvous/core/store/store_codec.hpp"
#include "tests/support/store_harness.hpp"

using namespace torchup;
using test::StoreHarness;

namespace {

/// As many as the answer says.
std::multiset<std::string> keys_in(std::string_view answer) {
  FieldReader reader{{.count_max = 1'000'000}};
  reader.begin(reply_layout(Query::list_keys));
  REQUIRE(reader.read(answer) == FieldReader::Status::complete);
  REQUIRE(answer.empty());
  std::multiset<std::string> keys;
  for (std::size_t i = 0; i < reader.key_count(); ++i) keys.emplace(reader.key(i));
  return keys;
}

void fill(Store& store, int count) {
  for (int i = 0; i < count; ++i) REQUIRE(store.set(fmt::format("/{}", i), Value{}));
}

}  // namespace

TEST_CASE("SipHash is SipHash", "[store]") {
  // The published test vectors.
  const HashSecret secret{0x0706050403020100, 0x0f0e0d0c0b0a0908};
  std::string bytes;
  for (char c = 0; c < 15; ++c) bytes += c;
  CHECK(sip_hash_2_4(secret, "") == 0x726fdb47dd0e0e31);
  CHECK(sip_hash_2_4(secret, bytes.substr(0, 8)) == 0x93f5f5799a932462);
  CHECK(sip_hash_2_4(secret, bytes) == 0xa129ca6149be45e5);
  CHECK(sip_hash_1_3(secret, bytes) != sip_hash_1_3({}, bytes));
}

TEST_CASE("where a key lies is a store's secret", "[store]") {
  KeyMap<int, 4> one{{1, 2}}, other{{1, 3}};
  std::size_t same = 0;
  for (int i = 0; i < 400; ++i) {
    const std::string key = fmt::format("/{}", i);
    one.emplace(key, i);
    other.emplace(key, i);
    for (std::size_t part = 0; part < 4; ++part) same += one.part(part).contains(key) && other.part(part).contains(key);
  }
  for (std::size_t part = 0; part < 4; ++part) CHECK(one.part(part).size() > 50);
  CHECK(same < 200);
}

TEST_CASE("a list of all keys that is made in steps", "[store]") {
  StoreHarness harness;
  Store& store = harness.store();
  constexpr int count = 5000;
  fill(store, count);
  harness.send(1, test::validate);
  harness.send(2, test::validate);
  const ClientId client{1};
  REQUIRE_FALSE(store.prepare_list(client, 1000));
  REQUIRE_FALSE(store.has_list(client));
  SECTION("has each key that stays once, and others perhaps") {
    for (int i = 0; i < count; i += 2) {
      REQUIRE(store.erase(fmt::format("/{}", i)));
      if (i % 4 == 0) REQUIRE(store.set(fmt::format("/{}", i), Value{}));
      REQUIRE(store.set(fmt::format("/new {}", i), Value{}));
    }
    int steps = 1;
    while (!store.prepare_list(client, 1000)) ++steps;
    REQUIRE(steps > 3);
    REQUIRE(store.has_list(client));
    harness.send(1, test::request(Query::list_keys));
    const auto keys = keys_in(harness.received(1));
    for (int i = 1; i < count; i += 2) REQUIRE(keys.count(fmt::format("/{}", i)) == 1);
    for (const std::string& key : keys) REQUIRE(keys.count(key) == 1);
    REQUIRE_FALSE(store.has_list(client));
  }
  SECTION("is one client's at a time") {
    for (int i = 0; i < 20; ++i) REQUIRE_FALSE(store.prepare_list(ClientId{2}, 1000));
    store.disconnect(client);
    while (!store.prepare_list(ClientId{2}, 1000)) {
    }
    harness.send(2, test::request(Query::list_keys));
    REQUIRE(keys_in(harness.received(2)).size() == count);
  }
}

TEST_CASE("a list that grows beyond its limit while it is made", "[store]") {
  StoreHarness harness{{.listed_bytes_max = 8 + 1000 * (8 + 8)}};
  for (int i = 0; i < 1000; ++i) REQUIRE(harness.store().set(fmt::format("/{:07}", i), Value{}));
  harness.send(1, test::validate);
  REQUIRE_FALSE(harness.store().prepare_list(ClientId{1}, 100));
  REQUIRE(harness.store().set("/one more", Value{}));
  REQUIRE(harness.store().prepare_list(ClientId{1}, 100));
  REQUIRE(harness.closed(1));
  REQUIRE(harness.reason(1).starts_with("listed_bytes_max"));
}

TEST_CASE("keys and queues are erased in steps", "[store]") {
  StoreHarness harness;
  Store& store = harness.store();
  fill(store, 5000);
  harness.send(1, test::validate);
  for (int i = 0; i < 2000; ++i) harness.send(1, test::request(Query::queue_push, {"/queue"}, {""}));
  harness.send(1, test::request(Query::queue_push, {"/kept queue"}, {""}));
  REQUIRE(store.set("/kept", Value{}));
  const auto condition = [](std::string_view key) { return !key.starts_with("/kept"); };
  std::size_t next = 0;
  int steps = 1;
  std::size_t before = store.byte_count();
  while (!store.erase_some(condition, 500, next)) {
    ++steps;
    REQUIRE(before - store.byte_count() <= 700 * 200);
    before = store.byte_count();
  }
  REQUIRE(steps >= 13);
  REQUIRE(store.key_count() == 1);
  REQUIRE(store.queue_count() == 1);
  REQUIRE(store.erase_if([](std::string_view) { return true; }) == 2);
  REQUIRE(store.byte_count() == 0);
}

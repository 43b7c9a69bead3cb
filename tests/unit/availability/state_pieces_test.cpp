#include "rendezvous/core/etcd/state_pieces.hpp"

#include <catch2/catch.hpp>
#include <map>

using namespace torchup;
using namespace torchup::etcd;

namespace {

const RunId run{"a/b%"};
const Scope scope = Scope::of_daemons("/torchup");

/// Puts and deletions as etcd does them.
void carry_out(std::map<std::string, std::string>& keys, const Txn& txn) {
  for (const Operation& operation : txn.then) {
    if (const auto* put = std::get_if<Put>(&operation)) keys[put->key] = put->value;
    if (const auto* erased = std::get_if<Delete>(&operation)) {
      std::erase_if(keys, [&](const auto& key) { return key.first >= erased->key && key.first < erased->range_end; });
    }
  }
}
std::vector<Entry> entries(const std::map<std::string, std::string>& keys) {
  std::vector<Entry> list;
  for (const auto& [key, value] : keys) list.push_back({key, value, Revision{5}, LeaseId{1}});
  return list;
}
std::vector<Txn> written(const std::string& bytes, std::uint64_t serial) {
  return *write_state(scope,
                      {.run_id = run, .bytes = bytes, .serial = serial, .term = Revision{3}, .head = Revision{2}});
}

}  // namespace

TEST_CASE("a state is whole once its last txn is applied, and the former one until then", "[unit][etcd]") {
  const std::string small = "state", large(2 * piece_bytes_max + 1, 'x');
  std::map<std::string, std::string> keys;
  REQUIRE(written(small, 1).size() == 1);
  carry_out(keys, written(small, 1)[0]);
  const auto txns = written(large, 10);
  REQUIRE(txns.size() == 3);
  for (const Txn& txn : txns) {
    REQUIRE(read_states(scope, entries(keys))->at(0).bytes == small);
    REQUIRE(txn.compares ==
            std::vector<Compare>{{"/torchup/daemons/seat", Revision{3}}, {scope.head(run), Revision{2}}});
    REQUIRE(request(txn).has_value());
    carry_out(keys, txn);
  }
  REQUIRE(read_states(scope, entries(keys))->at(0).bytes == large);
  REQUIRE(keys.size() == 4);               // nothing of the former serial is left
  carry_out(keys, written(large, 11)[0]);  // interrupted
  carry_out(keys, written(small, 12)[0]);
  REQUIRE(keys.size() == 2);
  REQUIRE(read_states(scope, entries(keys))->at(0).run_id == run);
}

TEST_CASE("a state of which anything is missing or changed is refused with its key", "[unit][etcd]") {
  std::map<std::string, std::string> keys;
  for (const Txn& txn : written(std::string(piece_bytes_max + 1, 'x'), 1)) carry_out(keys, txn);
  const std::string head = scope.head(run);
  auto code = errc::bad_frame;
  SECTION("a piece") { keys.erase(scope.piece(run, 1, 1)); }
  SECTION("a byte") { keys[scope.piece(run, 1, 1)] = "y"; }
  SECTION("the head") { keys[head] = "{"; }
  SECTION("another version") {
    keys[head].replace(keys[head].find(":1"), 2, ":2");
    code = errc::wrong_version;
  }
  const auto states = read_states(scope, entries(keys));
  REQUIRE_FALSE(states.has_value());
  REQUIRE(states.error().code == make_error_code(code));
  REQUIRE(states.error().context.find(head) != std::string::npos);
}

TEST_CASE("heads, holders and keys are read as they were written", "[unit][etcd]") {
  const StateHead head{.serial = 3, .pieces = 1, .bytes = 9, .sum = 0xabc, .verdict = RecordedVerdict{7, "rank 0"}};
  REQUIRE(*read_head(encode_head(head)) == head);
  const Holder holder{{{"10.0.0.5", Port{4711}}, {"::1", Port{1}}}, "h", "n", 12};
  REQUIRE(*read_holder(encode_holder(holder)) == holder);
  REQUIRE_FALSE(read_holder(encode_holder({})).has_value());
  REQUIRE(scope.head(run) == "/torchup/daemons/state/a%2Fb%25");
  REQUIRE(scope.place(scope.piece(run, 3, 4)) == Scope::Place{.run_id = run, .serial = 3, .index = 4});
  for (const char* key : {"/torchup/daemons/state/", "/torchup/daemons/state/a/1", "/torchup/daemons/state/a/01/0",
                          "/torchup/daemons/state/a%2f", "/other"}) {
    REQUIRE_FALSE(scope.place(key));
  }
  REQUIRE(why_no_prefix("/torchup").empty());
  for (const std::string prefix : {"", "torchup", "/a\n"}) REQUIRE_FALSE(why_no_prefix(prefix).empty());
  REQUIRE(why_no_prefix("/" + std::string(199, 'a')).empty());
  REQUIRE_FALSE(why_no_prefix("/" + std::string(200, 'a')).empty());
}

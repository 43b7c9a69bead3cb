#include "rendezvous/core/etcd/etcd_messages.hpp"

#include <catch2/catch.hpp>

#include "rendezvous/core/etcd/etcd_failure.hpp"

using namespace torchup;
using namespace torchup::etcd;

// The answers are those of etcd 3.4.23, as curl received them.
namespace {

const std::string header =
    R"("header":{"cluster_id":"324952591200643719","member_id":"3319814642761637952","revision":"4","raft_term":"2"})";
const std::string seat_entry =
    R"({"key":"L3RvcmNodXAvc2VhdA==","create_revision":"4","mod_revision":"4","version":"1","value":"eA==",)"
    R"("lease":"2324035652720760840"})";
const Range seat{.key = "/torchup/seat"};

std::string with(const std::string& fields) { return "{" + header + (fields.empty() ? "" : "," + fields) + "}"; }

}  // namespace

TEST_CASE("requests are those of etcd's JSON gateway", "[unit][etcd]") {
  REQUIRE(request(range_of_prefix("/torchup/")) ==
          Request{"/v3/kv/range", R"({"key":"L3RvcmNodXAv","range_end":"L3RvcmNodXAw"})"});
  REQUIRE(range_of_prefix("a\xff").range_end == "b");
  REQUIRE(range_of_prefix("\xff").range_end == std::string(1, '\0'));
  const auto taking = request(Txn{{{"s", Revision{0}}}, {Put{"s", "x", LeaseId{7}}}, {Range{.key = "s"}}});
  REQUIRE(taking.has_value());
  REQUIRE(taking->body == R"({"compare":[{"key":"cw==","target":"MOD","result":"EQUAL","mod_revision":"0"}],)"
                          R"("success":[{"request_put":{"key":"cw==","value":"eA==","lease":"7"}}],)"
                          R"("failure":[{"request_range":{"key":"cw=="}}]})");
  REQUIRE(grant_request(5).body == R"({"TTL":"5"})");
  REQUIRE(authenticate_request("u", "p\"").body == R"({"name":"u","password":"p\""})");
}

TEST_CASE("a txn has etcd's limits", "[unit][etcd]") {
  Txn txn;
  txn.then.assign(operations_max, Range{.key = "a"});
  REQUIRE(request(txn).has_value());
  txn.then.emplace_back(Range{.key = "a"});
  REQUIRE(request(txn).error().code == make_error_code(errc::limit_exceeded));
  REQUIRE(request(Txn{{}, {Put{"a", std::string(request_bytes_max - 1, 'x')}}, {}}).has_value());
  REQUIRE_FALSE(request(Txn{{}, {Put{"a", std::string(request_bytes_max, 'x')}}, {}}).has_value());
}

TEST_CASE("a txn without a compare holds, and its answer has all that was asked for", "[unit][etcd]") {
  const Txn looking{{}, {seat}, {}};
  REQUIRE(read_txn(with(R"("succeeded":true,"responses":[{"response_range":{"header":{"revision":"4"}}}])"), looking)
              .has_value());
  REQUIRE_FALSE(read_txn(with(""), looking).has_value());
  REQUIRE_FALSE(read_txn(with(R"("succeeded":true)"), looking).has_value());
}

TEST_CASE("a txn's answer is read by what was asked", "[unit][etcd]") {
  const Txn txn{{{"/torchup/seat", Revision{0}}}, {Put{"/torchup/seat", "x"}}, {seat}};
  const auto won =
      read_txn(with(R"("succeeded":true,"responses":[{"response_put":{"header":{"revision":"4"}}}])"), txn);
  REQUIRE(won.has_value());
  REQUIRE(won->succeeded);
  REQUIRE(won->header.revision == Revision{4});
  const auto lost = read_txn(
      with(R"("responses":[{"response_range":{"header":{"revision":"4"},"kvs":[)" + seat_entry + R"(],"count":"1"}}])"),
      txn);
  REQUIRE(lost.has_value());
  REQUIRE_FALSE(lost->succeeded);
  REQUIRE(std::get<RangeAnswer>(lost->answers.at(0)).entries ==
          std::vector<Entry>{{"/torchup/seat", "x", Revision{4}, LeaseId{2324035652720760840}}});
  REQUIRE_FALSE(read_txn(with(R"("succeeded":true)"), txn).has_value());
  REQUIRE_FALSE(read_txn(with(R"("succeeded":true,"responses":[{"response_range":{}}])"), txn).has_value());
}

TEST_CASE("what is no whole and possible answer is refused", "[unit][etcd]") {
  REQUIRE(read_range(with(""), seat).has_value());
  REQUIRE(read_range(with(R"("kvs":[)" + seat_entry + "]"), seat).has_value());
  REQUIRE_FALSE(read_range(with(R"("kvs":[)" + seat_entry + "]"), Range{.key = "/other"}).has_value());
  REQUIRE_FALSE(
      read_range(with(R"("kvs":[)" + seat_entry + "," + seat_entry + "]"), range_of_prefix("/torchup/")).has_value());
  const std::string whole = with(R"("kvs":[)" + seat_entry + "]");
  for (std::size_t size = 0; size < whole.size(); ++size)
    REQUIRE_FALSE(read_range(whole.substr(0, size), seat).has_value());
  for (const char* entry :
       {R"({"key":"L3RvcmNodXAvc2VhdA"})", R"({"key":"L3Rv!cmNodXAvc2VhdA==","mod_revision":"1"})",
        R"({"key":"L3RvcmNodXAvc2VhdA==","mod_revision":"5"})", R"({"key":"L3RvcmNodXAvc2VhdA==","mod_revision":4})",
        R"({"key":"L3RvcmNodXAvc2VhdA=="})", "7"}) {
    INFO(entry);
    REQUIRE_FALSE(read_range(with(std::string{R"("kvs":[)"} + entry + "]"), seat).has_value());
  }
  REQUIRE_FALSE(read_range("{}", seat).has_value());
  REQUIRE_FALSE(read_range("[]", seat).has_value());
  REQUIRE_FALSE(read_range(std::string(100000, '['), seat).has_value());
  REQUIRE(read_range(std::string(answer_bytes_max + 1, ' '), seat).error().code ==
          make_error_code(errc::limit_exceeded));
}

TEST_CASE("a keep-alive of a dead lease has no TTL", "[unit][etcd]") {
  REQUIRE(read_keep_alive(R"({"result":)" + with(R"("ID":"12","TTL":"60")") + "}\n", LeaseId{12})->ttl_s == 60);
  REQUIRE(read_keep_alive(R"({"result":)" + with(R"("ID":"12")") + "}\n", LeaseId{12})->ttl_s == 0);
  REQUIRE_FALSE(read_keep_alive(R"({"result":)" + with(R"("ID":"13")") + "}", LeaseId{12}).has_value());
  REQUIRE_FALSE(read_grant(with(R"("ID":"12")")).has_value());
  REQUIRE(read_grant(with(R"("ID":"12","TTL":"2")"))->lease == LeaseId{12});
}

TEST_CASE("a login's token fits into a header", "[unit][etcd]") {
  REQUIRE(*read_login(with(R"("token":"pZoJrHxEftvFoDLm.37")")) == "pZoJrHxEftvFoDLm.37");
  for (const char* token : {"", "a b", "a\\r\\nX: y", "\\u00e4"}) {
    REQUIRE_FALSE(read_login(with(std::string{R"("token":")"} + token + "\"")).has_value());
  }
}

TEST_CASE("a watch tells of changes, and why it ends", "[unit][etcd]") {
  const auto line = [](const std::string& fields) { return R"({"result":)" + with(fields) + "}"; };
  REQUIRE(read_watch(line(R"("created":true)"), seat.key)->created);
  const auto gone = read_watch(
      line(R"("events":[{"type":"DELETE","kv":{"key":"L3RvcmNodXAvc2VhdA==","mod_revision":"4"}}])"), seat.key);
  REQUIRE(gone.has_value());
  REQUIRE(gone->changes.at(0).deleted);
  REQUIRE(read_watch(line(R"("events":[{"kv":)" + seat_entry + "}]"), seat.key)->changes.at(0).entry.value == "x");
  REQUIRE_FALSE(read_watch(line(R"("events":[{"kv":)" + seat_entry + "}]"), "/other").has_value());
  const auto compacted = read_watch(
      R"({"result":{"header":{"cluster_id":"324952591200643719","member_id":"3319814642761637952","raft_term":"2"},)"
      R"("canceled":true,"compact_revision":"16"}})",
      seat.key);
  REQUIRE(compacted.has_value());
  REQUIRE(compacted->compacted == Revision{16});
}

TEST_CASE("refusals are told apart by what is done next", "[unit][etcd]") {
  const auto cause = [](unsigned status, const std::string& words, int code, bool logged_in = false) {
    const std::string text = "\"" + words + "\"";
    return failure_of(status,
                      R"({"error":)" + text + R"(,"message":)" + text + R"(,"code":)" + std::to_string(code) + "}",
                      logged_in)
        .cause;
  };
  REQUIRE(cause(404, "etcdserver: requested lease not found", 5) == Cause::lease_gone);
  REQUIRE(cause(401, "etcdserver: invalid auth token", 16) == Cause::log_in);
  REQUIRE(cause(403, "etcdserver: permission denied", 7) == Cause::forbidden);
  REQUIRE(cause(400, "etcdserver: user name is empty", 3) == Cause::forbidden);
  REQUIRE(cause(400, "etcdserver: user name is empty", 3, true) == Cause::log_in);
  REQUIRE(cause(400, "etcdserver: authentication failed, invalid user ID or password", 3) == Cause::forbidden);
  REQUIRE(cause(400, "etcdserver: request is too large", 3) == Cause::too_large);
  REQUIRE(cause(429, "grpc: received message larger than max (2700008 vs. 2097152)", 8) == Cause::too_large);
  REQUIRE(cause(429, "etcdserver: mvcc: database space exceeded", 8) == Cause::full);
  REQUIRE(cause(400, "etcdserver: mvcc: required revision has been compacted", 11) == Cause::compacted);
  REQUIRE(cause(503, "etcdserver: no leader", 14) == Cause::away);
  REQUIRE(failure_of(404, "404 page not found\n", false) == Failure{Cause::no_etcd, "is no etcd 3.4 or newer (404)"});
  REQUIRE(failure_of(503, "<html>", false).cause == Cause::away);
}

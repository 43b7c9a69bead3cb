#include "launcher/core/diagnosis/preflight_codec.hpp"

#include <catch2/catch.hpp>
#include <random>

#include "rendezvous/core/link/messages.hpp"

using namespace torchup;

namespace {

NodePreflight told() {
  return {.host = "nodeb",
          .done = {Check::shm, Check::gpu, Check::pairs},
          .findings = {{Check::gpu, FindingLevel::unfit, "GPU 3 is lost (Xid 79)", "reset it"},
                       {Check::shm, FindingLevel::warning, "/dev/shm: 64 MiB free", "mount it larger"}},
          .versions = {{"torch", "2.15.0"}, {"NCCL", "2.27.3"}}};
}

bool same(const NodePreflight& left, const NodePreflight& right) {
  return left.host == right.host && left.done == right.done && left.findings == right.findings &&
         left.versions == right.versions;
}

std::vector<PairResult> pairs() {
  return {{{GroupRank{0}, GroupRank{3}}, true, 1'200'000'000, ""},
          {{GroupRank{1}, GroupRank{3}}, false, 0, "connection refused"}};
}

std::error_code code_of(const auto& result) {
  return result ? std::error_code{} : std::error_code{result.error().code};
}

}  // namespace

TEST_CASE("what nodes tell of themselves before a job comes back as it was", "[unit][preflight]") {
  const auto node = decode_preflight(encode_preflight(told()));
  REQUIRE(node.has_value());
  REQUIRE(same(*node, told()));
  REQUIRE(decode_pairs(encode_pairs(pairs())).value() == pairs());
  const PairWay way{"10.0.0.7", Port{4711}, "secret"};
  REQUIRE(decode_way(encode_way(way)).value() == way);
}

TEST_CASE("what a node tells is refused where it ends too early, and a newer node may tell more", "[unit][preflight]") {
  const std::string node = encode_preflight(told()), results = encode_pairs(pairs());
  for (std::size_t cut = 0; cut < node.size(); ++cut) REQUIRE(decode_preflight(node.substr(0, cut)).has_error());
  for (std::size_t cut = 0; cut < results.size(); ++cut) REQUIRE(decode_pairs(results.substr(0, cut)).has_error());
  REQUIRE(same(decode_preflight(node + "more").value(), told()));
  REQUIRE(decode_pairs(results + "more").value() == pairs());
}

TEST_CASE("a check that only a newer node knows is taken for one without a column's meaning", "[unit][preflight]") {
  NodePreflight newer = told();
  newer.findings.resize(1);
  newer.findings[0].check = static_cast<Check>(200);
  newer.findings[0].level = static_cast<FindingLevel>(200);
  const auto node = decode_preflight(encode_preflight(newer));
  REQUIRE(node.has_value());
  REQUIRE(node->findings[0].check == Check::versions);
  REQUIRE(node->findings[0].level == FindingLevel::warning);
}

TEST_CASE("what nodes tell is bounded: the writer cuts it", "[unit][preflight]") {
  NodePreflight node = told();
  node.findings.assign(findings_max + 1, node.findings[0]);
  REQUIRE(decode_preflight(encode_preflight(node))->findings.size() == findings_max);
  node = told();
  node.findings[0].text.assign(5000, 'x');
  REQUIRE(decode_preflight(encode_preflight(node))->findings[0].text == std::string(4096, 'x'));
  std::vector<PairResult> results(pair_matchings + 1, pairs()[0]);
  REQUIRE(decode_pairs(encode_pairs(results))->size() == pair_matchings);
  results = {pairs()[0]};
  results[0].bytes_per_s = -1;
  REQUIRE(decode_pairs(encode_pairs(results)).has_error());
}

TEST_CASE("what strangers tell is bounded: the reader refuses it", "[unit][preflight]") {
  std::string bytes = encode_pairs({});
  for (std::size_t at = 0; at + 4 <= bytes.size(); ++at) {
    std::string more = bytes;
    more.replace(at, 4, "\x09\x00\x00\x00", 4);  // a pair more than there may be
    REQUIRE(decode_pairs(more).has_error());
    more.replace(at, 4, "\xff\xff\xff\xff", 4);
    REQUIRE(decode_pairs(more).has_error());
  }
}

TEST_CASE("random bytes of a node never crash who reads them", "[unit][preflight]") {
  std::mt19937 random{11};
  for (int round = 0; round < 20000; ++round) {
    std::string node = encode_preflight(told());
    for (int flips = 0; flips < 3; ++flips) node[random() % node.size()] = static_cast<char>(random());
    const auto read = decode_preflight(node);
    REQUIRE((!read || same(decode_preflight(encode_preflight(*read)).value(), *read)));
  }
}

#include "launcher/core/diagnosis/preflight_codec.hpp"

#include <cstdint>
#include <limits>

#include "rendezvous/core/link/wire_fields.hpp"

namespace torchup {
namespace wire {
namespace {

constexpr std::size_t finding_bytes_max = 4096;
constexpr std::size_t checks_max = 64;

/// One that only a newer release knows is none of ours: the table has no column for it.
void check(auto& a, Check& value) { a.choice("a check", value, Check::health, Check::versions); }

}  // namespace

void fields(auto& a, Finding& m) {
  check(a, m.check);
  a.choice("a level", m.level, FindingLevel::unfit, FindingLevel::warning);
  a.text("a finding", m.text, finding_bytes_max);
  a.text("a remedy", m.remedy, finding_bytes_max);
}
void fields(auto& a, NodePreflight& m) {
  a.name("a host", m.host);
  a.list("the list of checks", m.done, checks_max, [&a](Check& value) { check(a, value); });
  a.list("the list of findings", m.findings, findings_max);
  facts(a, m.versions);
}
void fields(auto& a, PairResult& m) {
  group_rank(a, m.pair.first);
  group_rank(a, m.pair.second);
  a(m.connected);
  a.number("a rate", m.bytes_per_s, std::int64_t{0}, std::numeric_limits<std::int64_t>::max());
  a.text("a problem", m.problem, finding_bytes_max);
}
struct Pairs {
  std::vector<PairResult> results = {};
};
void fields(auto& a, Pairs& m) { a.list("the list of pairs", m.results, std::size_t{pair_matchings}); }
void fields(auto& a, PairWay& m) {
  a.name("an address", m.address);
  port(a, m.port);
  a.name("a secret", m.secret);
}

}  // namespace wire

namespace {

template <class T>
std::string encoded(const T& value) {
  wire::Writer writer;
  writer.message(value);
  return writer.take();
}

template <class T>
Result<T> decoded(std::string_view bytes) {
  T value;
  wire::Reader reader{bytes};
  reader.message(value);
  if (reader.error()) return *reader.error();
  return value;
}

}  // namespace

std::string encode_preflight(const NodePreflight& node) { return encoded(node); }
Result<NodePreflight> decode_preflight(std::string_view bytes) { return decoded<NodePreflight>(bytes); }
std::string encode_pairs(const std::vector<PairResult>& results) { return encoded(wire::Pairs{results}); }
Result<std::vector<PairResult>> decode_pairs(std::string_view bytes) {
  auto pairs = decoded<wire::Pairs>(bytes);
  if (!pairs) return pairs.error();
  return std::move(pairs->results);
}
std::string encode_way(const PairWay& way) { return encoded(way); }
Result<PairWay> decode_way(std::string_view bytes) { return decoded<PairWay>(bytes); }

}  // namespace torchup

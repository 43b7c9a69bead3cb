// What a job's page tells, of whatever nodes, reports, incidents and names: it is JSON, whoever has followed it by
// merge patches has what a snapshot has, and what metrics tell of it are lines of their own.
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "rendezvous/core/ops/metrics_text.hpp"
#include "rendezvous/core/text/json_text.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;
using nlohmann::json;

namespace {

constexpr unsigned nodes_most = 6;

struct Reader {
  json seen;
  std::uint64_t revision = 0;
};

std::string text(fuzz::Choices& choices) {
  std::string bytes;
  for (int left = choices.below(9); left > 0; --left) bytes += static_cast<char>(choices.next());
  return bytes;
}

json without_nulls(json value) {
  if (!value.is_object()) return value;
  for (auto member = value.begin(); member != value.end();) {
    if (member->is_null()) {
      member = value.erase(member);
      continue;
    }
    *member = without_nulls(*member);
    ++member;
  }
  return value;
}

JobView view(fuzz::Choices& choices) {
  JobView view{.phase = choices.below(5) == 0 ? "ended" : "running",
               .max_nodes = choices.below(3),
               .world_size = choices.below(2),
               .last = text(choices)};
  if (view.phase == "ended" && choices.below(2)) {
    view.verdict = Verdict{.reason = text(choices), .failures = {{.host = text(choices), .message = text(choices)}}};
  }
  for (unsigned left = choices.below(nodes_most); left > 0; --left) {
    JobView::Node node{.host = text(choices),
                       .state = std::string{node_states[choices.below(node_states.size())]},
                       .reason = text(choices),
                       .local_world_size = choices.below(4)};
    if (choices.below(4) > 0) node.node = std::to_string(choices.below(nodes_most));
    if (choices.below(2)) node.group_rank = GroupRank{choices.next()};
    view.nodes.push_back(std::move(node));
  }
  return view;
}

NodeReport report(fuzz::Choices& choices) {
  NodeReport report{.ranks = text(choices), .beats = choices.next()};
  if (choices.below(2)) {
    report.steps = StepReport{-choices.next(), choices.next(), choices.next() - 9, Duration{choices.next() - 100}};
  }
  for (std::int64_t& part : report.spent) part = (std::int64_t{1} << choices.below(63)) - choices.below(3);
  return report;
}

void follow(Reader& reader, JobPage& page, const Moment& at) {
  const auto change = page.changes(Right::control, reader.revision, at, 1);
  fuzz::require(change.has_value());  // fewer nodes go than are remembered
  reader.seen.merge_patch(json::parse(*change));
  reader.revision = page.revision();
  fuzz::require(without_nulls(reader.seen) == without_nulls(json::parse(page.snapshot(Right::control, at, 1))));
}

void require_lines(const std::string& metrics) {
  std::istringstream lines{metrics};
  for (std::string line; std::getline(lines, line);) {
    fuzz::require(line.starts_with("# ") || line.starts_with("torchup_"));
    for (const char c : line) fuzz::require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Choices choices{data, size < 2000 ? size : 2000};
  JobPage page{RunId{text(choices)}, text(choices)};
  std::vector<Reader> readers;
  Moment at;
  while (choices.any()) {
    at.now += std::chrono::milliseconds{choices.next()};
    switch (choices.below(7)) {
      case 0:
        page.show(view(choices), at);
        break;
      case 1:
        page.report(NodeId{std::to_string(choices.below(nodes_most))}, report(choices), at.now);
        break;
      case 2: {
        std::string incident;
        JsonObject{incident}.text("message", text(choices)).text("summary", text(choices)).end();
        page.add_incident(choices.next(), incident);
        break;
      }
      case 3:
        page.set_name(text(choices));
        page.count_order(text(choices));
        break;
      case 4:
        if (readers.size() < 4) readers.push_back({json::parse(page.snapshot(Right::control, at, 1)), page.revision()});
        break;
      case 5:
        if (!readers.empty()) follow(readers[choices.below(static_cast<unsigned>(readers.size()))], page, at);
        break;
      default:
        static_cast<void>(page.prepare(choices.next()));
    }
  }
  for (Reader& reader : readers) follow(reader, page, at);
  fuzz::require(json::accept(page.snapshot(Right::read, at, 1)));
  fuzz::require(json::accept(jobs_text({page.row(at, 1)}, Right::read, at)));
  require_lines(coordinator_metrics({.jobs = {page.numbers(at)}}));
  return 0;
}

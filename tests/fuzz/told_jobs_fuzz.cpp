// What strangers tell torchupctl of jobs, as a stream of events: the same events however the bytes are cut, merge
// patches that make a snapshot, and text that steers no terminal.
//
// Input: a byte for the cuts, then the body of a stream; each event's data is a snapshot, a change, a list of jobs and
// an event of a file, one after the other.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/ctl/job_choice.hpp"
#include "launcher/ctl/job_text.hpp"
#include "launcher/ctl/node_choice.hpp"
#include "launcher/ctl/report_data.hpp"
#include "launcher/ctl/stream_events.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

namespace {

std::vector<StreamEvent> events_of(std::string_view bytes, fuzz::PieceSize size) {
  StreamEvents reader;
  std::vector<StreamEvent> events;
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, size.next());
    bytes.remove_prefix(piece.size());
    reader.add(piece);
    while (auto event = reader.next()) events.push_back(*std::move(event));
  }
  return events;
}

void require_harmless(std::string_view text) {
  fuzz::require(std::ranges::none_of(
      text, [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7f; }));
}

void show(const json& told, json& snapshot, ReportData& report) {
  snapshot.merge_patch(told);
  for (const std::string& line : status_lines(snapshot, {.worst_first = true})) require_harmless(line + "\n");
  require_harmless(event_line(told));
  require_harmless(json_line(told));
  std::vector<json> rows;
  const std::vector<SeenJob> jobs = seen_jobs(0, told);
  for (const SeenJob& job : jobs) rows.push_back(job.row);
  rows.push_back(told);
  require_harmless(ps_text(rows));
  for (const char* word : {"", "a", "7"}) {
    static_cast<void>(choose_job(jobs, word));
    static_cast<void>(choose_node(snapshot, word));
  }
  report.add("n", told);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes{reinterpret_cast<const char*>(data) + 1, size - 1};
  const std::vector<StreamEvent> events = events_of(bytes, fuzz::PieceSize::whole());
  fuzz::require(events == events_of(bytes, fuzz::PieceSize{data[0]}));
  json snapshot = json::object();
  ReportData report;
  for (const StreamEvent& event : events) {
    if (const auto told = parse_json(event.data)) show(*told, snapshot, report);
  }
  fuzz::require(report.data("{}").starts_with("{"));
  return 0;
}

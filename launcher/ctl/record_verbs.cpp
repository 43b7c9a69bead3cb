// ledger, report, timeline and explain: what jobs have left.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>

#include "launcher/core/record/time_fold.hpp"
#include "launcher/core/record/timeline.hpp"
#include "launcher/ctl/event_file.hpp"
#include "launcher/ctl/explanation.hpp"
#include "launcher/ctl/job_text.hpp"
#include "launcher/ctl/report_data.hpp"
#include "launcher/ctl/target.hpp"
#include "launcher/ctl/values.hpp"
#include "launcher/ctl/verbs.hpp"
#include "launcher/os/io/named_file.hpp"
#include "launcher/os/io/regular_file.hpp"
#include "rendezvous/core/ops/page_text.hpp"
#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/core/text/utc_text.hpp"

namespace torchup {
namespace {

constexpr std::size_t incident_bytes_max = std::size_t{4} << 20;
/// Ranks of one round are in several files, of which one is read after the other: none is settled before all are read.
constexpr std::size_t all_attempts = SIZE_MAX;

/// Several files may be of one host, each of a node of its own.
std::string node_name(const json& event, std::size_t file, std::size_t files) {
  const std::string host = text_in(event, "host");
  return files == 1 ? host : fmt::format("{} ({})", host, file + 1);
}

/// Reads all files, one after the other. A number: one cannot be read.
std::optional<int> each_event(const std::vector<std::string>& files,
                              const std::function<void(std::size_t file, std::string_view line, const json&)>& see) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto unread =
        read_event_file(files[i], false, [&](std::string_view line, const json& event) { see(i, line, event); });
    if (!unread) return complain(unread.error().message(), CtlExit::usage);
    if (!unread->empty()) complain(*unread, 0);
  }
  return std::nullopt;
}

void add_to_fold(TimeFold& fold, std::string_view line, const std::string& node) {
  auto event = read_time_event(line);
  if (!event || !*event) return;
  (*event)->host = node;
  fold.add(**event);
}

/// Files of one job: its ledger is one.
class FilesOfJob {
 public:
  explicit FilesOfJob(const std::vector<std::string>& files) : files_{files}, run_ids_(files.size()) {}

  /// Of a file that has several the newest counts.
  void see(std::size_t file, const json& event) {
    if (text_in(event, "event") == "job_started") run_ids_[file] = text_in(event, "run_id");
  }
  /// A number: they are of several jobs, which is told.
  [[nodiscard]] std::optional<int> refused() const {
    std::size_t first = 0;
    while (first < files_.size() && run_ids_[first].empty()) ++first;  // cut off at its beginning
    for (std::size_t i = first; i < files_.size(); ++i) {
      if (run_ids_[i].empty() || run_ids_[i] == run_ids_[first]) continue;
      return complain(
          fmt::format("{} is of the job '{}', and {} of '{}': name files of one job", printable(files_[i]),
                      printable_start(run_ids_[i]), printable(files_[first]), printable_start(run_ids_[first])),
          CtlExit::usage);
    }
    return std::nullopt;
  }

 private:
  const std::vector<std::string>& files_;
  std::vector<std::string> run_ids_;  ///< by file
};

/// -: stdout. A file is there whole, or as it was before. What is none (a device, a FIFO) is written into, and so is
/// what a link leads to.
int write_output(const std::string& path, const std::string& text) {
  if (path == "-") return give(text);
  std::error_code unknown;
  const bool is_link = std::filesystem::is_symlink(path, unknown);
  const auto written = is_link ? overwrite_file_now(path, text) : replace_file_now(path, text);
  return written ? CtlExit::done : complain(printable(written.error().message()), CtlExit::usage);
}

int show_ledger(const Command& command, const TimeLedger& ledger, const LedgerCounts& counts) {
  if (command.options.flag("json")) return give(ledger_json(ledger) + "\n");
  std::string text;
  for (const std::string& line : ledger_lines(ledger, counts)) text += line + "\n";
  return give(text);
}

/// The parts that a snapshot tells.
TimeLedger ledger_of(const json& parts) {
  TimeLedger ledger;
  for (std::size_t i = 0; i < spent_words.size(); ++i) {
    const auto seconds = number_in(parts, std::string{spent_words[i]}.c_str());
    if (seconds && *seconds > 0 && *seconds < 1e11)
      ledger.add(static_cast<Spent>(i), static_cast<std::int64_t>(*seconds * 1e6 + 0.5));
  }
  for (const LedgerBasis basis : {LedgerBasis::processes, LedgerBasis::steps, LedgerBasis::mixed}) {
    if (text_in(parts, "basis") == to_text(basis)) ledger.basis = basis;
  }
  return ledger;
}

int ledger_of_job(const Command& command, const std::string& word) {
  const auto found = find_target(command, word);
  if (const int* const code = std::get_if<int>(&found)) return *code;
  const auto& target = std::get<Target>(found);
  const auto snapshot = ask_json(target.door, {.target = target.path()});
  if (const auto* trouble = std::get_if<Trouble>(&snapshot)) return complain(*trouble);
  const json& job = std::get<json>(snapshot);
  const json* const parts = member(job, "ledger");
  if (!parts || !parts->is_object()) return complain("nothing is known yet of where the job's time goes", CtlExit::no);
  if (command.options.flag("json")) return give(json_line(*parts));
  const auto begin = read_utc(text_in(job, "started"));
  auto end = read_utc(text_in(job, "ended"));
  if (!end) end = read_utc(text_in(job, "now"));
  LedgerCounts counts{.ranks = integer_in(job, "world_size"),
                      .lasted_us = begin && end ? std::max<std::int64_t>(*end - *begin, 0) : 0,
                      .restarts = integer_in(job, "restart_count"),
                      .changes = integer_in(job, "membership_changes")};
  if (counts.ranks == 0) counts.ranks.reset();  // there is no round now
  return show_ledger(command, ledger_of(*parts), counts);
}

}  // namespace

int run_ledger(const Command& command) {
  const std::vector<std::string>& files = command.operands;
  if (files.empty() || (files.size() == 1 && !is_event_file(files[0])))
    return ledger_of_job(command, files.empty() ? "" : files[0]);
  TimeFold fold{all_attempts};
  FilesOfJob job{files};
  const auto refused = each_event(files, [&](std::size_t file, std::string_view line, const json& event) {
    job.see(file, event);
    add_to_fold(fold, line, node_name(event, file, files.size()));
  });
  if (refused) return *refused;
  if (const auto several = job.refused()) return *several;
  const LedgerCounts counts = fold.counts();
  if (counts.ranks == 0) return complain("no job has begun in these files", CtlExit::no);
  return show_ledger(command, fold.ledger(), counts);
}

int run_report(const Command& command) {
  if (!command.options.has("output")) return complain("report needs --output FILE", CtlExit::usage);
  const std::vector<std::string>& files = command.operands;
  TimeFold fold{all_attempts};
  FilesOfJob job{files};
  struct TimedEvent {
    std::int64_t time_us;
    std::string node;
    json event;
  };
  std::vector<TimedEvent> all;
  const auto refused = each_event(files, [&](std::size_t file, std::string_view line, const json& event) {
    const std::string node = node_name(event, file, files.size());
    job.see(file, event);
    add_to_fold(fold, line, node);
    all.push_back({read_utc(text_in(event, "time")).value_or(0), node, event});
  });
  if (refused) return *refused;
  if (const auto several = job.refused()) return *several;
  if (all.empty()) return complain("there are no events in these files", CtlExit::no);
  std::ranges::stable_sort(all, {}, &TimedEvent::time_us);
  ReportData report;
  for (const TimedEvent& placed : all) report.add(placed.node, placed.event);
  for (const std::string& path : report.incident_paths()) {
    const auto text = read_regular_file(path, incident_bytes_max);
    if (!text || text->size() > incident_bytes_max)
      continue;  // it is on another machine, or gone: the event tells of it
    if (const auto incident = parse_json(*text)) report.add_incident_file(path, *incident);
  }
  // Nobody but us writes into the report: any nonce will do.
  return write_output(command.options.text("output"), report_text("report", report.data(ledger_json(fold.ledger()))));
}

int run_timeline(const Command& command) {
  if (!command.options.has("output")) return complain("timeline needs --output FILE", CtlExit::usage);
  const std::vector<std::string>& files = command.operands;
  Timeline timeline;
  std::size_t events = 0;
  const auto refused = each_event(files, [&](std::size_t file, std::string_view line, const json& event) {
    ++events;
    if (files.size() == 1) return static_cast<void>(timeline.add(line, event));
    json named = event;
    named["host"] = node_name(event, file, files.size());
    static_cast<void>(timeline.add(named.dump(-1, ' ', false, json::error_handler_t::replace), named));
  });
  if (refused) return *refused;
  if (events == 0) return complain("there are no events in these files", CtlExit::no);
  return write_output(command.options.text("output"), timeline.text());
}

int run_explain(const Command& command) {
  const auto explanation = explain(command.operands[0]);
  if (!explanation) {
    return complain(fmt::format("'{}' is neither an exit code (0 to 255, -9) nor a signal (SIGKILL)",
                                printable_start(command.operands[0])),
                    CtlExit::usage);
  }
  if (!command.options.flag("json")) return give(explanation_text(*explanation));
  json parts = json::array();
  for (const auto& [who, meaning, remedy] : explanation->parts)
    parts.push_back({{"as", who}, {"meaning", meaning}, {"remedy", remedy}});
  return give(json{{"title", explanation->title}, {"parts", parts}}.dump() + "\n");
}

}  // namespace torchup

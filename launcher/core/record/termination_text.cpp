#include "launcher/core/record/termination_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/core/text/text.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

constexpr std::string_view line_end = "\n";
constexpr std::string_view last_lines_title = "its last lines:";

/// Of valid UTF-8 the beginning, at most `bytes_max` bytes, without a piece of a character.
std::string_view start_of(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  std::size_t end = bytes_max;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end);
}

class TerminationText {
 public:
  /// As much of the line as may still stand here.
  void add(std::string_view line, std::size_t bytes_max = termination_part_bytes_max) {
    if (room() == 0) return;
    text_ += start_of(printable(line), std::min(bytes_max, room()));
    text_ += line_end;
  }
  /// The first of the lines, or the last ones: as many as have that much space in all. One that has not alone is cut.
  void add_lines(const std::vector<std::string>& lines, std::size_t bytes_max, bool last) {
    std::vector<std::string> chosen;
    std::size_t left = std::min(bytes_max, termination_bytes_max - text_.size());
    const auto choose = [&](const std::string& line) {
      std::string shown{start_of(printable(line), bytes_max - line_end.size())};
      if (shown.size() + line_end.size() > left) return false;
      left -= shown.size() + line_end.size();
      chosen.push_back(std::move(shown));
      return true;
    };
    if (last) {
      static_cast<void>(std::find_if_not(lines.rbegin(), lines.rend(), choose));
      std::reverse(chosen.begin(), chosen.end());
    } else {
      static_cast<void>(std::find_if_not(lines.begin(), lines.end(), choose));
    }
    for (const std::string& line : chosen) text_ += line + std::string{line_end};
  }
  [[nodiscard]] std::size_t room() const {
    const std::size_t taken = text_.size() + line_end.size();
    return taken >= termination_bytes_max ? 0 : termination_bytes_max - taken;
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

/// The one whose root cause is the job's. Nothing: nobody failed, and workers that died of another end are no news.
std::optional<Incident> incident_of_job(const Verdict& verdict, const Incident* incident) {
  if (verdict.failures.empty()) return std::nullopt;
  const WorkerFailure& cause = verdict.failures[root_cause(verdict.failures)];
  if (incident) {
    const WorkerFailure& own = incident->failures[root_cause(incident->failures)];
    if (own.rank == cause.rank && own.host == cause.host) return *incident;
  }
  Incident made;
  made.failures = {cause};
  add_backtraces(made.evidence, cause, {});
  return made;
}

}  // namespace

std::string termination_text(int exit_code, const Verdict& verdict, const Incident* incident) {
  TerminationText text;
  text.add(fmt::format("torchup ended with {}: {}", exit_code, verdict.reason));
  const auto told = incident_of_job(verdict, incident);
  if (!told) return text.take();
  text.add(incident_summary(*told));
  const bool traceback = !told->evidence.traceback.empty();
  const WorkerFailure& cause = told->failures[root_cause(told->failures)];
  const bool hint = cause.message == default_failure_message(cause.exit_code, cause.pid);  // where it left no words
  const std::string message = traceback ? told->evidence.traceback : hint ? "" : cause.message;
  text.add_lines(lines_of(message), termination_part_bytes_max, traceback);
  const auto& lines = told->evidence.last_lines;
  if (lines.empty() || text.room() <= last_lines_title.size()) return text.take();
  text.add(last_lines_title);
  text.add_lines(lines, termination_bytes_max, true);
  return text.take();
}

}  // namespace torchup

#include "launcher/core/record/exit_report.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace torchup {
namespace {

constexpr std::size_t rule_width_max = 60;

/// Characters as Python counts them: code points.
std::size_t text_width(std::string_view line) {
  return static_cast<std::size_t>(
      std::count_if(line.begin(), line.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::size_t longest_line(std::string_view text) {
  std::size_t width = 0;
  for (;;) {
    const auto at = text.find('\n');
    width = std::max(width, text_width(text.substr(0, at)));
    if (at == std::string_view::npos) return width;
    text.remove_prefix(at + 1);
  }
}

std::string entry(std::size_t index, const WorkerFailure& failure, const LocalTime& local_time) {
  const std::string name = failure.exit_code < 0 ? signal_name(-failure.exit_code) : "";
  return fmt::format(
      "[{}]:\n  time      : {}\n  host      : {}\n  rank      : {} (local_rank: {})\n"
      "  exitcode  : {} (pid: {}) {}\n  error_file: {}\n  traceback : {}",
      index, local_time(failure.time_us), failure.host, failure.rank.value(), failure.local_rank.value(),
      failure.exit_code, failure.pid, name.empty() ? "" : fmt::format(" ({})", name),
      failure.error_file.empty() ? "<N/A>" : failure.error_file,
      failure.message.empty() ? default_failure_message(failure.exit_code, failure.pid) : failure.message);
}

}  // namespace

std::string failure_text(const WorkerFailure& failure) {
  if (failure.exit_code < 0) {
    return fmt::format("rank {} was killed by {}", failure.rank.value(), signal_text(-failure.exit_code));
  }
  return fmt::format("rank {} failed with exit code {}", failure.rank.value(), failure.exit_code);
}

int launcher_exit_code(const Verdict& verdict, bool propagate) {
  if (!propagate || verdict.exit_code != 1 || verdict.failures.empty()) return verdict.exit_code;
  const int code = verdict.failures[root_cause(verdict.failures)].exit_code;
  if (code == 0) return verdict.exit_code;  // it failed all the same
  return code < 0 ? shell_code(-code) : code;
}

std::vector<WorkerFailure> all_failures(const Verdict& verdict, const std::vector<WorkerFailure>& local) {
  std::vector<WorkerFailure> all = verdict.failures;
  for (const WorkerFailure& own : local) {
    const bool told = std::any_of(all.begin(), all.end(), [&](const auto& known) { return known.rank == own.rank; });
    if (!told) all.push_back(own);
  }
  return all;
}

Verdict whole_verdict(Verdict verdict, const std::vector<WorkerFailure>& local) {
  if (!verdict.failures.empty()) verdict.failures = all_failures(verdict, local);
  return verdict;
}

bool has_report(const Verdict& verdict, const Teller& teller) {
  if (!verdict.reporter.empty()) return verdict.reporter == teller.host;
  if (teller.left) return false;
  if (verdict.failures.empty()) return teller.is_first;
  return verdict.failures[root_cause(verdict.failures)].host == teller.host;
}

std::optional<std::string> words_of_bystander(const Verdict& verdict, int exit_code, const Teller& teller) {
  if (has_report(verdict, teller)) return std::nullopt;
  std::string reporter = verdict.reporter;
  if (reporter.empty() && teller.left) return fmt::format("exit code {}: {}", exit_code, verdict.reason);
  if (!verdict.failures.empty()) {
    const WorkerFailure& cause = verdict.failures[root_cause(verdict.failures)];
    if (reporter.empty()) reporter = cause.host;
    return fmt::format(
        "exit code {}: {} on {}{}", exit_code, failure_text(cause), cause.host,
        reporter == cause.host ? ", which has the report" : fmt::format("; {} has the report", reporter));
  }
  if (teller.behind_front) return fmt::format("exit code {}: {}", exit_code, verdict.reason);
  if (reporter.empty()) reporter = teller.first.empty() ? "node 0" : teller.first;
  return fmt::format("exit code {}: {}; {} has the report", exit_code, verdict.reason, reporter);
}

std::string exit_report(std::string_view name, const std::vector<WorkerFailure>& failures,
                        const LocalTime& local_time) {
  const std::string title = std::string{name} + " FAILED";
  const std::size_t root = root_cause(failures);
  std::size_t width = text_width(title);
  std::string others;
  std::string cause;
  for (std::size_t index = 0; index < failures.size(); ++index) {
    const std::string text = entry(index, failures[index], local_time);
    width = std::max(width, longest_line(text));
    if (index == root)
      cause = text;
    else
      others += (others.empty() ? "" : "\n") + text;
  }
  width = std::min(width, rule_width_max);
  const std::string border(width, '=');
  const std::string section(width, '-');
  return "\n" + border + "\n" + title + "\n" + section + "\nFailures:\n" +
         (others.empty() ? "  <NO_OTHER_FAILURES>" : others) + "\n" + section +
         "\nRoot Cause (first observed failure):\n" + cause + "\n" + border;
}

std::string default_failure_message(int exit_code, std::int64_t pid) {
  if (exit_code >= 0) return "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";
  const std::string name = signal_name(-exit_code);
  return fmt::format("Signal {} ({}) received by PID {}", -exit_code, name.empty() ? "<N/A>" : name, pid);
}

}  // namespace torchup

// How a rehearsal came out.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "launcher/core/rehearsal/rehearsal.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

constexpr std::string_view nothing_known = "-";

/// What is noticed at once is told in milliseconds.
std::string or_dash(const std::optional<Duration>& time) {
  if (!time) return std::string{nothing_known};
  if (*time >= std::chrono::seconds{1}) return seconds(*time);
  return fmt::format("{} ms", std::chrono::ceil<std::chrono::milliseconds>(*time).count());
}

}  // namespace

std::vector<std::string> rehearsal_table(const std::vector<RehearsedFault>& faults) {
  if (faults.empty()) return {};
  using Row = std::array<std::string, 5>;
  std::vector<Row> rows{{"fault", "at", "noticed after", "going on after", "steps lost"}};
  for (const RehearsedFault& fault : faults) {
    const bool missing = fault.missing;
    rows.push_back({missing ? fault.text + ": not there" : fault.text, seconds(fault.at), or_dash(fault.noticed_after),
                    missing || fault.going_on_after ? or_dash(fault.going_on_after) : "never",
                    fault.steps_lost ? std::to_string(*fault.steps_lost) : std::string{nothing_known}});
  }
  std::array<std::size_t, 5> widths{};
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::vector<std::string> table;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    line.resize(line.find_last_not_of(' ') + 1);
    table.push_back(std::move(line));
  }
  return table;
}

namespace {

void expect_number(std::vector<std::string>& failures, std::string_view name, std::string_view relation, int wanted,
                   int was) {
  const bool good = relation == "<=" ? was <= wanted : was == wanted;
  if (!good) failures.push_back(fmt::format("expected {}{}{}, was {}", name, relation, wanted, was));
}

/// The worst of them: the first after which nothing went on, else the one after which it took longest.
void expect_recovery(std::vector<std::string>& failures, Duration most, const std::vector<RehearsedFault>& faults) {
  const RehearsedFault* worst = nullptr;
  const auto took = [](const RehearsedFault& fault) { return fault.going_on_after.value_or(Duration::max()); };
  for (const RehearsedFault& fault : faults) {
    if (!fault.missing && took(fault) > most && (worst == nullptr || took(fault) > took(*worst))) worst = &fault;
  }
  if (worst == nullptr) return;
  failures.push_back(fmt::format("expected recovery<={}, was {} ({})", script_time_text(most),
                                 worst->going_on_after ? seconds(*worst->going_on_after) : "never", worst->text));
}

}  // namespace

RehearsalResult rehearsal_result(const RehearsalScript& script, std::vector<RehearsedFault> faults,
                                 const RehearsedJob& job) {
  std::vector<std::string> failures;
  for (const RehearsedFault& fault : faults) {
    if (fault.missing) failures.push_back(fault.text + " had no target");
  }
  // A fault that never came was never rehearsed.
  for (std::size_t i = 0; i < script.statements.size(); ++i) {
    if (std::ranges::find(faults, i, &RehearsedFault::statement) != faults.end()) continue;
    failures.push_back(to_text(script.statements[i]) + " did not come before the end");
  }
  const ScriptExpectations& expect = script.expect;
  expect_number(failures, "exit", "=", expect.exit_code.value_or(0), job.exit_code);
  if (expect.restarts) {
    expect_number(failures, "restarts", expect.restarts_at_most ? "<=" : "=", *expect.restarts, job.restarts);
  }
  if (expect.ranks) expect_number(failures, "ranks", "=", *expect.ranks, job.ranks);
  if (expect.recovery_max) expect_recovery(failures, *expect.recovery_max, faults);

  RehearsalResult result;
  result.passed = failures.empty();
  result.faults = std::move(faults);
  result.exit_code = result.passed ? 0 : job.exit_code == 0 ? 1 : job.exit_code;
  result.text = result.passed ? "rehearsal passed" : "rehearsal failed: ";
  for (std::size_t i = 0; i < std::min(failures.size(), rehearsal_failures_told); ++i) {
    result.text += (i == 0 ? "" : "; ") + failures[i];
  }
  if (failures.size() > rehearsal_failures_told) {
    result.text += fmt::format(" and {} more", failures.size() - rehearsal_failures_told);
  }
  return result;
}

}  // namespace torchup

#include "launcher/core/rehearsal/rehearsal_script.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "launcher/core/rehearsal/rehearsal_forms.hpp"
#include "launcher/core/text/signals.hpp"

namespace torchup {
namespace {

struct FaultOptionName {
  FaultOption option;
  std::string_view name;
};
constexpr std::array fault_option_names{
    FaultOptionName{FaultOption::signal, "signal="}, FaultOptionName{FaultOption::by, "by="},
    FaultOptionName{FaultOption::lasts, "for="}, FaultOptionName{FaultOption::back, "back="},
    FaultOptionName{FaultOption::times, "times="}};
std::string target_text(const ScriptAction& action) {
  return std::string{form_of(action.kind).target} + (action.target ? std::to_string(*action.target) : "random");
}

}  // namespace

std::string_view fault_option_name(FaultOption option) {
  return std::ranges::find(fault_option_names, option, &FaultOptionName::option)->name;
}

const std::vector<ActionForm>& action_forms() {
  static const std::vector<ActionForm> forms{
      {FaultKind::kill_rank, "kill", "rank=", {}, {FaultOption::signal}},
      {FaultKind::stop_rank, "stop", "rank=", {FaultOption::lasts}, {}},
      {FaultKind::slow_rank, "slow", "rank=", {FaultOption::by, FaultOption::lasts}, {}},
      {FaultKind::kill_node, "kill", "node=", {}, {FaultOption::back}},
      {FaultKind::leave_node, "leave", "node=", {}, {FaultOption::back}},
      {FaultKind::stop_node, "stop", "node=", {FaultOption::lasts}, {}},
      {FaultKind::cut_node, "cut", "node=", {FaultOption::lasts}, {}},
  };
  return forms;
}
const ActionForm& form_of(FaultKind kind) { return *std::ranges::find(action_forms(), kind, &ActionForm::kind); }

bool is_of_rank(FaultKind kind) {
  return kind == FaultKind::kill_rank || kind == FaultKind::stop_rank || kind == FaultKind::slow_rank;
}

std::string script_time_text(Duration time) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  constexpr std::int64_t us_in_ms = 1000, us_in_s = 1'000'000;
  const bool in_ms = us < us_in_s || us % us_in_ms != 0;
  const std::int64_t unit = in_ms ? us_in_ms : us_in_s;
  const std::int64_t thousandths = us % unit / (unit / 1000);
  std::string text = std::to_string(us / unit);
  if (thousandths != 0) {
    text += fmt::format(".{:03}", thousandths);
    text.resize(text.find_last_not_of('0') + 1);
  }
  return text + (in_ms ? "ms" : "s");
}

std::string to_text(const ScriptAction& action) {
  std::string text = fmt::format("{} {}", form_of(action.kind).verb, target_text(action));
  if (action.kind == FaultKind::kill_rank && action.signal != ScriptAction{}.signal) {
    const std::string name = signal_name(action.signal);
    text += fmt::format(" signal={}", name.empty() ? std::to_string(action.signal) : name);
  }
  if (action.kind == FaultKind::slow_rank) text += fmt::format(" by={}%", action.by_percent);
  if (action.lasts > Duration{0}) text += " for=" + script_time_text(action.lasts);
  if (action.back) text += " back=" + script_time_text(*action.back);
  return text;
}

std::string to_text(const ScriptStatement& statement) {
  using When = ScriptStatement::When;
  std::string text = statement.when == When::step   ? fmt::format("at step {} ", statement.step)
                     : statement.when == When::time ? fmt::format("at {} ", script_time_text(statement.time))
                                                    : fmt::format("every {} ", script_time_text(statement.time));
  text += to_text(statement.action);
  if (statement.times) text += fmt::format(" times={}", *statement.times);
  return text;
}

std::string to_text(const RehearsalScript& script) {
  std::string text;
  for (const ScriptStatement& statement : script.statements) text += to_text(statement) + "\n";
  const ScriptExpectations& expect = script.expect;
  if (expect.exit_code) text += fmt::format("expect exit={}\n", *expect.exit_code);
  if (expect.restarts)
    text += fmt::format("expect restarts{}{}\n", expect.restarts_at_most ? "<=" : "=", *expect.restarts);
  if (expect.recovery_max) text += fmt::format("expect recovery<={}\n", script_time_text(*expect.recovery_max));
  if (expect.ranks) text += fmt::format("expect ranks={}\n", *expect.ranks);
  return text + fmt::format("seed={}\n", script.seed);
}

}  // namespace torchup

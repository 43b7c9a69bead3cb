#include "launcher/core/rehearsal/rehearsal_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <utility>

#include "launcher/core/rehearsal/rehearsal_words.hpp"
#include "launcher/core/text/text.hpp"
#include "rendezvous/core/link/messages.hpp"

namespace torchup {
namespace {

constexpr std::string_view none = "-";
constexpr std::string_view last_line = "end";
constexpr std::array<std::string_view, 5> names{"placed", "waiting", "stopped", "away", "ended"};
constexpr std::int64_t any = std::int64_t{1} << 60;  // nanoseconds or steps: sums of some are numbers yet

std::int64_t count(Duration time) { return std::chrono::nanoseconds{time}.count(); }
std::string or_none(const std::optional<Duration>& time) {
  return time ? std::to_string(count(*time)) : std::string{none};
}

std::string start_text(const RehearsalStart& start) {
  return fmt::format("{} {} {} {}", count(start.zero.time_since_epoch()), start.node.value(), start.nodes, start.step);
}

/// Reads the words of one line, one after the other; a wrong one is remembered.
class WordReader {
 public:
  explicit WordReader(std::string_view line) : rest_{line} {}

  std::string_view word() {
    const std::size_t blank = std::min(rest_.find(' '), rest_.size());
    const std::string_view taken = rest_.substr(0, blank);
    rest_.remove_prefix(std::min(blank + 1, rest_.size()));
    return taken;
  }
  template <class T>
  T number(T least, T most) {
    const auto value = script_number<T>(word(), least, most);
    good_ = good_ && value;
    return value.value_or(least);
  }
  Duration time() { return std::chrono::nanoseconds{number<std::int64_t>(0, any)}; }
  std::optional<Duration> time_or_none() {
    if (rest_.substr(0, rest_.find(' ')) != none) return time();
    word();
    return std::nullopt;
  }
  RehearsalStart start() {
    RehearsalStart start;
    start.zero = TimePoint{time()};
    start.node = GroupRank{number(0, nodes_max - 1)};
    start.nodes = number(1, nodes_max);
    start.step = number<std::int64_t>(-1, script_step_max);
    return start;
  }
  void expect(std::string_view wanted) { good_ = word() == wanted && good_; }
  [[nodiscard]] std::string_view rest() const { return rest_; }
  [[nodiscard]] bool good() const { return good_; }
  [[nodiscard]] bool whole() const { return good_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool good_ = true;
};

std::string fault_line(const RehearsedFault& fault) {
  const std::string lost = fault.steps_lost ? std::to_string(*fault.steps_lost) : std::string{none};
  return fmt::format("fault {} {} {} {} {} {} {} {}\n", fault.statement, fault.turn, count(fault.at),
                     fault.missing ? 1 : 0, or_none(fault.noticed_after), or_none(fault.going_on_after), lost,
                     fault.text);
}

std::optional<RehearsedFault> read_fault(std::string_view line) {
  WordReader words{line};
  words.expect("fault");
  RehearsedFault fault;
  fault.statement = words.number<std::size_t>(0, script_statements_max - 1);
  fault.turn = words.number(0, static_cast<int>(rehearsal_faults_max));
  fault.at = words.time();
  fault.missing = words.number(0, 1) == 1;
  fault.noticed_after = words.time_or_none();
  fault.going_on_after = words.time_or_none();
  if (const auto steps = words.time_or_none()) fault.steps_lost = count(*steps);
  fault.text = std::string{words.rest()};
  return words.good() ? std::optional{std::move(fault)} : std::nullopt;
}

Error not_understood(std::string_view line) {
  return fail(errc::bad_value, fmt::format("a report of a rehearsal is not understood: {}", line.substr(0, 80)));
}

}  // namespace

std::string to_text(const RehearsedNode& node) {
  const std::string start = node.start ? " " + start_text(*node.start) : "";
  return fmt::format("{} {} {}{}", node.index, node.nodes, node.port.value(), start);
}

Result<RehearsedNode> parse_rehearsed_node(std::string_view text) {
  WordReader words{text};
  RehearsedNode node;
  node.index = words.number(0, rehearsed_nodes_max - 1);
  node.nodes = words.number(1, rehearsed_nodes_max);
  node.port = Port{words.number<std::uint16_t>(1, std::numeric_limits<std::uint16_t>::max())};
  if (!words.rest().empty()) node.start = words.start();
  if (words.whole() && node.index < node.nodes) return node;
  return fail(errc::bad_value, "it names no node of a rehearsal");
}

std::string encode(const RehearsalReport& report) {
  using What = RehearsalReport::What;
  std::string text{names.at(static_cast<std::size_t>(report.what))};
  if (report.what == What::stopped) text += fmt::format(" {}", count(report.lasts));
  if (report.what == What::away) text += fmt::format(" {} {}", or_none(report.back), start_text(report.restart));
  if (report.what == What::ended) {
    text += fmt::format(" {} {} {}", report.job.exit_code, report.job.restarts, report.job.ranks);
  }
  text += "\n";
  for (const RehearsedFault& fault : report.faults) text += fault_line(fault);
  return text + std::string{last_line} + "\n";
}

Result<std::optional<RehearsalReport>> take_rehearsal_report(std::string& input) {
  using What = RehearsalReport::What;
  const std::string end_of_report = "\n" + std::string{last_line} + "\n";
  const std::size_t end = input.find(end_of_report);
  if (end == std::string::npos) {
    if (input.size() <= rehearsal_report_bytes_max) return std::optional<RehearsalReport>{};
    return fail(errc::limit_exceeded,
                fmt::format("a report of a rehearsal has at most {} bytes", rehearsal_report_bytes_max));
  }
  const std::string text = input.substr(0, end);
  input.erase(0, end + end_of_report.size());
  const auto lines = split(text, '\n');
  RehearsalReport report;
  WordReader words{lines.front()};
  const auto name = std::ranges::find(names, words.word());
  if (name == names.end()) return not_understood(lines.front());
  report.what = static_cast<What>(name - names.begin());
  if (report.what == What::stopped) {
    report.lasts = words.time();
  } else if (report.what == What::away) {
    report.back = words.time_or_none();
    report.restart = words.start();
  } else if (report.what == What::ended) {
    report.job.exit_code = words.number(0, exit_code_max);
    report.job.restarts = words.number(0, std::numeric_limits<int>::max());
    report.job.ranks = words.number(0, world_size_max);
  }
  if (!words.whole()) return not_understood(lines.front());
  for (std::size_t i = 1; i < lines.size(); ++i) {
    auto fault = read_fault(lines[i]);
    if (!fault || report.faults.size() >= rehearsal_faults_max) return not_understood(lines[i]);
    report.faults.push_back(*std::move(fault));
  }
  return std::optional{std::move(report)};
}

void GatheredFaults::add(const std::vector<RehearsedFault>& faults, bool whole) {
  for (const RehearsedFault& told : faults) {
    auto known = std::ranges::find_if(faults_, [&](const Gathered& each) {
      return each.fault.statement == told.statement && each.fault.turn == told.turn;
    });
    if (known == faults_.end()) {
      if (faults_.size() >= rehearsal_faults_max) continue;
      faults_.push_back({told, false});
      known = faults_.end() - 1;
    }
    RehearsedFault& fault = known->fault;
    // One node may have come to it later than another: what is compared is when something was so.
    const Duration at = std::min(fault.at, told.at);
    const auto since = [at](std::optional<Duration> after, Duration from) {
      if (after) *after += from - at;
      return after;
    };
    fault.noticed_after = since(fault.noticed_after, fault.at);
    fault.going_on_after = since(fault.going_on_after, fault.at);
    fault.at = at;
    fault.missing = fault.missing || told.missing;
    const auto merge = [](auto& into, const auto& value, auto better) {
      if (value && (!into || better(*value, *into))) into = value;
    };
    merge(fault.noticed_after, since(told.noticed_after, told.at), std::less<>{});
    merge(fault.going_on_after, since(told.going_on_after, told.at), std::greater<>{});
    merge(fault.steps_lost, told.steps_lost, std::greater<>{});
    known->open = known->open || (whole && !told.missing && !told.going_on_after);
  }
}

std::vector<RehearsedFault> GatheredFaults::all() const {
  std::vector<RehearsedFault> list;
  for (const Gathered& each : faults_) {
    list.push_back(each.fault);
    if (each.open) list.back().going_on_after.reset();
  }
  std::ranges::stable_sort(list, {}, &RehearsedFault::at);
  return list;
}

}  // namespace torchup

#include "launcher/ctl/job_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "launcher/ctl/values.hpp"
#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/core/text/utc_text.hpp"

namespace torchup {
namespace {

constexpr std::size_t line_bytes_max = 1000;
constexpr std::string_view green = "32", yellow = "33", red = "31", cyan = "36", grey = "90", loud_red = "1;31";

std::string or_dash(std::string text) { return text.empty() ? "-" : std::move(text); }

/// "2", "1:4": how many it may have.
std::string range_text(const json& job) {
  const auto least = integer_in(job, "min_nodes"), most = integer_in(job, "max_nodes");
  if (!least || !most) return "-";
  return *least == *most ? fmt::format("{}", *least) : fmt::format("{}:{}", *least, *most);
}

/// "2"; "1/2", "3/1:4" where it may have others than it has.
std::string nodes_text(const json& job) {
  const std::string range = range_text(job);
  const json* const states = member(job, "node_states");
  if (!states) return range;
  std::int64_t there = 0;
  for (const char* state : {"ready", "seated", "finished", "stopping"}) there += integer_in(*states, state).value_or(0);
  const std::string count = fmt::format("{}", there);
  return count == range ? range : fmt::format("{}/{}", count, range);
}

std::string number_or_dash(const json& job, const char* name) {
  const auto number = integer_in(job, name);
  return number ? fmt::format("{}", *number) : "-";
}

/// "1/3": of how many.
std::string restarts_text(const json& job) {
  const auto count = integer_in(job, "restart_count"), most = integer_in(job, "max_restarts");
  if (!count) return "-";
  return most ? fmt::format("{}/{}", *count, *most) : fmt::format("{}", *count);
}

/// How long it has run, or did; negative: it is not known.
double lasted(const json& job) {
  const auto begin = read_utc(text_in(job, "started"));
  auto end = read_utc(text_in(job, "ended"));
  if (!end) end = read_utc(text_in(job, "now"));
  return begin && end ? static_cast<double>(*end - *begin) / 1e6 : -1;
}

std::string_view colour_of_letter(char letter) {
  switch (letter) {
    case 'r':
    case 'd':
      return green;
    case 's':
      return cyan;
    case 'w':
      return yellow;
    case 'h':
      return loud_red;
    case 'x':
      return red;
    default:
      return grey;
  }
}

std::string_view colour_of_phase(const json& job) {
  const std::string phase = text_in(job, "phase");
  if (phase == "running") return green;
  const json* const verdict = member(job, "verdict");
  if (verdict && verdict->is_object()) return integer_in(*verdict, "exit_code") == 0 ? green : red;
  return phase == "cut off" ? red : yellow;
}

/// What a person looks at first: 0 is worst.
int rank_of_node(const json& node) {
  const std::string letters = text_in(node, "ranks"), state = text_in(node, "state");
  if (letters.find_first_of("hx") != std::string::npos) return 0;
  if (state == "silent" || state == "missing" || state == "unfit" || state == "refused") return 1;
  if (state != "seated" || letters.find_first_of("?w") != std::string::npos) return 2;
  return 3;
}

struct ShownNode {
  std::string id;
  const json* node;
};

std::vector<ShownNode> nodes_in_order(const json& snapshot, bool worst_first) {
  std::vector<ShownNode> shown;
  const json* const nodes = member(snapshot, "nodes");
  if (!nodes || !nodes->is_object()) return shown;
  for (const auto& [id, node] : nodes->items()) shown.push_back({id, &node});
  const auto place = [&](const ShownNode& each) {
    const auto group_rank = integer_in(*each.node, "group_rank");
    return std::pair{worst_first ? rank_of_node(*each.node) : 0, group_rank ? *group_rank : INT64_MAX};
  };
  std::ranges::stable_sort(shown, {}, place);
  return shown;
}

/// "step 41200, 3.1 steps/s, the last 0:02 ago".
std::string step_line(const json& snapshot) {
  const json* const step = member(snapshot, "step");
  if (!step || !step->is_object()) return "";
  const auto least = integer_in(*step, "min"), most = integer_in(*step, "max");
  if (!most) return "";
  std::string line =
      least && *least != *most ? fmt::format("steps {} to {}", *least, *most) : fmt::format("step {}", *most);
  if (const auto rate = number_in(*step, "per_second")) line += fmt::format(", {} steps/s", rate_text(*rate));
  if (const auto age = number_in(*step, "age_s")) line += fmt::format(", the last one {} ago", lasting_text(*age));
  return line;
}

void add_head(const json& job, Colour colour, std::vector<std::string>& lines) {
  std::string line = fmt::format("{}  {}", printable_start(text_in(job, "run_id")),
                                 coloured(printable_start(text_in(job, "phase")), colour_of_phase(job), colour));
  if (const std::string name = text_in(job, "name"); !name.empty()) line += fmt::format("  {}", printable_start(name));
  if (const double up = lasted(job); up >= 0) line += fmt::format("  {}", lasting_text(up));
  lines.push_back(line);
  lines.push_back(fmt::format("{} ranks, nodes {}, round {}, restarts {}, membership changes {}",
                              number_or_dash(job, "world_size"), nodes_text(job), number_or_dash(job, "round"),
                              restarts_text(job), number_or_dash(job, "membership_changes")));
  if (std::string step = step_line(job); !step.empty()) lines.push_back(std::move(step));
  const json* const ledger = member(job, "ledger");
  const auto useful = ledger ? number_in(*ledger, "useful") : std::nullopt;
  const auto all = ledger ? number_in(*ledger, "rank_seconds") : std::nullopt;
  if (useful && all && *all > 0) lines.push_back(fmt::format("{:.1f} % of the time useful", 100 * *useful / *all));
  for (const auto& [name, words] : {std::pair{"master", "master at"}, {"waits_for", "waits for"}, {"last", "last:"}}) {
    const std::string text = text_in(job, name);
    if (!text.empty()) lines.push_back(fmt::format("{} {}", words, printable_start(text, line_bytes_max)));
  }
  if (const json* const verdict = member(job, "verdict"); verdict && verdict->is_object()) {
    lines.push_back(fmt::format("ended with {}: {}", number_or_dash(*verdict, "exit_code"),
                                printable_start(text_in(*verdict, "reason"), line_bytes_max)));
  }
}

void add_nodes(const json& job, const StatusView& view, std::vector<std::string>& lines) {
  const std::vector<ShownNode> nodes = nodes_in_order(job, view.worst_first);
  if (nodes.empty()) return;
  // The letters stand last, for they have colours and are many.
  Table table{{{"NODE"}, {"HOST"}, {"STATE"}, {"GROUP RANK", true}, {"FIRST RANK", true}, {"STEP", true}}};
  const std::size_t count = std::min(nodes.size(), view.nodes_max);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [id, node] = nodes[i];
    std::string state = text_in(*node, "state");
    if (const std::string reason = text_in(*node, "reason"); !reason.empty()) state += " (" + reason + ")";
    table.add({id, text_in(*node, "host"), state, number_or_dash(*node, "group_rank"),
               number_or_dash(*node, "first_rank"), number_or_dash(*node, "step")});
  }
  std::vector<std::string> rows = table.lines();
  std::size_t width = 0;
  for (const std::string& row : rows) width = std::max(width, columns_of(row));
  lines.emplace_back();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::string line = rows[i] + std::string(width - columns_of(rows[i]) + 2, ' ');
    line += i == 0 ? "RANKS" : rank_letters(text_in(*nodes[i - 1].node, "ranks"), view.colour);
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(std::move(line));
  }
  if (nodes.size() > count) lines.push_back(fmt::format("and {} more nodes", nodes.size() - count));
}

void add_incident(const json& job, Colour colour, std::vector<std::string>& lines) {
  const json* const incidents = member(job, "incidents");
  if (!incidents || !incidents->is_array() || incidents->empty()) return;
  const json& last = incidents->back();
  lines.emplace_back();
  lines.push_back(fmt::format("last incident{}: {}",
                              incidents->size() > 1 ? fmt::format(" of {}", incidents->size()) : "",
                              coloured(printable_start(text_in(last, "summary"), line_bytes_max), red, colour)));
  if (const std::string path = text_in(last, "path"); !path.empty())
    lines.push_back("  " + printable_start(path, line_bytes_max));
}

/// A value in a line; a text with blanks in quotes.
std::string value_text(const json& value) {
  if (!value.is_string())
    return printable_start(value.dump(-1, ' ', false, json::error_handler_t::replace), line_bytes_max);
  std::string text = printable_start(value.get_ref<const std::string&>(), line_bytes_max);
  const bool plain = !text.empty() && text.find_first_of(" \"=") == std::string::npos;
  return plain ? text : "\"" + text + "\"";
}

}  // namespace

std::string ps_text(std::span<const json> rows) {
  Table table{{{"RUN ID"},
               {"PID", true},
               {"PHASE"},
               {"NODES", true},
               {"RANKS", true},
               {"STEP", true},
               {"STEPS/S", true},
               {"RESTARTS", true},
               {"UP", true},
               {"PROGRAM"}}};
  for (const json& row : rows) {
    const json* const answering = member(row, "answering");
    if (answering && *answering == false) {
      table.add({"-", number_or_dash(row, "pid"), "not answering", "-", "-", "-", "-", "-", "-", "-"});
      continue;
    }
    const auto rate = number_in(row, "steps_per_second");
    table.add({text_in(row, "run_id"), number_or_dash(row, "pid"), or_dash(text_in(row, "phase")), nodes_text(row),
               number_or_dash(row, "world_size"), number_or_dash(row, "step"), rate ? rate_text(*rate) : "-",
               restarts_text(row), lasting_text(lasted(row)), or_dash(text_in(row, "name"))});
  }
  return joined_lines(table.lines());
}

std::string rank_letters(std::string_view letters, Colour colour) {
  const std::string shown = printable_start(letters, line_bytes_max);
  if (colour == Colour::none) return shown;
  std::string text;
  for (std::size_t begin = 0; begin < shown.size();) {
    const std::string_view rest = std::string_view{shown}.substr(begin);
    const auto other = std::ranges::find_if(rest, [&](char c) { return c != rest.front(); });
    const auto run = static_cast<std::size_t>(other - rest.begin());
    text += coloured(rest.substr(0, run), colour_of_letter(rest.front()), colour);
    begin += run;
  }
  return text;
}

std::vector<std::string> status_lines(const json& snapshot, const StatusView& view) {
  std::vector<std::string> lines;
  add_head(snapshot, view.colour, lines);
  add_nodes(snapshot, view, lines);
  add_incident(snapshot, view.colour, lines);
  return lines;
}

std::string event_line(const json& event) {
  std::string time = text_in(event, "time");
  if (read_utc(time)) time = time.substr(0, std::string_view{"2026-11-21T04:03:58.000"}.size());
  std::string line = fmt::format("{} {} {}", printable_start(time), or_dash(printable_start(text_in(event, "host"))),
                                 or_dash(printable_start(text_in(event, "event"))));
  if (!event.is_object()) return line;
  constexpr std::array told{"schema", "time", "monotonic_us", "host", "event", "seq"};
  for (const auto& [name, value] : event.items()) {
    if (std::ranges::find(told, name) != told.end()) continue;
    line += fmt::format(" {}={}", printable_start(name), value_text(value));
  }
  return line;
}

std::string harmless_json(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const unsigned next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0U;
    if (byte == 0x7f) {
      out += "\\u007f";
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {
      out += fmt::format("\\u{:04x}", next);
      ++i;
    } else {
      out += text[i] == '\r' ? ' ' : text[i];
    }
  }
  return out;
}

std::string json_line(const json& value) {
  return harmless_json(value.dump(-1, ' ', false, json::error_handler_t::replace)) + "\n";
}

std::string cut_line(std::string_view line, std::size_t columns) {
  std::string cut;
  std::size_t seen = 0;
  bool escaped = false;
  for (const char c : line) {
    if (c == '\x1b') escaped = true;
    const bool begins = (static_cast<unsigned char>(c) & 0xc0U) != 0x80U;
    if (!escaped && begins && ++seen > columns) break;
    cut += c;
    if (escaped && c == 'm') escaped = false;
  }
  return cut.find('\x1b') == std::string::npos ? cut : cut + "\x1b[0m";
}

}  // namespace torchup

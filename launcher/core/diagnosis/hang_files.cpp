#include "launcher/core/diagnosis/hang_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "launcher/core/record/collective_json.hpp"
#include "launcher/core/text/json.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

void add_thread(std::string& text, const PythonThread& thread, bool is_main) {
  text += fmt::format("  Python thread 0x{:x}{}\n", thread.ident, is_main ? ", the main one" : "");
  for (const StackFrame& frame : thread.frames) {
    text += fmt::format("    {}:{} {}\n", printable(frame.file), frame.line, printable(frame.function));
  }
  if (thread.frames.empty()) text += "    (no Python)\n";
  if (thread.cut) text += "    (and further frames)\n";
}

void add_head(std::string& text, Rank rank, const RankLook* look) {
  const std::string doing = look ? fmt::format(", pid {}: {}", look->pid, doing_text(*look)) : "";
  text += fmt::format("rank {}{}\n", rank.value(), doing);
}

void add_threads(std::string& text, const RankStacks& stacks) {
  const PythonThread* const main = main_thread(stacks.python, stacks.helper_wrote);
  if (main) add_thread(text, *main, true);
  for (const PythonThread& thread : stacks.python.threads) {
    if (&thread != main) add_thread(text, thread, false);
  }
  if (stacks.python.cut) text += "  (and further threads)\n";
  for (const NativeThread& thread : stacks.native) {
    text += fmt::format("  native thread {}, {}\n", thread.thread, printable(thread.name));
    for (const std::string& frame : thread.frames) text += "    " + printable(frame) + "\n";
    if (thread.cut) text += "    (and further frames)\n";
    if (!thread.problem.empty()) text += "    " + printable(thread.problem) + "\n";
  }
}

std::vector<int> numbers_of(std::span<const Rank> ranks) {
  std::vector<int> numbers;
  for (const Rank rank : ranks.first(std::min(ranks.size(), hang_ranks_max))) numbers.push_back(rank.value());
  return numbers;
}

/// In seconds.
double silent_seconds(Duration duration) {
  return static_cast<double>(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count()) / 1000;
}

/// The newest call that the rank is in.
ordered_json waits_of(const RankLook& look) {
  const Collective* newest = nullptr;
  for (const Collective& call : look.collectives) {
    if (!call.finished && (!newest || call.created_ns > newest->created_ns)) newest = &call;
  }
  if (!newest) return nullptr;
  return {{"group", newest->group}, {"number", newest->number}, {"operation", newest->operation}};
}

ordered_json rank_json(const RankLook& look) {
  ordered_json frames = ordered_json::array(), groups = ordered_json::array();
  for (const StackFrame& frame : look.frames) {
    frames.push_back(fmt::format("{}:{} {}", frame.file, frame.line, frame.function));
  }
  for (const GroupPosition& group : look.groups) {
    groups.push_back({{"name", group.name}, {"description", group.description}, {"number", group.number}});
  }
  return {{"rank", look.rank.value()}, {"host", look.host},
          {"pid", look.pid},           {"state", std::string{look.seen ? look.state : state_unknown}},
          {"kernel", look.kernel},     {"frames", frames},
          {"waits", waits_of(look)},   {"moving", look.moving},
          {"groups", groups},          {"native", look.native}};
}

}  // namespace

std::string stacks_text(std::span<const RankLook> looks, std::span<const RankStacks> stacks,
                        std::span<const Duration> quiet) {
  std::string text;
  for (std::size_t at = 0; at < looks.size(); ++at) {
    const RankLook& look = looks[at];
    add_head(text, look.rank, &look);
    const std::string step = look.beats > 0 ? fmt::format("step {}, ", look.step) : "";
    text += fmt::format("  {}last output {:.1f} s ago\n", step, silent_seconds(quiet[at]));
    add_threads(text, stacks[at]);
  }
  return text;
}

std::string hang_text(const HangReport& told, std::span<const RankStacks> stacks) {
  std::string text;
  for (const std::string& line : hang_page(told, std::nullopt, "")) text += line + "\n";
  for (const RankStacks& each : stacks) {
    const auto look = std::ranges::find(told.looks, each.rank, &RankLook::rank);
    text += '\n';
    add_head(text, each.rank, look == told.looks.end() ? nullptr : &*look);
    add_threads(text, each);
  }
  return text;
}

std::string hang_json(const HangReport& told, const std::optional<RankSet>& own) {
  ordered_json ranks = ordered_json::array();
  for (const RankLook& look : told.looks) {
    if (ranks.size() == hang_ranks_max) break;
    if (!own || own->contains(look.rank)) ranks.push_back(rank_json(look));
  }
  const std::optional<HangVerdict>& verdict = told.verdict;
  const ordered_json file{{"schema", hang_schema},
                          {"number", told.number},
                          {"kind", verdict ? ordered_json(to_text(verdict->kind)) : ordered_json(nullptr)},
                          {"summary", hang_summary(told)},
                          {"culprits", numbers_of(verdict ? verdict->culprits : std::vector<Rank>{})},
                          {"silent_s", silent_seconds(told.silence)},
                          {"collective", collective_json(verdict ? verdict->collective : std::nullopt)},
                          {"action", to_text(told.action)},
                          {"ranks", ranks}};
  return file.dump(-1, ' ', true, json::error_handler_t::replace) + "\n";
}

EventBody hang_event(const HangReport& told, const std::optional<RankSet>& own, const std::string& file) {
  std::vector<std::string> page = hang_page(told, own, file);
  std::string summary = std::move(page.front());
  page.erase(page.begin());
  if (told.asked || !told.verdict) return event::RanksShown{told.number, std::move(summary), std::move(page)};
  event::HangFound found;
  found.number = told.number;
  found.kind = told.verdict->kind;
  found.summary = std::move(summary);
  found.culprits = told.verdict->culprits;
  if (found.culprits.size() > hang_ranks_max)
    found.culprits.erase(found.culprits.begin() + hang_ranks_max, found.culprits.end());
  found.silent_s = silent_seconds(told.silence);
  found.collective = told.verdict->collective;
  found.action = told.action;
  found.page = std::move(page);
  return found;
}

}  // namespace torchup

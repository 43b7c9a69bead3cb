// events and wait: what has happened to a job, and what comes.

#include <fmt/format.h>

#include <algorithm>

#include "launcher/core/record/event_schema.hpp"
#include "launcher/ctl/event_file.hpp"
#include "launcher/ctl/job_story.hpp"
#include "launcher/ctl/job_text.hpp"
#include "launcher/ctl/values.hpp"
#include "launcher/ctl/verbs.hpp"

namespace torchup {

namespace {

constexpr auto long_time = std::chrono::hours{1};

int show_event(const json& event, bool as_json) { return give(as_json ? json_line(event) : event_line(event) + "\n"); }

int show_file(const std::string& path, bool follow, bool as_json) {
  int code = CtlExit::done;
  const auto unread = read_event_file(path, follow, [&](std::string_view line, const json& event) {
    const int given = give((as_json ? harmless_json(line) : event_line(event)) + "\n");
    code = std::max(code, given);
  });
  if (!unread) return complain(unread.error().message(), CtlExit::usage);
  if (!unread->empty()) complain(*unread, 0);
  return code;
}

void tell_lost(std::uint64_t lost) {
  if (lost > 0) complain(fmt::format("{} event{} before this are not kept", lost, lost == 1 ? "" : "s"), 0);
}

/// Prints what is kept behind `last`, which moves on. A number: it could not all be had.
std::optional<int> show_kept(const Target& target, bool as_json, std::int64_t& last) {
  while (true) {
    const auto answer = ask_json(target.door, {.target = target.path(fmt::format("/events?since={}", last))});
    if (const auto* trouble = std::get_if<Trouble>(&answer)) return complain(*trouble);
    const json& part = std::get<json>(answer);
    tell_lost(static_cast<std::uint64_t>(std::max<std::int64_t>(integer_in(part, "lost").value_or(0), 0)));
    const json* const events = member(part, "events");
    if (!events || !events->is_array() || events->empty()) return std::nullopt;
    for (const json& event : *events) {
      if (const int code = show_event(event, as_json); code != CtlExit::done) return code;
    }
    const auto next = integer_in(part, "next");
    if (!next || *next <= last) return std::nullopt;
    last = *next;
  }
}

int follow_events(JobStory& story, bool as_json, std::int64_t last) {
  while (!story.over()) {
    const auto event = story.next(std::chrono::steady_clock::now() + long_time);
    if (!event) continue;
    const auto data = parse_json(event->data);
    if (!data) continue;
    if (event->name == "gap") {
      last = 0;  // what follows may be counted by another process
      tell_lost(static_cast<std::uint64_t>(std::max<std::int64_t>(integer_in(*data, "lost").value_or(0), 0)));
    }
    if (event->name != "event") continue;
    const auto seq = integer_in(*data, "seq");
    if (seq && *seq <= last) continue;  // it was kept
    if (seq) last = *seq;
    if (const int code = show_event(*data, as_json); code != CtlExit::done) return code;
  }
  if (story.ended() || story.exit_code()) return CtlExit::done;
  return complain("nobody tells of the job any more", CtlExit::nobody);
}

}  // namespace

int run_events(const Command& command) {
  const bool as_json = command.options.flag("json"), follow = command.options.flag("follow");
  const std::string word = command.operands.empty() ? "" : command.operands[0];
  if (command.options.flag("schema")) return give(event_schema_text);
  if (is_event_file(word)) return show_file(word, follow, as_json);
  auto found = find_target(command, word);
  if (const int* const code = std::get_if<int>(&found)) return *code;
  const auto& target = std::get<Target>(found);
  std::int64_t last = 0;
  if (!follow) return show_kept(target, as_json, last).value_or(CtlExit::done);
  // It is listened before what is kept is asked for: what comes between the two is in both, not in neither.
  JobStory story{target};
  if (story.trouble()) return complain(*story.trouble());
  if (const auto code = show_kept(target, as_json, last)) return *code;
  return follow_events(story, as_json, last);
}

int run_wait(const Command& command) {
  const double limit_s = command.options.number("timeout", -1).value();
  const bool limited = command.options.has("timeout");
  if (limited && !(limit_s >= 0 && limit_s <= 1e9))
    return complain("--timeout: not a number of seconds from 0", CtlExit::usage);
  const TimePoint begin = std::chrono::steady_clock::now();
  auto found = find_target(command, command.operands.empty() ? "" : command.operands[0]);
  if (const int* const code = std::get_if<int>(&found)) return *code;
  JobStory story{std::get<Target>(std::move(found)), StoryEnd::launcher};
  if (story.trouble()) return complain(*story.trouble());
  const TimePoint until =
      limited ? begin + std::chrono::duration_cast<Duration>(std::chrono::duration<double>{limit_s}) : TimePoint::max();
  // Where the end has no code yet, what is told behind it may have one.
  while (!story.over() && !(story.is_settled() && story.exit_code())) {
    const TimePoint now = std::chrono::steady_clock::now();
    if (now >= until) return CtlExit::timeout;
    static_cast<void>(story.next(std::min(until, now + long_time)));
  }
  if (const auto code = story.exit_code()) return *code;
  return complain("nobody has said how the job ended", CtlExit::nobody);
}

}  // namespace torchup

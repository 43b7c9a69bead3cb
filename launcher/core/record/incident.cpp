#include "launcher/core/record/incident.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <string_view>

#include "launcher/core/record/error_file.hpp"
#include "launcher/core/record/exit_report.hpp"
#include "launcher/core/text/json.hpp"
#include "launcher/core/text/text.hpp"
#include "rendezvous/core/text/utc_text.hpp"

namespace torchup {
namespace {

constexpr std::size_t others_shown_max = 8;
constexpr std::size_t attempts_shown_max = 5;
constexpr std::size_t traceback_lines_max = 15;
constexpr std::size_t line_characters_max = 200;
/// Whatever they are: JSON makes six of an escape, and there are two quotes and a comma.
constexpr std::size_t bytes_that_fit = (event_lines_bytes_max - 3) / 6;

/// Of one of a list.
std::size_t json_bytes(const std::string& text) {
  return ordered_json(text).dump(-1, ' ', false, ordered_json::error_handler_t::replace).size() + 1;
}

/// At most so many bytes; no character is cut.
std::string end_of(std::string_view text, std::size_t bytes_max) {
  text = text.substr(text.size() - std::min(text.size(), bytes_max));
  while (!text.empty() && (static_cast<unsigned char>(text.front()) & 0xc0U) == 0x80U) text.remove_prefix(1);
  return std::string{text};
}

std::string_view signal_meaning(int signal) {
  switch (signal) {
    case SIGHUP:
      return "its terminal hung up";
    case SIGINT:
      return "interrupted from the keyboard";
    case SIGQUIT:
      return "quit from the keyboard";
    case SIGILL:
      return "an instruction that this processor does not have";
    case SIGTRAP:
      return "a breakpoint without debugger";
    case SIGABRT:
      return "it gave up by itself: abort, a failed assertion, an uncaught C++ exception";
    case SIGBUS:
      return "memory that cannot be there: a truncated mapped file, often a full /dev/shm";
    case SIGFPE:
      return "integer division by zero or overflow";
    case SIGSEGV:
      return "invalid memory access";
    case SIGPIPE:
      return "it wrote to a pipe or socket that nobody reads";
    case SIGALRM:
      return "its own alarm";
    case SIGTERM:
      return "somebody asked it to end";
    case SIGXCPU:
      return "its limit of processor time";
    case SIGXFSZ:
      return "its limit of file size";
    case SIGSYS:
      return "a system call that is forbidden to it";
    default:
      return "";
  }
}

std::string mebibytes(std::int64_t bytes) { return fmt::format("{} MiB", bytes / (1 << 20)); }

bool kernel_says_oom(const DeathEvidence& evidence) {
  return std::any_of(evidence.kernel_lines.begin(), evidence.kernel_lines.end(), [](const std::string& line) {
    return line.find("Killed process") != std::string::npos || line.find("oom") != std::string::npos;
  });
}

std::string explain_kill(const DeathEvidence& evidence) {
  const bool by_cgroup = evidence.oom_kills.value_or(0) > 0;
  if (by_cgroup || kernel_says_oom(evidence)) {
    std::string text = "killed by SIGKILL: the out-of-memory killer";
    if (evidence.memory_limit_bytes) text += ", memory limit " + mebibytes(*evidence.memory_limit_bytes);
    if (evidence.memory_peak_bytes) text += ", peak " + mebibytes(*evidence.memory_peak_bytes);
    return text;
  }
  if (evidence.machine_oom_kills.value_or(0) > 0)
    return "killed by SIGKILL: probably the out-of-memory killer, which struck on this machine in that time";
  if (evidence.oom_kills)
    return "killed by SIGKILL: sent by somebody; the out-of-memory killer has not struck in this memory cgroup";
  return "killed by SIGKILL: possibly out of memory (its counters cannot be read here)";
}

std::string shortened(std::string_view line) {
  // Not within a character.
  std::size_t end = std::min(line.size(), line_characters_max);
  while (end > 0 && end < line.size() && (static_cast<unsigned char>(line[end]) & 0xC0U) == 0x80U) --end;
  return std::string{line.substr(0, end)} + (end < line.size() ? "..." : "");
}

/// The last lines, for there stands the cause; a note about the rest.
void add_block(std::string& out, std::string_view title, const std::vector<std::string>& lines, std::size_t most) {
  if (lines.empty()) return;
  out += "  " + std::string{title} + ":\n";
  const std::size_t skipped = lines.size() > most ? lines.size() - most : 0;
  if (skipped != 0) out += fmt::format("    ... {} more before\n", skipped);
  for (std::size_t at = skipped; at < lines.size(); ++at) out += "    | " + shortened(lines[at]) + "\n";
}

/// As much of a stack as one looks at.
std::vector<std::string> innermost(const std::vector<std::string>& stack) {
  if (stack.size() <= traceback_lines_max) return stack;
  std::vector<std::string> lines(stack.begin(), stack.begin() + traceback_lines_max);
  lines.push_back(fmt::format("... {} more", stack.size() - traceback_lines_max));
  return lines;
}

const WorkerFailure& cause_of(const Incident& incident) { return incident.failures[root_cause(incident.failures)]; }

/// `3 workers like rank 1: sleeping in futex_wait_queue` — ranks that do the same are told once.
std::vector<std::string> other_lines(const Incident& incident) {
  std::vector<std::pair<std::string, std::string>> groups;  // state, ranks
  for (const BystanderState& other : incident.others) {
    const std::string state = other.progress.empty() ? other.state : other.state + "; " + other.progress;
    const auto known =
        std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.first == state; });
    if (known == groups.end())
      groups.emplace_back(state, fmt::format("{}", other.rank.value()));
    else
      known->second += fmt::format(",{}", other.rank.value());
  }
  std::vector<std::string> lines;
  for (const auto& [state, ranks] : groups) lines.push_back(fmt::format("rank {}: {}", ranks, state));
  if (lines.size() > others_shown_max) {
    const std::size_t more = lines.size() - others_shown_max;
    lines.resize(others_shown_max);
    lines.push_back(fmt::format("... {} more", more));
  }
  return lines;
}

/// `3,5`: those of the others that were in that state.
std::string ranks_in(const Incident& incident, std::string_view state) {
  std::string ranks;
  for (const BystanderState& other : incident.others) {
    if (other.state == state) ranks += fmt::format("{}{}", ranks.empty() ? "" : ",", other.rank.value());
  }
  return ranks;
}

/// A traceback's last line says what was raised.
std::string last_sentence(const std::string& traceback) {
  const auto lines = lines_of(traceback);
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const auto begin = line->find_first_not_of(" |");
    if (begin != std::string::npos && !is_ruler(*line)) return ": " + shortened(line->substr(begin));
  }
  return "";
}

/// What the dead worker said of its end, for the end of a sentence; empty when it said nothing. Above a native
/// backtrace stands what happened.
std::string said_by(const WorkerFailure& cause, const DeathEvidence& evidence) {
  if (!evidence.traceback.empty()) return last_sentence(evidence.traceback);
  if (cause.error_file.empty()) return "";
  const std::string first = cause.message.substr(0, cause.message.find('\n'));
  return first.empty() || first.front() == '#' ? "" : ": " + shortened(first);
}

}  // namespace

std::string explain_exit(int exit_code, const DeathEvidence& evidence) {
  if (!evidence.ended_for.empty()) return "it hung, and was aborted: " + evidence.ended_for;
  if (exit_code == -SIGKILL) return explain_kill(evidence);
  if (exit_code < 0) {
    const std::string_view meaning = signal_meaning(-exit_code);
    return "killed by " + signal_text(-exit_code) + (meaning.empty() ? "" : " (" + std::string{meaning} + ")");
  }
  const std::string code = fmt::format("exit code {}", exit_code);
  if (exit_code == 126) return code + " (a shell found the program not executable)";
  if (exit_code == 127) return code + " (a shell did not find the program)";
  if (exit_code > 128 && exit_code < 128 + 65)
    return fmt::format("{} (128 + {}: a child of it was perhaps killed by {})", code, exit_code - 128,
                       signal_text(exit_code - 128));
  return code;
}

CauseKind kind_of_death(int exit_code, const DeathEvidence& evidence) {
  if (exit_code == -SIGBUS) return CauseKind::shared_memory;
  // Killed by another signal it had nothing to say.
  return exit_code < 0 && exit_code != -SIGABRT ? CauseKind::unknown : cause_kind(evidence.last_words);
}

std::string incident_summary(const Incident& incident) {
  const WorkerFailure& cause = cause_of(incident);
  std::string text = fmt::format("rank {} (local rank {}, pid {}) on {}: {}{}", cause.rank.value(),
                                 cause.local_rank.value(), cause.pid, cause.host,
                                 explain_exit(cause.exit_code, incident.evidence), said_by(cause, incident.evidence));
  if (const std::string_view plain = plain_words(kind_of_death(cause.exit_code, incident.evidence)); !plain.empty())
    text += fmt::format("; {}", plain);
  const bool several_nodes = !incident.history.empty() && incident.history.back().placement &&
                             incident.history.back().placement->group_world_size > 1;
  if (!cause.consequence) return text;
  text += several_nodes ? "; no rank of this node failed by itself" : "; no rank failed by itself";
  if (const std::string ranks = ranks_in(incident, ended_well); !ranks.empty())
    text += fmt::format(", but rank {} had {}", ranks, ended_well);
  else if (!several_nodes)
    text += ": a network, or a node that is gone";
  return text;
}

std::string incident_text(const Incident& incident, const LocalTime& local_time) {
  const WorkerFailure& cause = cause_of(incident);
  const DeathEvidence& evidence = incident.evidence;
  std::string out = "What went wrong: " + incident_summary(incident) + "\n";
  out += "  at " + local_time(cause.time_us) + " in " + incident.attempt;
  if (!incident.consequence.empty()) out += "; " + incident.consequence;
  out += "\n";
  if (!incident.progress.empty()) out += "  its " + incident.progress + "\n";
  for (const std::string& finding : evidence.findings) out += "  " + shortened(finding) + "\n";
  const auto traceback = lines_of(evidence.traceback);
  add_block(out, "Python traceback", traceback, traceback_lines_max);
  if (traceback.empty())
    add_block(out, "Python stack, innermost first", innermost(evidence.python_stack), traceback_lines_max + 1);
  add_block(out, "native backtrace", evidence.native_backtrace, traceback_lines_max);
  add_block(out, "kernel log", evidence.kernel_lines, kernel_lines_shown_max);
  if (traceback.empty() && evidence.native_backtrace.empty())
    add_block(out, "its last lines", evidence.last_lines, evidence.last_lines.size());
  if (!evidence.core_file.empty()) out += "  core: " + evidence.core_file + "\n";
  for (const std::string* log : {&incident.stdout_log, &incident.stderr_log})
    if (!log->empty()) out += "  log: " + *log + "\n";
  if (incident.failures.size() > 1) out += fmt::format("  other failures: {}\n", incident.failures.size() - 1);
  add_block(out, "the others when it happened", other_lines(incident), others_shown_max + 1);
  if (incident.history.size() > 1) {
    std::vector<std::string> lines;
    for (const AttemptRecord& attempt : incident.history)
      lines.push_back(attempt.name + " from " + local_time(attempt.start_us) +
                      (attempt.end_us == 0
                           ? ""
                           : ", " + seconds_text(std::chrono::microseconds{attempt.end_us - attempt.start_us})) +
                      (attempt.end_reason.empty() ? "" : ": " + attempt.end_reason));
    add_block(out, "attempts", lines, attempts_shown_max);
  }
  return out;
}

event::IncidentRecorded incident_event(const Incident& incident, std::string path, bool restarted) {
  event::IncidentRecorded told{std::move(path), incident_summary(incident), restarted};
  const std::vector<std::string>& lines = incident.evidence.last_lines;
  std::size_t room = event_lines_bytes_max;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const std::size_t bytes = json_bytes(*line);
    if (bytes > room) {
      if (told.last_lines.empty()) told.last_lines.push_back(end_of(*line, bytes_that_fit));
      break;
    }
    room -= bytes;
    told.last_lines.push_back(*line);
  }
  std::ranges::reverse(told.last_lines);
  return told;
}

std::string incident_json(const Incident& incident) {
  const DeathEvidence& evidence = incident.evidence;
  ordered_json out;
  out["schema"] = incident_schema;
  out["run_id"] = incident.run_id;
  out["host"] = incident.host;
  out["attempt"] = incident.attempt;
  out["summary"] = incident_summary(incident);
  out["consequence"] = incident.consequence;
  out["root_cause"] = root_cause(incident.failures);
  out["failures"] = ordered_json::array();
  for (const WorkerFailure& failure : incident.failures)
    out["failures"].push_back(
        {{"rank", failure.rank.value()},
         {"local_rank", failure.local_rank.value()},
         {"pid", failure.pid},
         {"host", failure.host},
         {"time", utc_text(failure.time_us)},
         {"exit_code", failure.exit_code},
         {"signal", failure.exit_code < 0 ? ordered_json(signal_name(-failure.exit_code)) : ordered_json(nullptr)},
         {"message", failure.message},
         {"error_file", failure.error_file},
         {"consequence", failure.consequence}});
  out["evidence"] = {{"oom_kills", or_null(evidence.oom_kills)},
                     {"machine_oom_kills", or_null(evidence.machine_oom_kills)},
                     {"memory_limit_bytes", or_null(evidence.memory_limit_bytes)},
                     {"memory_peak_bytes", or_null(evidence.memory_peak_bytes)},
                     {"kernel_lines", evidence.kernel_lines},
                     {"core_file", evidence.core_file},
                     {"traceback", evidence.traceback},
                     {"native_backtrace", evidence.native_backtrace},
                     {"python_stack", evidence.python_stack},
                     {"ended_for", evidence.ended_for},
                     {"last_words", evidence.last_words},
                     {"findings", evidence.findings},
                     {"last_lines", evidence.last_lines}};
  if (incident.last_step) out["last_step"] = *incident.last_step;
  if (!incident.progress.empty()) out["progress"] = incident.progress;
  out["stdout_log"] = incident.stdout_log;
  out["stderr_log"] = incident.stderr_log;
  out["others"] = ordered_json::array();
  for (const BystanderState& other : incident.others)
    out["others"].push_back({{"rank", other.rank.value()},
                             {"local_rank", other.local_rank.value()},
                             {"pid", other.pid},
                             {"state", other.state},
                             {"silent_ms", other.silent_ms},
                             {"progress", other.progress}});
  out["attempts"] = ordered_json::array();
  for (const AttemptRecord& attempt : incident.history)
    out["attempts"].push_back(
        {{"name", attempt.name},
         {"directory", attempt.directory},
         {"start", utc_text(attempt.start_us)},
         {"end", attempt.end_us != 0 ? ordered_json(utc_text(attempt.end_us)) : ordered_json(nullptr)},
         {"end_reason", attempt.end_reason}});
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string find_traceback(const std::vector<std::string>& lines) {
  constexpr std::string_view head = "Traceback (most recent call last):";
  const auto begin = last_traceback(lines);
  if (!begin) return "";
  // A library may put its own mark before every line: `[rank0]: Traceback …`.
  const std::size_t margin = lines[*begin].find(head);
  std::string text;
  for (std::size_t at = *begin; at < lines.size(); ++at) {
    const std::string line = lines[at].size() > margin ? lines[at].substr(margin) : "";
    text += line + "\n";
    if (at != *begin && !line.empty() && line.front() != ' ') break;  // `ValueError: bad`
  }
  return text;
}

void add_backtraces(DeathEvidence& evidence, const WorkerFailure& failure, const std::vector<std::string>& lines) {
  if (!failure.error_file.empty()) {
    const auto said = reported_lines(failure.message);
    evidence.last_words = last_words(said);
    const bool python = failure.message.find("Traceback (most recent call last)") != std::string::npos;
    evidence.native_backtrace = python ? std::vector<std::string>{} : find_native_backtrace(said);
    if (evidence.native_backtrace.empty())
      for (const std::string& line : said) evidence.traceback += line + "\n";
    return;
  }
  evidence.last_words = last_words(lines);
  evidence.traceback = find_traceback(lines);
  evidence.native_backtrace = find_native_backtrace(lines);
}

std::vector<std::string> find_native_backtrace(const std::vector<std::string>& lines) {
  const auto is_frame = [](std::string_view line) {
    while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
    if (line.starts_with("frame #")) return true;
    if (line.size() < 2 || line[0] != '#') return false;
    return line[1] >= '0' && line[1] <= '9';
  };
  std::vector<std::string> found;
  for (std::size_t at = 0; at < lines.size(); ++at) {
    const std::string& line = lines[at];
    if (line.starts_with("Fatal Python error:")) {  // the fault handler: all that follows
      found.assign(lines.begin() + static_cast<std::ptrdiff_t>(at), lines.end());
      break;
    }
    if (is_frame(line)) {
      if (found.empty() && at > 0 && !lines[at - 1].empty()) found.push_back(lines[at - 1]);  // says what happened
      found.push_back(line);
    }
  }
  return found;
}

}  // namespace torchup

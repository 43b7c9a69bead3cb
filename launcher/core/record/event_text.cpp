#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "launcher/core/record/launch_event.hpp"
#include "launcher/core/text/signals.hpp"

namespace torchup {
namespace {

using Level = LogLevel;
using Line = std::optional<EventText>;

std::string with_words(const std::string& text, const std::string& said) {
  return said.empty() ? text : text + ": " + said;
}

/// Where torchrun says the same thing, in its words.
struct Text {
  Line operator()(const event::Waiting& e) const { return EventText{Level::info, e.roster}; }
  Line operator()(const event::WorkerExited& e) const {
    if (e.end != WorkerEnd::failed) {
      return EventText{Level::debug, fmt::format("rank {} has ended: {}, exit code {}", e.worker.rank.value(),
                                                 worker_end_text(e.end), e.exit_code)};
    }
    return EventText{Level::error, fmt::format("failed (exitcode: {}) local_rank: {} (pid: {}) of binary: {}",
                                               e.exit_code, e.worker.local_rank.value(), e.worker.pid, e.binary)};
  }
  Line operator()(const event::SpawnFailed& e) const {
    return EventText{Level::error, fmt::format("rank {} (local rank {}) could not be started: {}",
                                               e.worker.rank.value(), e.worker.local_rank.value(), e.reason)};
  }
  Line operator()(const event::SignalReceived& e) const {
    switch (e.use) {
      case SignalUse::ends:
        return EventText{Level::warning, fmt::format("Received {} death signal, {}", e.signal, e.consequence)};
      case SignalUse::forces:
        return EventText{Level::warning, fmt::format("got {} again: {}", signal_text(e.signal), e.consequence)};
      case SignalUse::drains:
      case SignalUse::ignored:
        return EventText{Level::info, fmt::format("got {}: {}", signal_text(e.signal), e.consequence)};
      case SignalUse::forwards:
      case SignalUse::pauses:
      case SignalUse::resumes:
        return std::nullopt;
    }
    return std::nullopt;
  }
  Line operator()(const event::TimeEnds& e) const {
    return EventText{
        Level::info,
        fmt::format("the time of this job ends in {:.0f} s: the workers are asked to save and stop", e.left_s)};
  }
  Line operator()(const event::ClosingSignalSent& e) const {
    return EventText{Level::warning,
                     fmt::format("Sending process {} closing signal {}", e.worker.pid, signal_text(e.signal))};
  }
  Line operator()(const event::WorkerKilled& e) const {
    if (e.after_signal == 0) {
      return EventText{Level::warning, fmt::format("process {} is killed: {}", e.worker.pid, e.reason)};
    }
    return EventText{Level::warning, fmt::format("Unable to shutdown process {} via {}, forcefully exiting via 9",
                                                 e.worker.pid, e.after_signal)};
  }
  Line operator()(const event::WorkerAbandoned& e) const {
    if (e.worker.pid == 0) {
      return EventText{Level::error,
                       fmt::format("the start of rank {} has not come back: the system has been executing its program "
                                   "for longer than the grace and 10s (a stalled file system?); going on without it",
                                   e.worker.rank.value())};
    }
    return EventText{
        Level::error,
        fmt::format("Process {} did not exit after SIGKILL within 10s; abandoning and continuing teardown. "
                    "Worker may be in uninterruptible kernel sleep (e.g. wedged on GPU/NIC); host may need "
                    "to be recycled.",
                    e.worker.pid)};
  }
  Line operator()(const event::OrderReceived& e) const {
    return EventText{Level::info, fmt::format("{} ordered by {}", e.verb, e.by)};
  }
  Line operator()(const event::HookFailed& e) const { return EventText{Level::warning, "--on-event: " + e.reason}; }
  Line operator()(const event::HangFound& e) const {
    return EventText{e.action == HangAction::none ? Level::warning : Level::error, e.summary};
  }
  Line operator()(const event::HangOver& e) const {
    return EventText{Level::warning, fmt::format("it goes on after {:.0f} s", std::floor(e.after_s))};
  }
  Line operator()(const event::RanksShown& e) const { return EventText{Level::error, e.summary}; }
  Line operator()(const event::StragglerFound& e) const {
    return EventText{e.told_here ? Level::warning : Level::debug, to_text(e.found)};
  }
  Line operator()(const event::StragglerOver& e) const {
    return EventText{e.told_here ? Level::warning : Level::debug, to_text(e.over)};
  }
  Line operator()(const event::WorkerStopped& e) const {
    return EventText{Level::warning, fmt::format("worker with local rank {} is stopped; kill -CONT {} lets it go on",
                                                 e.worker.local_rank.value(), e.worker.pid)};
  }
  Line operator()(const event::WorkerUninterruptible& e) const {
    const std::string who = fmt::format("[{}] Worker pid={}", e.role, e.worker.pid);
    if (!e.stuck) {
      return EventText{Level::warning,
                       fmt::format("{} entered uninterruptible sleep (D-state); will mark UNHEALTHY if it "
                                   "remains for {:.1f}s.",
                                   who, e.limit_s)};
    }
    return EventText{Level::error,
                     fmt::format("{} stuck in uninterruptible sleep (D-state) for {:.1f}s (>= {:.1f}s); marking worker "
                                 "group UNHEALTHY and disabling restarts.",
                                 who, e.lasted_s, e.limit_s)};
  }
  Line operator()(const event::WorkerSeen& e) const {
    if (e.on_page) return std::nullopt;
    return EventText{Level::error, fmt::format("rank {} (pid {}): {}{}", e.worker.rank.value(), e.worker.pid, e.state,
                                               e.step ? fmt::format(", step {}", *e.step) : "")};
  }
  Line operator()(const event::TimerExpired& e) const {
    return EventText{Level::warning, fmt::format("watchdog: process {} did not come out of '{}' in time: sent {}",
                                                 e.pid, e.scope, signal_text(e.signal))};
  }
  Line operator()(const event::StateSaved& e) const {
    // It is the verdict's reason, which comes when the others have saved too.
    return EventText{
        Level::debug,
        fmt::format("rank {} has saved its state and asks to be started again (exit code 75)", e.worker.rank.value())};
  }
  Line operator()(const event::ErrorFileRefused& e) const {
    return EventText{Level::error, fmt::format("Failed to parse reply file: {} ({})", e.path, e.reason)};
  }
  Line operator()(const event::Restarting& e) const {
    if (e.kept > 0) {
      const std::string cause =
          e.reason.substr(0, e.reason.rfind("; restart "));  // the coordinator counts in its reason
      return EventText{Level::info, fmt::format("restart {} of {} after {}: {} of {} processes kept", e.restart,
                                                e.restart + e.restarts_left, cause, e.kept, e.workers)};
    }
    return EventText{Level::info,
                     fmt::format("{}: the workers are restarted, {} restarts left", e.reason, e.restarts_left)};
  }
  Line operator()(const event::TemplateReady& e) const {
    return EventText{Level::debug, fmt::format("--preload: process {} has loaded {} in {:.1f} s", e.pid,
                                               fmt::join(e.modules, ", "), e.took_s)};
  }
  Line operator()(const event::TemplateLost& e) const {
    return EventText{Level::warning, fmt::format("--preload: {}; a further attempt gets another one", e.reason)};
  }
  Line operator()(const event::PreloadGivenUp& e) const {
    return EventText{Level::warning,
                     fmt::format("--preload: {}; workers are started without it", e.said.empty() ? e.reason : e.said)};
  }
  Line operator()(const event::Preflight& e) const {
    const Level level = e.in_table             ? Level::debug
                        : e.level == "unfit"   ? Level::error
                        : e.level == "skipped" ? Level::info
                                               : Level::warning;
    return EventText{level, fmt::format("preflight: {}{}", e.level == "unfit" ? "unfit: " : "", e.text)};
  }
  Line operator()(const event::NodeUnfit& e) const {
    return EventText{Level::debug, fmt::format("{}: unfit: {}", e.host, e.reason)};  // Preflight has said so
  }
  Line operator()(const event::FaultInjected& e) const {
    return EventText{Level::warning, fmt::format("rehearsal: {}", e.text)};
  }
  Line operator()(const event::RehearsalEnded& e) const {
    return EventText{e.result.passed ? Level::info : Level::error, e.result.text};
  }
  Line operator()(const event::IncidentRecorded& e) const {
    if (!e.restarted) return std::nullopt;  // the report tells of it
    return EventText{Level::warning,
                     fmt::format("restarted after {}{}", e.summary, e.path.empty() ? "" : "; details: " + e.path)};
  }
  Line operator()(const event::LogWriteFailed& e) const {
    return EventText{Level::error, fmt::format("cannot write {}: {}; {} bytes are lost so far, the job goes on", e.path,
                                               e.reason, e.bytes_lost)};
  }
  Line operator()(const event::ConsoleLost& e) const {
    return EventText{Level::error, fmt::format("{}: {}; {} bytes are not shown so far, the job goes on", e.stream,
                                               e.reason, e.bytes_lost)};
  }
  Line operator()(const event::StoreRefused& e) const {
    return EventText{
        Level::warning,
        fmt::format("the workers' store has refused {}, which is no member of this job: --allow {} lets it in",
                    e.address, e.address)};
  }
  Line operator()(const event::TakenOver& e) const {
    const std::string from =
        e.from.empty() ? "" : fmt::format(" from {}{}", e.from, e.proved ? ", which has ended" : "");
    return EventText{Level::info, fmt::format("this node coordinates the job now (term {}), taken over{} in {:.2f} s",
                                              e.term, from, e.seconds)};
  }
  Line operator()(const event::Warning& e) const { return EventText{Level::warning, with_words(e.text, e.said)}; }
  Line operator()(const event::Fault& e) const { return EventText{Level::error, e.text}; }
  Line operator()(const event::Notice& e) const { return EventText{e.level, with_words(e.text, e.said)}; }

  // For who looks closely.
  Line operator()(const event::RoundCompleted& e) const {
    const Placement& p = e.placement;
    return EventText{
        Level::debug,
        fmt::format("round {} is complete: we are node {} of {}, our ranks begin with {} of {}; master {}:{}",
                    p.round.value(), p.group_rank.value(), p.group_world_size, p.first_rank.value(), p.world_size,
                    p.master_addr, p.master_port.value())};
  }
  Line operator()(const event::AttemptStarted& e) const {
    return EventText{Level::debug,
                     fmt::format("{} begins{}", e.name, e.directory.empty() ? "" : ", its files: " + e.directory)};
  }
  Line operator()(const event::WorkerStarted& e) const {
    return EventText{Level::debug, fmt::format("rank {} runs as process {}", e.worker.rank.value(), e.worker.pid)};
  }
  Line operator()(const event::WorkerKept& e) const {
    return EventText{Level::debug, fmt::format("rank {} is kept: process {}", e.worker.rank.value(), e.worker.pid)};
  }
  Line operator()(const event::Stopping& e) const {
    return EventText{Level::debug, "the workers are stopped: " + e.reason};
  }

  // Told by another event.
  Line operator()(const event::MembershipChanged&) const { return std::nullopt; }
  Line operator()(const event::Progress&) const { return std::nullopt; }
  Line operator()(const event::WorkerHung&) const { return std::nullopt; }
  Line operator()(const event::JobStarted&) const { return std::nullopt; }
  Line operator()(const event::AttemptEnded&) const { return std::nullopt; }
  Line operator()(const event::JobEnded&) const { return std::nullopt; }
};

}  // namespace

std::string_view worker_end_text(WorkerEnd end) {
  switch (end) {
    case WorkerEnd::succeeded:
      return "succeeded";
    case WorkerEnd::failed:
      return "failed";
    case WorkerEnd::terminated:
      return "terminated";
  }
  return "";
}

std::string_view signal_use_text(SignalUse use) {
  switch (use) {
    case SignalUse::ends:
      return "ends";
    case SignalUse::forces:
      return "forces";
    case SignalUse::drains:
      return "drains";
    case SignalUse::forwards:
      return "forwards";
    case SignalUse::pauses:
      return "pauses";
    case SignalUse::resumes:
      return "resumes";
    case SignalUse::ignored:
      return "ignored";
  }
  return "";
}

std::optional<EventText> to_text(const EventBody& event) { return std::visit(Text{}, event); }

bool is_of_whole_job(const EventBody& event) {
  const auto* const waiting = std::get_if<event::Waiting>(&event);
  return (waiting && !waiting->of_link) || std::holds_alternative<event::RoundCompleted>(event) ||
         std::holds_alternative<event::TimeEnds>(event);
}

std::vector<std::string> page_of(const EventBody& event) {
  if (const auto* found = std::get_if<event::HangFound>(&event)) return found->page;
  if (const auto* shown = std::get_if<event::RanksShown>(&event)) return shown->page;
  if (const auto* ended = std::get_if<event::RehearsalEnded>(&event)) return rehearsal_table(ended->result.faults);
  return {};
}

}  // namespace torchup

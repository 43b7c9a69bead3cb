#include "launcher/os/ops/status_line.hpp"

#include <chrono>

#include "launcher/os/io/own_log.hpp"
#include "launcher/os/output/worker_output.hpp"

namespace torchup {

StatusShow::StatusShow(const OutputOptions& options, pid_t launcher, Output& output) : output_{output} {
  const LogOptions log = own_log(options.log);
  if (log.level > LogLevel::info || log.format != LogFormat::text) return;
  output_.show_status(launcher, [this](TimePoint now) { return status_text(facts_, now); });
}

void StatusShow::note(const EventBody& event) {
  apply(facts_, event, std::chrono::steady_clock::now());
  // The shell writes where it stands as soon as we are stopped.
  const auto* const got = std::get_if<event::SignalReceived>(&event);
  if (got != nullptr && got->use == SignalUse::pauses) output_.erase_status();
  if (std::holds_alternative<event::JobEnded>(event)) output_.end_status();
}

}  // namespace torchup

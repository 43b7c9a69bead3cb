#include "launcher/os/agent/slurm_commands.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <utility>
#include <vector>

#include "launcher/core/scheduler/slurm_job.hpp"
#include "launcher/core/text/signals.hpp"
#include "launcher/core/text/text.hpp"
#include "launcher/os/io/helper.hpp"
#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/net/io/background.hpp"

namespace torchup {
namespace {

/// A signal to all processes of our step is none to end this.
constexpr const char* with_status = R"(trap '' TERM; "$0" "$@" 2>&1; echo "exit $?")";
constexpr int tries = 3;
constexpr std::string_view status_mark = "exit ";
/// How long Slurm may say that it is signalling the job, and how often it is asked then.
constexpr Duration signalling_limit = std::chrono::seconds{5};
constexpr int signalling_pause_ms = 100;

/// What it has said, and how it ended: "exit 0". Without the latter such a signal was faster.
Result<std::string> run_slurm(const std::string& program, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"-c", with_status, program});
  const Helper helper{.executable = "/bin/sh",
                      .arguments = std::move(arguments),
                      .limit = slurm_command_limit,
                      .answer_bytes_max = slurm_answer_bytes_max};
  auto answer = ask_helper(helper);
  for (int i = 1; i < tries && answer && answer->rfind(status_mark) == std::string::npos; ++i) {
    answer = ask_helper(helper);
  }
  if (answer || answer.error().code != boost::system::errc::timed_out) return answer;
  return Error{answer.error().code, fmt::format("{} has not answered within 10 s", program)};
}

/// What the command has said, where it succeeds.
Result<std::string> ask_slurm(const std::string& program, std::vector<std::string> arguments) {
  const auto answer = run_slurm(program, std::move(arguments));
  if (!answer) return answer.error();
  const auto at = answer->rfind(status_mark);
  if (at == std::string::npos) return fail(errc::refused, fmt::format("{} was ended from outside", program));
  const std::string_view text = std::string_view{*answer}.substr(0, at);
  if (stripped(std::string_view{*answer}.substr(at + status_mark.size())) == "0") return std::string{text};
  return fail(errc::refused,
              fmt::format("{}: {}", program, printable_start(stripped(text.substr(0, text.find('\n'))))));
}

/// Of the job. While its processes are being signalled, Slurm says only that.
Result<SlurmJobState> ask_state(const RequeueConfig& config) {
  const TimePoint until = std::chrono::steady_clock::now() + signalling_limit;
  while (true) {
    const auto shown = ask_slurm(config.scontrol, {"show", "job", "-o", config.slurm_job});
    if (!shown) return shown.error();
    auto state = read_job_state(*shown);
    if (!state || state->state != "SIGNALING" || std::chrono::steady_clock::now() >= until) return state;
    ::poll(nullptr, 0, signalling_pause_ms);
  }
}

LogLine stays(const std::string& job, const std::string& why) {
  return {LogLevel::warning, fmt::format("job {} does not go back into the queue: {}", job, why)};
}

}  // namespace

Result<std::string> ask_time_left(const std::string& squeue, const std::string& job) {
  return ask_slurm(squeue, {"-h", "-j", job, "-o", "%L"});
}

std::optional<LogLine> requeue(const RequeueConfig& config, int exit_code) {
  const bool saved = exit_code == requeue_code;
  if (!saved && exit_code != shell_code(SIGTERM)) return std::nullopt;
  const std::string& job = config.slurm_job;
  const auto state = ask_state(config);
  if (!state) return stays(job, state.error().message());
  if (const std::string why = why_no_requeue(config, *state, saved); !why.empty()) return stays(job, why);
  const auto done = ask_slurm(config.scontrol, {"requeue", job});
  if (!done) return stays(job, done.error().message());
  return LogLine{LogLevel::info, fmt::format("job {} goes back into the queue, for the {}. time of {}", job,
                                             config.restarts + 1, config.most)};
}

JobTime::JobTime(asio::io_context& loop, const LaunchConfig& config, Hooks hooks)
    : config_{config}, hooks_{std::move(hooks)}, post_{loop} {}

JobTime::~JobTime() { post_.cut(); }

void JobTime::begin() {
  if (!config_.stop_before || !config_.deadline) return;
  const auto day = std::chrono::system_clock::now().time_since_epoch();
  const auto left = std::chrono::duration_cast<Duration>(std::chrono::seconds{*config_.deadline} - day);
  know(std::chrono::steady_clock::now() + std::min(left, duration_max));
}

void JobTime::know(std::optional<TimePoint> end) {
  end_ = end;
  hooks_.tell(EndOfTime{end});
}

Duration JobTime::left() const {
  return end_ ? std::max(Duration{0}, *end_ - std::chrono::steady_clock::now()) : Duration{0};
}

void JobTime::ask() {
  const auto thread = in_background([stop = *config_.stop_before, post = post_, this] {
    auto answer = ask_time_left(stop.squeue, stop.slurm_job);
    post([this, answer = std::move(answer)] { heard(answer); });
  });
  if (!thread.valid()) hooks_.record(event::Warning{"no thread to ask squeue when the time of this job ends"});
}

void JobTime::heard(const Result<std::string>& answer) {
  const auto left = answer ? read_time_left(*answer) : Result<std::optional<Duration>>{answer.error()};
  if (!left) {
    if (!end_) return;  // that was said at the start
    hooks_.record(event::Warning{
        fmt::format("whether the time of this job still ends then is not known: {}", left.error().message())});
    return;
  }
  know(*left ? std::optional{std::chrono::steady_clock::now() + **left} : std::nullopt);
}

}  // namespace torchup

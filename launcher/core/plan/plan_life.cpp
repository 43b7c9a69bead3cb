#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "launcher/core/plan/plan_steps.hpp"
#include "launcher/core/text/python_numbers.hpp"
#include "launcher/core/text/signals.hpp"
#include "launcher/core/text/text.hpp"

namespace torchup {
namespace {

/// Comma list without escapes, entries stripped.
std::vector<std::string> plain_list(std::string_view text) {
  std::vector<std::string> entries;
  for (const std::string_view entry : split(text, ',')) entries.emplace_back(stripped(entry));
  return entries;
}

/// --shutdown-timeout, else the variable; nothing: neither.
Result<std::optional<std::int64_t>> grace_seconds(const PlanSource& source) {
  const auto& [options, words, legacy, machine] = source;
  if (options.has("shutdown-timeout")) {
    const auto given = options.integer("shutdown-timeout", 30);
    if (!given) return given.error();
    if (*given < 0) return bad(fmt::format("shutdown_timeout must be non-negative, got {}", *given));
    return std::optional{*given};
  }
  const auto variable = machine.variable("TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
  if (!variable) return std::optional<std::int64_t>{};
  const auto value = python_int(*variable);
  if (value) return std::optional{std::max<std::int64_t>(0, *value)};
  return bad(fmt::format("TORCH_ELASTIC_SHUTDOWN_TIMEOUT: invalid literal for int() with base 10: '{}'", *variable));
}

/// A time that is 0 where nobody gives one.
Result<Duration> read_seconds(const OptionValues& options, std::string_view name) {
  const auto seconds = options.number(name, 0);
  if (!seconds) return seconds.error();
  if (*seconds < 0) return bad(fmt::format("--{} must be >= 0", name));
  return seconds_of(*seconds);
}

/// `auto`, `off` or `S[,START]`. Errors: what is wrong with it, behind the option and its value.
Result<HangTimeout> parse_hang_timeout(std::string_view text) {
  using Mode = HangTimeout::Mode;
  if (text == "auto") return HangTimeout{};
  if (text == "off") return HangTimeout{.mode = Mode::off};
  const auto comma = text.find(',');
  const auto silence = python_float(text.substr(0, comma));
  const auto start = comma == std::string_view::npos ? silence : python_float(text.substr(comma + 1));
  if (!silence || !start) return bad("is not auto, off or S[,START] in seconds, for instance 120 or 120,900");
  HangTimeout timeout{.mode = Mode::given, .silence = seconds_of(*silence)};
  if (comma != std::string_view::npos) timeout.start = seconds_of(*start);
  if (timeout.silence >= hang_timeout_min && seconds_of(*start) >= hang_timeout_min) return timeout;
  return bad("is too short: at least 0.1 s, or off");
}

Result<> read_end_signals(const OptionValues& options, LaunchConfig& plan) {
  plan.signals_to_handle = options.text("signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
  plan.end_signals_listed = options.has("signals-to-handle");
  for (const std::string& name : plain_list(plan.signals_to_handle)) {
    const auto number = name.starts_with("SIG") ? signal_number(name) : std::nullopt;
    if (number && (*number == SIGKILL || *number == SIGSTOP)) {
      return bad(fmt::format("--signals-to-handle: {} cannot be caught", name));
    }
    if (number && is_for_users(*number)) {
      plan.end_signals.push_back(*number);
    } else {
      warn(plan, fmt::format("Failed to register signal handler for {}", name));
    }
  }
  return {};
}

/// `why_not`: what is said of a name that cannot stand there.
Result<std::vector<int>> read_signal_list(const OptionValues& options, std::string_view option,
                                          std::string_view otherwise, std::string_view why_not) {
  std::vector<int> numbers;
  for (const std::string& name : plain_list(options.text(option, otherwise))) {
    if (name.empty()) continue;
    const auto number = signal_number(name);
    if (!number || !is_for_users(*number)) return bad(fmt::format("--{}: {} {}", option, name, why_not));
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace

Result<> plan_stop(const PlanSource& source, LaunchConfig& plan) {
  const auto& [options, words, legacy, machine] = source;
  const auto grace = grace_seconds(source);
  if (!grace) return grace.error();
  if (*grace) plan.stop_grace = seconds_of(static_cast<double>(**grace));
  const auto timeout = read_seconds(options, "timeout");
  if (!timeout) return timeout.error();
  plan.timeout = *timeout;
  const auto stuck = python_float(machine.variable("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT").value_or("0"));
  if (stuck && *stuck > 0) plan.stuck_timeout = seconds_of(*stuck);
  const auto interval = options.number("monitor-interval", 0.1);
  if (!interval) return interval.error();
  if (*interval <= 0) return bad("--monitor-interval must be > 0");
  plan.propagate_exit_code = options.flag("propagate-exit-code");
  return {};
}

Result<> plan_hangs(const PlanSource& source, LaunchConfig& plan) {
  const OptionValues& options = source.options;
  const auto heartbeat = read_seconds(options, "heartbeat-timeout");
  if (!heartbeat) return heartbeat.error();
  JobTerms& terms = plan.terms;
  if (*heartbeat > Duration{0}) {
    // The newer options say more, and where one is given it wins.
    if (*heartbeat < hang_timeout_min) return bad("--heartbeat-timeout must be 0 or at least 0.1 s");
    terms.hang_timeout = {HangTimeout::Mode::given, *heartbeat};
    terms.on_hang = OnHang::restart;
  }
  if (options.has("hang-timeout")) {
    const std::string text = options.text("hang-timeout");
    const auto timeout = parse_hang_timeout(text);
    if (!timeout) return bad(fmt::format("--hang-timeout={} {}", text, timeout.error().context));
    terms.hang_timeout = *timeout;
  }
  if (options.has("on-hang")) {
    const std::string action = options.text("on-hang");
    terms.on_hang = action == "abort" ? OnHang::abort : action == "restart" ? OnHang::restart : OnHang::report;
  }
  if (!options.has("straggler-window")) return {};
  const auto window = read_seconds(options, "straggler-window");
  if (!window) return window.error();
  if (*window > Duration{0} && *window < straggler_window_min)
    return bad("--straggler-window must be 0 or at least 1 s");
  terms.straggler_window = *window;
  return {};
}

Result<> plan_signals(const PlanSource& source, LaunchConfig& plan) {
  if (auto read = read_end_signals(source.options, plan); !read) return read;
  auto forwarded = read_signal_list(source.options, "forward-signals", "USR1,USR2",
                                    "is no signal that can be passed on; USR1, USR2, ALRM can");
  if (!forwarded) return forwarded.error();
  plan.forward_signals = *std::move(forwarded);
  auto draining =
      read_signal_list(source.options, "drain-signals", "", "is no signal that can ask for this; TERM, USR1, USR2 can");
  if (!draining) return draining.error();
  plan.drain_signals = *std::move(draining);
  return {};
}

Result<> plan_restarts(const PlanSource& source, LaunchConfig& plan) {
  const OptionValues& options = source.options;
  const auto window = read_seconds(options, "restart-window");
  if (!window) return window.error();
  plan.terms.restart_window = *window;
  if (!options.has("restart-backoff")) return {};
  const std::string text = options.text("restart-backoff");
  const auto dots = text.find("..");
  const auto least = python_float(text.substr(0, dots));
  const auto most = dots == std::string::npos ? least : python_float(text.substr(dots + 2));
  if (!least || !most || *least < 0 || *most < *least) {
    return bad(fmt::format("--restart-backoff={} is not MIN..MAX in seconds, for instance 0.5..30", text));
  }
  plan.restart_backoff = {seconds_of(*least), seconds_of(*most)};
  return {};
}

}  // namespace torchup

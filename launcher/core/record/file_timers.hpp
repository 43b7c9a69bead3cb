#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/base/result.hpp"

namespace torchup {

/// One line of a worker in the watchdog's pipe: "end me with `signal` unless I speak of this scope again in time".
struct TimerRequest {
  std::int64_t pid = 0;
  std::string scope;     ///< a name of the worker's choice
  double expires_s = 0;  ///< seconds since 1970, by this machine's clock; negative: let go of the timer
  int signal = 0;        ///< 0: only to be told
  friend bool operator==(const TimerRequest&, const TimerRequest&) = default;
};

/// Longest line that is one write to a pipe: longer ones can be torn, so nobody sends them.
inline constexpr std::size_t timer_line_bytes_max = 4096;
/// Timers that are kept; a worker that asks for more is told nothing and gets none.
inline constexpr std::size_t timers_max = 65'536;

/// Reads `{"version": 1, "pid": …, "scope_id": …, "expiration_time": …, "signal": …}`.
///
/// Errors: errc::bad_value when it is not that, or the signal is none; errc::limit_exceeded when it is too long.
/// Source: torch/distributed/elastic/timer/file_based_local_timer.py.
[[nodiscard]] Result<TimerRequest> parse_timer_request(std::string_view line);

/// The timers of all local workers. Pure; times are seconds since 1970, because the workers' are.
class FileTimers {
 public:
  /// Sets, replaces or lets go of the timer of (pid, scope). Errors: errc::limit_exceeded at timers_max.
  Result<> apply(const TimerRequest& request);

  /// A process whose time is up, by its earliest expired timer that has a signal; signal 0 when none has.
  struct Expired {
    std::int64_t pid = 0;
    std::string scope;
    int signal = 0;
    double late_s = 0;
    friend bool operator==(const Expired&, const Expired&) = default;
  };
  /// Takes out what is due at `now_s`, one entry a process, and with it all other timers of that process.
  [[nodiscard]] std::vector<Expired> due(double now_s);

  void forget(std::int64_t pid);
  void clear() { timers_.clear(); }
  /// When to ask `due` again; nothing when there is no timer.
  [[nodiscard]] std::optional<double> next_s() const;

 private:
  struct Timer {
    double expires_s;
    int signal;
  };
  std::map<std::pair<std::int64_t, std::string>, Timer> timers_;
};

}  // namespace torchup

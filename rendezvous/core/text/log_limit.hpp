#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/text/log_line.hpp"

namespace torchup {

/// How much a log may grow, whatever happens. Counted in windows that begin with the first line of a message.
struct LogLimits {
  Duration window = std::chrono::seconds{60};
  std::size_t lines_max = 10;              ///< of one message in a window; one source gets one of them
  std::size_t job_lines_max = 1'000;       ///< the same of a message about a job: a large one has as many nodes
  std::size_t messages_max = 4'096;        ///< that are told apart; the others share one count
  std::size_t all_lines_max = 20'000;      ///< of everything together
  std::size_t line_bytes_max = 64 * 1024;  ///< of one line; who writes it cuts what is longer
};

/// Decides which lines are written. A flood of one message becomes its first lines and, when its window ends, a line
/// that counts the others. Pure.
class LogLimit {
 public:
  explicit LogLimit(LogLimits limits) : limits_{limits} {}

  /// What is to be written now: counts that are due, then the line itself if it may be.
  std::vector<LogLine> step(LogLine line, TimePoint now);
  /// Counts that are due.
  std::vector<LogLine> due(TimePoint now);
  /// All counts, whether due or not: nothing more will be said.
  std::vector<LogLine> rest(TimePoint now);
  /// When to ask for what is due if nothing else happens.
  [[nodiscard]] std::optional<TimePoint> deadline() const;

 private:
  /// One message's open window.
  struct Message {
    TimePoint begun{};
    std::size_t told = 0;
    std::size_t kept_back = 0;
    LogLine last = {};                   ///< of those kept back
    std::set<std::string> sources = {};  ///< that had their line
  };

  Message& message_of(const LogLine& line, TimePoint now);
  std::vector<LogLine> close_windows(TimePoint begun_until, TimePoint now);

  LogLimits limits_;
  std::map<std::string, Message> messages_;
  std::deque<std::pair<TimePoint, std::string>> windows_;  ///< when they began and of which message, oldest first
};

}  // namespace torchup

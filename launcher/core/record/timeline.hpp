#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/record/time_event.hpp"
#include "rendezvous/base/result.hpp"

namespace torchup {

/// A job's events as a trace that Perfetto and Chrome show (the Trace Event Format): nodes are processes, with a thread
/// "job" and one for each rank. Slices are attempts and waiting, of ranks start-up, running and stopping; instants are
/// failures, hangs, restarts, orders, signals and the end; a counter shows the steps a second.
///
/// Events of several nodes, in whatever order of files, are brought on one clock by what lies most often between a
/// node's clock of the day and its monotonic one: the median. A fold; memory as much as the events.
class Timeline {
 public:
  /// A line of an event file, and what it says. Errors: as read_time_event's; the line is passed over then.
  Result<> add(std::string_view line, const nlohmann::json& event);
  /// JSON. What has not ended ends with the last event of its node.
  [[nodiscard]] std::string text() const;

 private:
  /// Of a thread: 0 is the job's, others are ranks + 1.
  struct Mark {
    enum class Kind { slice, instant, counter };
    Kind kind = Kind::slice;
    std::int64_t thread = 0;
    std::int64_t begin_us = 0, end_us = 0;
    std::string name;
    std::string detail = {};  ///< of an instant
    double value = 0;         ///< of a counter
  };
  struct Node {
    std::vector<std::int64_t> offsets;  ///< clock of the day less the monotonic one, one for each event
    std::vector<Mark> marks;
    std::map<std::int64_t, std::int64_t> started;  ///< living ranks, and since when
    std::set<std::int64_t> ranks;                  ///< that have ever lived
    std::optional<std::int64_t> waits, completed, stopping;
    std::string attempt;
    std::int64_t first_rank = 0;
    std::int64_t last_us = 0;
  };
  struct Apply;
  static void end_attempt(Node& node, std::int64_t at);
  static void add_instant(Node& node, const nlohmann::json& event, std::int64_t at);
  static void put(std::string& out, std::int64_t process, const Mark& mark, std::int64_t shift);

  std::map<std::string, Node> nodes_;  ///< by host
};

}  // namespace torchup

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/text/json.hpp"

namespace torchup {

/// So many of the newest events stand in a report; the others are counted.
inline constexpr std::size_t reported_events_max = 10'000;
inline constexpr std::size_t reported_incidents_max = 16;

/// From the events of a job's nodes, in the order of their times, to what its page shows: the snapshot as it was at the
/// end, and the events. Whatever stood in the files. Pure.
class ReportData {
 public:
  /// An event of a node; nodes are told apart by `node`, for several may be on one host.
  void add(const std::string& node, const json& event);

  /// Where the files of the incidents that are shown are; nothing for those that have none.
  [[nodiscard]] std::vector<std::string> incident_paths() const;
  /// What such a file says becomes part of its incident.
  void add_incident_file(const std::string& path, const json& incident);

  /// What report_text takes. `ledger` is JSON.
  [[nodiscard]] std::string data(const std::string& ledger) const;

 private:
  struct Node {
    std::string host;
    std::string state = "ready";
    std::optional<std::int64_t> group_rank, first_rank, step;
    std::string ranks;  ///< a letter each
    std::optional<std::int64_t> round;
    std::optional<std::int64_t> step_min, step_max;  ///< of its ranks, as it has told last
    std::optional<double> per_second;
    std::int64_t changes = 0;  ///< of the membership, of which all nodes tell
  };
  void note_node(Node& node, const std::string& kind, const json& event);
  void note_worker(Node& node, const std::string& kind, const json& event);
  void note_of_job(const std::string& kind, const json& event);
  [[nodiscard]] json steps() const;
  [[nodiscard]] json snapshot(const std::string& ledger) const;

  std::map<std::string, Node> nodes_;
  json job_ = json::object();  ///< members of the snapshot that events tell
  std::deque<json> events_;
  std::deque<json> incidents_;
  std::uint64_t seq_ = 0;
};

}  // namespace torchup

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/operations_messages.hpp"

/// How often agents tell those who look at a job what they would like to know.
namespace torchup {

/// When a node's report goes with a keep-alive. Pure.
class ReportPacing {
 public:
  static constexpr Duration pace = std::chrono::seconds{1};
  /// In jobs of more nodes than `many_nodes`, unless a rank's letter has changed.
  static constexpr Duration pace_of_many = std::chrono::seconds{10};
  static constexpr int many_nodes = 1000;

  /// The newest one counts.
  void set(NodeReport report) { report_ = std::move(report); }
  /// Who listens now has heard none.
  void begin_anew() { told_letters_.reset(); }
  /// The report, if it is due in a job of so many nodes.
  [[nodiscard]] std::optional<NodeReport> take(int nodes, TimePoint now);

 private:
  std::optional<NodeReport> report_;
  std::optional<TimePoint> told_at_;
  std::optional<std::string> told_letters_;
};

/// How many events of one agent are told: `per_second`, and `burst` at once after some quiet. Pure.
class EventAllowance {
 public:
  static constexpr int per_second = 10;
  static constexpr int burst = 50;

  /// The message for that event; nothing: it is lost, which is counted.
  [[nodiscard]] std::optional<NodeEvent> admit(std::string line, TimePoint now);
  /// One is lost for another reason.
  void lose() { ++lost_; }

 private:
  static constexpr Duration each = std::chrono::milliseconds{1000 / per_second};
  std::optional<TimePoint> empty_at_;  ///< when the allowance would have been used up, if it had been used evenly
  std::uint64_t lost_ = 0;
};

/// What may wait for a peer that is slower to read than it is answered: far less than that for which it is dropped
/// (net/io/frame_socket), for the job's own words come by the same connection.
inline constexpr std::size_t answers_unsent_bytes_max = std::size_t{512} << 10;
/// An answer that would bring what waits above that, of which there is `unsent` already, becomes a short 503.
void keep_room(Answer& answer, std::size_t unsent);

}  // namespace torchup

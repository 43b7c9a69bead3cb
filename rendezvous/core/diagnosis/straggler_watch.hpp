#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/diagnosis/lateness_nodes.hpp"

namespace torchup {

inline constexpr int straggler_windows_found = 3;  ///< in a row with it
inline constexpr int straggler_windows_over = 3;   ///< in a row without it

/// A rank, or a node, for which the others wait at collectives, window after window. The values of the event
/// straggler_found.
struct StragglerFound {
  std::optional<Rank> rank = {};  ///< nothing: the node as a whole
  std::string host = {};
  int share_percent = 0;  ///< late_ms of step_ms
  double late_ms = 0;
  double step_ms = 0;
  int last_percent = 0;
  std::string operation = {};  ///< plain: "all_reduce"
  std::size_t count = 0;       ///< of the collectives compared
  std::int64_t bytes = -1;     ///< of each; -1: not known
  bool cpu_side = false;       ///< the device may be later still
  friend bool operator==(const StragglerFound&, const StragglerFound&) = default;
};
struct StragglerOver {
  std::optional<Rank> rank = {};
  std::string host = {};
  friend bool operator==(const StragglerOver&, const StragglerOver&) = default;
};
using StragglerNews = std::variant<StragglerOver, StragglerFound>;

/// "rank 3 (nodeb) is late: last in 92 % of 256 all_reduce (4.0 MiB), by 31 ms of a 142 ms step; the others wait for
/// it".
[[nodiscard]] std::string to_text(const StragglerFound& found);
[[nodiscard]] std::string to_text(const StragglerOver& over);

/// Over the windows of one attempt: who is the straggler of straggler_windows_found in a row is told, once, until
/// straggler_windows_over in a row are without it. A window in which nothing was compared counts for neither. Pure.
class StragglerWatch {
 public:
  std::vector<StragglerNews> window(const WindowFindings& findings);

 private:
  struct Member {
    NodeId node{""};
    std::optional<Rank> rank = {};
    std::string host = {};
  };
  [[nodiscard]] static bool same(const std::optional<Member>& known, const std::optional<LateMember>& seen);

  std::optional<Member> candidate_;
  int windows_with_ = 0;
  std::optional<Member> told_;
  int windows_without_ = 0;
};

}  // namespace torchup

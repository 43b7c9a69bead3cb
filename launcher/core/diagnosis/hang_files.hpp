#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launcher/core/diagnosis/hang_page.hpp"
#include "launcher/core/diagnosis/native_text.hpp"
#include "launcher/core/diagnosis/python_stack.hpp"
#include "launcher/core/record/launch_event.hpp"

/// What a node writes of a hang into the attempt's directory, beside what everybody is told.
namespace torchup {

/// Version of the JSON below; grows when a field changes its meaning or goes.
inline constexpr int hang_schema = 1;
/// Ranks of which the JSON tells, and culprits that it names.
inline constexpr std::size_t hang_ranks_max = 1024;

/// All threads of one of this node's ranks.
struct RankStacks {
  Rank rank{0};
  PythonStack python = {};
  bool helper_wrote = false;  ///< as main_thread's
  std::vector<NativeThread> native = {};
  friend bool operator==(const RankStacks&, const RankStacks&) = default;
};

/// For somebody who asks what this node's ranks do now: of each its state, its step, for how long it has been `quiet`,
/// and all threads that are known of. All three have the same length.
[[nodiscard]] std::string stacks_text(std::span<const RankLook> looks, std::span<const RankStacks> stacks,
                                      std::span<const Duration> quiet);

/// `hang_<n>.txt`: the page, then all threads of this node's ranks with the whole paths of their files.
[[nodiscard]] std::string hang_text(const HangReport& told, std::span<const RankStacks> stacks);

/// `hang_<n>.json`: `schema`, `number`, `kind`, `summary`, `culprits`, `silent_s`, `collective`, `action`, `ranks`.
/// `own`: those ranks alone, as in the page.
[[nodiscard]] std::string hang_json(const HangReport& told, const std::optional<RankSet>& own = std::nullopt);

/// The same as an event, with the page for people: HangFound, or RanksShown where somebody has asked. `own` and `file`
/// as in the page.
[[nodiscard]] EventBody hang_event(const HangReport& told, const std::optional<RankSet>& own, const std::string& file);

}  // namespace torchup

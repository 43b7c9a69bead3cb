#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/scheduler/allocation.hpp"

namespace torchup::scheduler {

/// Of a list of hosts that is a file of the scheduler's own, with a line for each slot.
inline constexpr std::size_t node_file_bytes_max = std::size_t{16} << 20;
inline constexpr std::size_t node_file_hosts_max = 1 << 16;

/// The error of a variable: its name, its value, what is wrong with it, and the way around it.
[[nodiscard]] Error wrong(std::string_view name, std::string_view value, std::string_view why);

/// The variables that schedulers set, read with the errors that they may have. An empty one counts as none.
class ToldWords {
 public:
  explicit ToldWords(const SchedulerFacts& facts) : facts_{facts} {}

  [[nodiscard]] bool has(std::string_view name) const { return text(name).has_value(); }
  [[nodiscard]] std::optional<std::string> text(std::string_view name) const;
  /// As the variable is, empty or not.
  [[nodiscard]] std::optional<std::string> raw(std::string_view name) const { return facts_.variable(name); }

  /// Errors: errc::bad_value for anything but decimal digits of a number from `least` to `most`.
  [[nodiscard]] Result<std::optional<std::int64_t>> number(std::string_view name, std::int64_t least,
                                                           std::int64_t most) const;
  /// Of a variable that is there, for instance because its row applies.
  [[nodiscard]] Result<int> needed(std::string_view name, int least, int most) const;
  /// A list as Slurm writes it, which names no host twice.
  [[nodiscard]] Result<std::vector<std::string>> hosts(std::string_view name) const;
  /// The first words of the lines of the file that the variable names, each host once, in their order.
  [[nodiscard]] Result<std::vector<std::string>> hosts_of_file(std::string_view name) const;
  /// A port; nothing where the variable is not there.
  [[nodiscard]] Result<std::optional<Told<Port>>> port(std::string_view name) const;

  [[nodiscard]] const std::string& host() const { return facts_.host; }
  [[nodiscard]] const SchedulerFacts& facts() const { return facts_; }

 private:
  const SchedulerFacts& facts_;
};

/// `hosts` with each name once. Errors: a text, where one cannot be a host's (it would be an option of the remote shell
/// that is given it, or several names in a list) or there are too many; else nothing.
[[nodiscard]] std::optional<std::string> keep_first_of_each(std::vector<std::string>& hosts);

}  // namespace torchup::scheduler

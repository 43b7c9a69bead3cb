#include "rendezvous/base/slurm_counts.hpp"

#include <charconv>
#include <string>

namespace torchup {
namespace {

/// Takes a number from 1 on off the front of `text`.
std::optional<int> take_number(std::string_view& text) {
  int value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc{} || value < 1) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

bool take(std::string_view& text, std::string_view start) {
  if (!text.starts_with(start)) return false;
  text.remove_prefix(start.size());
  return true;
}

std::optional<SlurmCount> take_count(std::string_view& text) {
  const auto tasks = take_number(text);
  if (!tasks) return std::nullopt;
  if (!take(text, "(x")) return SlurmCount{*tasks, 1};
  const auto nodes = take_number(text);
  if (!nodes || !take(text, ")")) return std::nullopt;
  return SlurmCount{*tasks, *nodes};
}

}  // namespace

Result<std::vector<SlurmCount>> read_slurm_counts(std::string_view text) {
  std::vector<SlurmCount> counts;
  int nodes = 0;
  do {
    const auto count = take_count(text);
    if (!count) return fail(errc::bad_value, "is not a list of counts like 8(x2),4");
    if (count->nodes > slurm_count_nodes_max - nodes || count->tasks > slurm_count_tasks_max) {
      return fail(errc::limit_exceeded, "has more nodes or tasks than any job");
    }
    nodes += count->nodes;
    counts.push_back(*count);
  } while (take(text, ","));
  if (!text.empty()) return fail(errc::bad_value, "is not a list of counts like 8(x2),4");
  return counts;
}

std::optional<int> tasks_of_node(std::span<const SlurmCount> counts, int node) {
  for (const SlurmCount& count : counts) {
    if (node < count.nodes) return count.tasks;
    node -= count.nodes;
  }
  return std::nullopt;
}

}  // namespace torchup

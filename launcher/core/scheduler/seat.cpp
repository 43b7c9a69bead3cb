#include "launcher/core/scheduler/seat.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "launcher/core/scheduler/visible_count.hpp"
#include "launcher/core/text/text.hpp"

namespace torchup {
namespace {

/// The cards by their tasks. Errors: as seat_workers.
Result<std::vector<const SeatCard*>> in_order(std::span<const SeatCard> cards, int tasks) {
  std::vector<const SeatCard*> ordered(static_cast<std::size_t>(tasks), nullptr);
  for (const SeatCard& card : cards) {
    if (card.task < 0 || card.task >= tasks) {
      return fail(errc::bad_value, fmt::format("task {} is not one of this node's {}", card.task, tasks));
    }
    const SeatCard*& place = ordered[static_cast<std::size_t>(card.task)];
    if (place) return fail(errc::bad_value, fmt::format("two processes say that they are task {}", card.task));
    place = &card;
  }
  const auto missing = std::ranges::find(ordered, nullptr);
  if (missing == ordered.end()) return ordered;
  return fail(errc::bad_value, fmt::format("task {} of {} is missing", missing - ordered.begin(), tasks));
}

/// What the lists name, each once; nothing where no task has a list.
std::optional<std::vector<std::string>> all_devices(std::span<const SeatCard* const> cards) {
  std::optional<std::vector<std::string>> devices;
  for (const SeatCard* const card : cards) {
    if (!card->devices) continue;
    if (!devices) devices.emplace();
    const auto names = split(*card->devices, ',');
    const auto count = static_cast<std::size_t>(visible_count(*card->devices));
    for (std::size_t i = 0; i < count; ++i) {
      std::string name{stripped(names[i])};
      if (std::ranges::find(*devices, name) == devices->end()) devices->push_back(std::move(name));
    }
  }
  return devices;
}

}  // namespace

Result<SeatedWorkers> seat_workers(std::span<const SeatCard> cards, int tasks, int workers, std::optional<int> gpus) {
  const auto ordered = in_order(cards, tasks);
  if (!ordered) return ordered.error();
  SeatedWorkers seated;
  const auto devices = all_devices(*ordered);
  if (devices && gpus && devices->size() < static_cast<std::size_t>(*gpus)) {
    return fail(errc::refused, "Slurm bound this node's GPUs to single tasks: --ntasks-per-node=1, or --gpu-bind=none");
  }
  if (devices) seated.devices = fmt::format("{}", fmt::join(*devices, ","));
  if (workers == tasks) {
    for (const SeatCard* const card : *ordered) seated.cpus.push_back(card->cpus);
    return seated;
  }
  CpuSet all;
  for (const SeatCard* const card : *ordered) all.insert(card->cpus.begin(), card->cpus.end());
  seated.cpus.assign(static_cast<std::size_t>(workers), all);
  return seated;
}

}  // namespace torchup

#include "rendezvous/base/worker_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "rendezvous/base/colon_numbers.hpp"

namespace torchup {

namespace {

static_assert(std::endian::native == std::endian::little);

template <class T>
T at(std::span<const std::byte> page, std::size_t offset) {
  T value;
  std::memcpy(&value, page.data() + offset, sizeof value);
  return value;
}

namespace wp = worker_page;

bool is_open(std::span<const std::byte> page) {
  return page.size() >= worker_page_bytes && at<std::uint64_t>(page, wp::magic) == wp::magic_value;
}

bool is_pythons(std::span<const std::byte> page) { return at<std::uint64_t>(page, wp::python) != 0; }
bool hears_drain(std::span<const std::byte> page) { return at<std::uint64_t>(page, wp::hears_drain) != 0; }

constexpr std::int64_t signal_max = 64;
constexpr std::int64_t pid_max = std::numeric_limits<std::int32_t>::max();

std::int64_t number_at(std::span<const std::byte> page, std::size_t offset, std::int64_t most) {
  const auto value = at<std::int64_t>(page, offset);
  return value > 0 && value <= most ? value : 0;
}

std::int64_t time_at(std::span<const std::byte> page, std::size_t offset) {
  return number_at(page, offset, std::numeric_limits<std::int64_t>::max());
}

}  // namespace

bool is_worker_page_open(std::span<const std::byte> page, std::int64_t pid) {
  if (!is_open(page)) return false;
  return hears_drain(page) || (at<std::int64_t>(page, wp::pid) == pid && !is_pythons(page));
}

std::optional<HookPage> read_hook_page(std::span<const std::byte> page) {
  if (!is_open(page)) return std::nullopt;
  HookPage hook;
  hook.process = number_at(page, wp::pid, pid_max);
  hook.helper = number_at(page, wp::helper, pid_max);
  hook.ending_at_ns = time_at(page, wp::ending_at);
  const bool is_set_up = is_pythons(page) || hook.helper != 0 || hook.ending_at_ns != 0;
  if (hook.process == 0 || !is_set_up) return std::nullopt;
  hook.signal = static_cast<int>(number_at(page, wp::signal, signal_max));
  hook.raised_at_ns = time_at(page, wp::raised_at);
  hook.collectives = at<std::uint64_t>(page, wp::collectives);
  hook.collectives_at_ns = time_at(page, wp::collectives_at);
  hook.python = at<std::uint64_t>(page, wp::python);
  hook.thread_raised_at_ns = time_at(page, wp::thread_raised_at);
  const auto text = page.subspan(wp::thread_raised, wp::thread_raised_bytes);
  const auto end = std::ranges::find(text, std::byte{0});
  hook.thread_raised.assign(reinterpret_cast<const char*>(text.data()), static_cast<std::size_t>(end - text.begin()));
  hook.recorded = at<std::uint64_t>(page, wp::recorded) != 0;
  return hook;
}

std::optional<WorkerProgress> read_worker_page(std::span<const std::byte> page, std::int64_t pid) {
  if (!is_open(page) || (at<std::int64_t>(page, wp::pid) != pid && !is_pythons(page))) return std::nullopt;
  // The slot that `newest` names is whole. Should the worker have gone on by two beats while the page was copied, its
  // number tells, and the other slot holds the beat before or after.
  const auto newest = at<std::uint64_t>(page, wp::newest);
  for (const std::uint64_t beat : {newest, newest + 1, newest - 1}) {
    const auto slot = page.subspan(wp::beats + (beat % 2) * wp::beat_bytes, wp::beat_bytes);
    if (newest == 0 || beat == 0 || at<std::uint64_t>(slot, wp::beat_number) != beat) continue;
    return WorkerProgress{.beats = beat,
                          .step = at<std::int64_t>(slot, wp::beat_step),
                          .ended_ns = at<std::int64_t>(slot, wp::beat_time),
                          .took_ns = at<std::int64_t>(slot, wp::beat_took),
                          .waited_ns = at<std::int64_t>(slot, wp::beat_waited),
                          .waiting_since_ns = at<std::int64_t>(page, wp::waiting_since),
                          .saving_since_ns = at<std::int64_t>(page, wp::saving_since),
                          .first_step = at<std::int64_t>(page, wp::first_step),
                          .first_ns = time_at(page, wp::first_time),
                          .total_waited_ns = time_at(page, wp::total_waited)};
  }
  return std::nullopt;
}

std::string to_text(const WorkerPageAddress& address) {
  return fmt::format("{}:{}:{}:{}", address.fd, address.device, address.inode, address.pid);
}

Result<WorkerPageAddress> parse_worker_page_address(std::string_view text) {
  WorkerPageAddress address;
  if (read_colon_numbers(text, address.fd, address.device, address.inode, address.pid) && address.fd >= 0 &&
      address.pid > 0) {
    return address;
  }
  return fail(errc::bad_value, fmt::format("{}={} is not descriptor:device:inode:pid", worker_page_variable, text));
}

}  // namespace torchup

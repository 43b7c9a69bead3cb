#include "rendezvous/base/worker_page.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>

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

}  // namespace

bool is_worker_page_open(std::span<const std::byte> page, std::int64_t pid) {
  namespace wp = worker_page;
  return page.size() >= worker_page_bytes && at<std::uint64_t>(page, wp::magic) == wp::magic_value &&
         at<std::int64_t>(page, wp::pid) == pid;
}

std::optional<WorkerProgress> read_worker_page(std::span<const std::byte> page, std::int64_t pid) {
  namespace wp = worker_page;
  if (!is_worker_page_open(page, pid)) return std::nullopt;
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
                          .saving_since_ns = at<std::int64_t>(page, wp::saving_since)};
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
  return fail(errc::bad_value,
              std::string{worker_page_variable} + "=" + std::string{text} + " is not descriptor:device:inode:pid");
}

}  // namespace torchup

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "rendezvous/base/result.hpp"

namespace torchup {

/// The page of memory that a worker shares with its agent: heartbeat, step time, waiting; the other way a request to
/// drain.
///
/// The agent makes it (a memfd of exactly this size, sealed against shrinking, growing and further seals), hands it
/// down as a descriptor and names it in TORCHUP_WORKER_PAGE. The worker writes without a system call; what it wrote
/// stays readable after its death. To the agent the content is what a stranger says: it copies the page (pread) and
/// checks what it reads.
///
/// Numbers are little endian and lie at the offsets below; times are CLOCK_MONOTONIC in nanoseconds.
inline constexpr std::size_t worker_page_bytes = 4096;
inline constexpr const char* worker_page_variable = "TORCHUP_WORKER_PAGE";

namespace worker_page {
inline constexpr std::uint64_t magic_value = 0x3147'4150'5055'54;  // "TUPPAG1"
inline constexpr std::size_t magic = 0;    ///< u64, written by the worker when it has opened the page
inline constexpr std::size_t pid = 8;      ///< u64, the worker's
inline constexpr std::size_t newest = 16;  ///< u64, beats so far; the newest lies in slot newest % 2
inline constexpr std::size_t waiting_since =
    24;  ///< i64, since when the worker waits for others in a collective; 0: it does not
inline constexpr std::size_t saving_since = 56;  ///< i64, since when the worker saves its state; 0: it does not
inline constexpr std::size_t beats = 64;         ///< two slots of five numbers, so that one is whole at any instant
inline constexpr std::size_t beat_bytes = 64;
// In a slot:
inline constexpr std::size_t beat_number =
    0;  ///< u64, written last; a slot whose number is not the expected one is being written
inline constexpr std::size_t beat_step = 8;     ///< i64
inline constexpr std::size_t beat_time = 16;    ///< i64, when the step ended
inline constexpr std::size_t beat_took = 24;    ///< i64, time since the beat before
inline constexpr std::size_t beat_waited = 32;  ///< i64, of it spent waiting for others in collectives
// Written by the agent:
inline constexpr std::size_t drain = 2048;  ///< u64, not 0: stop after the step on which all ranks agree
}  // namespace worker_page

/// What an agent learns from a worker's page.
struct WorkerProgress {
  std::uint64_t beats = 0;            ///< ends of steps since the worker began
  std::int64_t step = 0;              ///< the program's own number of the last one
  std::int64_t ended_ns = 0;          ///< when it ended
  std::int64_t took_ns = 0;           ///< from the end of the one before; 0 for the first
  std::int64_t waited_ns = 0;         ///< of it waiting for other ranks: took - waited is this rank's own work
  std::int64_t waiting_since_ns = 0;  ///< 0: the worker does not wait for others now
  std::int64_t saving_since_ns = 0;   ///< 0: it does not save its state now

  friend bool operator==(const WorkerProgress&, const WorkerProgress&) = default;
};

/// Reads a copy of a page. Nothing when no worker with this pid has opened it, or none has ended a step.
[[nodiscard]] std::optional<WorkerProgress> read_worker_page(std::span<const std::byte> page, std::int64_t pid);

/// Whether the worker with this pid has opened the page, of which this is a copy: then it hears a request to drain.
[[nodiscard]] bool is_worker_page_open(std::span<const std::byte> page, std::int64_t pid);

/// Value of TORCHUP_WORKER_PAGE: which descriptor, and by what the worker knows that it is still the page and meant for
/// it (a script between agent and worker may have closed and reused it, or have started several programs).
struct WorkerPageAddress {
  int fd = -1;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t pid = 0;

  friend bool operator==(const WorkerPageAddress&, const WorkerPageAddress&) = default;
};
[[nodiscard]] std::string to_text(const WorkerPageAddress& address);
/// Errors: errc::bad_value.
[[nodiscard]] Result<WorkerPageAddress> parse_worker_page_address(std::string_view text);

}  // namespace torchup

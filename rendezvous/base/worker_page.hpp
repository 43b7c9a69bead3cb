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

/// The memory that a worker shares with its agent: a page (heartbeat, step time, waiting, what the hook in a Python
/// worker tells; the other way a request to drain), then a sheet for Python's stacks, then an area for answers to
/// `look` (worker_channel.hpp).
///
/// The agent makes it (a memfd of exactly this size, sealed against shrinking, growing and further seals), hands it
/// down as a descriptor and names it in TORCHUP_WORKER_PAGE. Workers map it, and write the page without a system
/// call; what they wrote stays readable after their death. The sheet is written by write(2) at the file's offset, which
/// agent and worker share: the agent sets it to the sheet's beginning before the worker is born, and again before each
/// question, when it has wiped the sheet. To the agent the content is what a stranger says: it copies (pread) and
/// checks what it reads.
///
/// Numbers are little endian and lie at the offsets below; times are CLOCK_MONOTONIC in nanoseconds.
inline constexpr std::size_t worker_page_bytes = 4096;
inline constexpr std::size_t worker_sheet_at = worker_page_bytes;
inline constexpr std::size_t worker_sheet_bytes = 262'144;
inline constexpr std::size_t worker_answer_at = worker_sheet_at + worker_sheet_bytes;
inline constexpr std::size_t worker_answer_bytes = 262'144;
inline constexpr std::size_t worker_memory_bytes = worker_answer_at + worker_answer_bytes;
static_assert(worker_memory_bytes == 528'384);
inline constexpr const char* worker_page_variable = "TORCHUP_WORKER_PAGE";

namespace worker_page {
inline constexpr std::uint64_t magic_value = 0x3147'4150'5055'54;  // "TUPPAG1"
inline constexpr std::size_t magic = 0;  ///< u64, written by the worker when it has opened the page
inline constexpr std::size_t pid = 8;  ///< u64, the worker's; where a hook has claimed the page perhaps a descendant's
inline constexpr std::size_t newest = 16;  ///< u64, beats so far; the newest lies in slot newest % 2
inline constexpr std::size_t waiting_since =
    24;  ///< i64, since when the worker waits for others in a collective; 0: it does not
inline constexpr std::size_t first_step = 32;    ///< i64, the number of the first step; counts where first_time does
inline constexpr std::size_t first_time = 40;    ///< i64, when that ended; 0: not known
inline constexpr std::size_t total_waited = 48;  ///< i64, of all beats behind the first the waiting; 0: not known
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
// Written by the hook of a Python worker (launcher/python/injected/torchup_worker.py); `helper`, `collectives` and
// `ending_at` also by our runtime in C++ ones:
inline constexpr std::size_t signal = 256;            ///< u64, that has its stacks written to the sheet; 0: none does
inline constexpr std::size_t helper = 264;            ///< u64, the kernel's id of its helper thread; 0: there is none
inline constexpr std::size_t raised_at = 272;         ///< i64, when an exception left the program; 0: none has
inline constexpr std::size_t collectives = 280;       ///< u64, sum of its process groups' sequence numbers
inline constexpr std::size_t collectives_at = 288;    ///< i64, when that changed last
inline constexpr std::size_t python = 296;            ///< u64, sys.hexversion; 0: it is no Python worker
inline constexpr std::size_t thread_raised_at = 304;  ///< i64, when an exception ended one of its threads last
inline constexpr std::size_t ending_at = 312;         ///< i64, when its program began to end
inline constexpr std::size_t thread_raised = 320;     ///< that exception; text, a zero byte ends it
inline constexpr std::size_t thread_raised_bytes = 256;
inline constexpr std::size_t recorded = 576;     ///< u64, not 0: the error file is the hook's
inline constexpr std::size_t hears_drain = 584;  ///< u64, not 0: its program looks at `drain`; others' in Python do not
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
  std::int64_t first_step = 0;        ///< the number of its first step; counts where first_ns does
  std::int64_t first_ns = 0;          ///< when that ended; 0: it is not known
  std::int64_t total_waited_ns = 0;   ///< waiting behind the first step's end, in all; 0: it is not known

  friend bool operator==(const WorkerProgress&, const WorkerProgress&) = default;
};

/// Reads a copy of a page. Nothing when neither the worker with this pid nor a hook has opened it, or none has ended a
/// step.
[[nodiscard]] std::optional<WorkerProgress> read_worker_page(std::span<const std::byte> page, std::int64_t pid);

/// What an agent learns from the page of a Python worker with the hook, or of a C++ worker that has groups: of that the
/// process, the helper, the collectives and the end.
struct HookPage {
  std::int64_t process = 0;       ///< that has claimed the page: the worker, or one below it (a shell, `conda run`)
  int signal = 0;                 ///< 0: it writes no stacks when asked
  std::int64_t helper = 0;        ///< the kernel's id of the thread that answers `look`; 0: there is none
  std::int64_t raised_at_ns = 0;  ///< when an exception left the program; 0: none has
  std::uint64_t collectives = 0;  ///< sum of its process groups' sequence numbers
  std::int64_t collectives_at_ns = 0;
  std::uint64_t python = 0;  ///< sys.hexversion; 0: it is a C++ worker
  std::int64_t thread_raised_at_ns = 0;
  std::int64_t ending_at_ns = 0;   ///< when its program began to end; 0: it has not
  std::string thread_raised = {};  ///< the last exception that ended a thread
  bool recorded = false;           ///< the hook has written the error file, and not the program

  friend bool operator==(const HookPage&, const HookPage&) = default;
};

/// Reads a copy of a page. Nothing unless a hook, or the runtime of a worker with groups, has set itself up. Numbers
/// that are none of a signal, process or thread, and times before 0, are 0.
[[nodiscard]] std::optional<HookPage> read_hook_page(std::span<const std::byte> page);

/// Whether the worker with this pid has opened the page, of which this is a copy, and hears a request to drain: of
/// those in Python who says so.
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

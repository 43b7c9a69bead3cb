#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// What a dead worker's last words mean: whether it died of another's end, and what they are in plain words.
namespace torchup {

enum class CauseKind : std::uint8_t {
  unknown,
  consequence,    ///< of another rank's end, or of the network's: a connection, a collective, the store
  disk_full,      ///< ENOSPC, EDQUOT
  port_taken,     ///< EADDRINUSE
  descriptors,    ///< EMFILE, ENFILE
  processes,      ///< EAGAIN of fork
  shared_memory,  ///< /dev/shm
  loader_killed,  ///< a process of a DataLoader
  host_memory,
  gpu_memory,
  gpu_fault,       ///< ECC, a GPU that is lost
  gpu_program,     ///< an assertion, an address out of range
  sizes_differ,    ///< ranks gave tensors of different sizes to one collective
  nccl_usage,      ///< ncclInvalidUsage, ncclInvalidArgument
  nccl_system,     ///< ncclSystemError
  nccl_cuda_error  ///< ncclUnhandledCudaError
};

/// Of one text: an exception's, or an error message's. Own faults win: a store that could not listen on its port is no
/// consequence.
[[nodiscard]] CauseKind cause_kind(std::string_view text);

/// In plain words: `a file system is full`; empty for what says enough by itself.
[[nodiscard]] std::string_view plain_words(CauseKind kind);

/// Index of the head of the last traceback in the `lines` of a worker, if it tells of its end; nothing where there is
/// none, or where the worker has handled the exception and gone on.
[[nodiscard]] std::optional<std::size_t> last_traceback(const std::vector<std::string>& lines);

/// What a worker said of its end in its `lines`, be they its output or its error file's traceback: the first exception
/// of its last traceback, for those that were raised while it was handled come after the cause; else what a C++ program
/// said when it was terminated; else its last lines. At most last_words_bytes_max; empty where it said nothing.
[[nodiscard]] std::string last_words(const std::vector<std::string>& lines);
inline constexpr std::size_t last_words_bytes_max = 4096;

/// `+-+---- 1 ----`: what Python draws between exceptions of a group; it says nothing.
[[nodiscard]] bool is_ruler(std::string_view line);

}  // namespace torchup

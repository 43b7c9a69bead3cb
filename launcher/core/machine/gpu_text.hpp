#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "launcher/core/machine/machine.hpp"

/// What the child that asks NVML answers: one line per thing, fields separated by tabs; "end" comes last, so that half
/// an answer is not taken for a whole one.
namespace torchup {

inline constexpr std::size_t gpu_text_bytes_max = std::size_t{1} << 20;
inline constexpr std::size_t gpus_max = 1024;  ///< of one machine; their instances are counted likewise
inline constexpr std::size_t gpu_field_bytes_max = 256;

inline constexpr std::size_t gpu_holders_max = 4096;  ///< of all GPUs together

[[nodiscard]] std::string to_gpu_text(const Gpus& gpus);

/// Nothing for half an answer and for one beyond the limits; control characters in a field are blanks. Lines of unknown
/// kinds are passed over. A PCI address that is none is empty: it is part of a path.
[[nodiscard]] std::optional<Gpus> from_gpu_text(std::string_view text);

/// The number of the last Xid in `kernel_log` that is of none of these GPUs: of the one that is lost, whose PCI address
/// the driver does not tell. `pci`: folders, as in Gpu.
[[nodiscard]] std::optional<int> lost_gpu_xid(std::string_view kernel_log, std::span<const Gpu> gpus);

}  // namespace torchup

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/core/machine/machine.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"

namespace torchup {

/// One GPU, or one instance of a split GPU, that a worker can be given.
struct Device {
  std::size_t gpu = 0;  ///< index into Gpus::list
  std::string id;       ///< what CUDA_VISIBLE_DEVICES says to mean it: an index, "GPU-…" or "MIG-…"

  friend bool operator==(const Device&, const Device&) = default;
};

/// The devices that CUDA_VISIBLE_DEVICES leaves of `gpus`, in its order: device n of the result is device n of a
/// worker. `cuda_visible_devices` is nothing when the variable is not set; set but empty hides all.
///
/// The list is indices, or UUIDs (unique beginnings suffice), never both; it ends before the first entry that means
/// nothing here; an entry that comes twice makes it empty. Behind an index digits end at the first other character
/// ("1gpu" is 1). A split GPU stands for its first instance, and without one for nothing.
/// Source: CUDA's own rules, as torch.cuda.device_count() counts by them.
[[nodiscard]] std::vector<Device> visible_devices(const Gpus& gpus,
                                                  std::optional<std::string_view> cuda_visible_devices);

/// How many of `devices` one process can use: all, but one as soon as an instance of a split GPU is among them (CUDA
/// then shows the first device only). Workers with --virtual-local-rank see one device each and can use all.
[[nodiscard]] int usable_in_one_process(const Gpus& gpus, const std::vector<Device>& devices);

/// What `--gpus 0,3` or `--gpus GPU-4c2f,…` makes of CUDA_VISIBLE_DEVICES for all workers.
///
/// Indices count among the *visible* devices (as `cuda:3` does in a program), so a scheduler's own choice stays the
/// outer limit; a UUID or its beginning must name exactly one of them.
///
/// Errors: errc::bad_value for an empty list, an entry twice, or one that is neither index nor UUID; errc::refused for
/// one that is not there (says what is).
[[nodiscard]] Result<std::vector<Device>> choose_devices(std::string_view list, const Gpus& gpus,
                                                         const std::vector<Device>& visible);

/// `choice` as a value of CUDA_VISIBLE_DEVICES.
[[nodiscard]] std::string to_variable(const std::vector<Device>& choice);

/// Variables of one worker under --virtual-local-rank: its own entry of the launcher's CUDA_VISIBLE_DEVICES, or its
/// local rank where that is not set. A HIP_VISIBLE_DEVICES that is not empty takes its place, and both are set to it.
///
/// Errors: errc::bad_value with torchrun's text when the list has too few entries (an empty list has one, empty).
[[nodiscard]] Result<std::vector<std::pair<std::string, std::string>>> virtual_rank_variables(
    LocalRank local_rank, std::optional<std::string_view> cuda_visible_devices,
    std::optional<std::string_view> hip_visible_devices);

}  // namespace torchup

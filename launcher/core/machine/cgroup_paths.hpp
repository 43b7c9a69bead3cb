#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace torchup {

/// Folder of our own cgroup in the hierarchy that has `controller` ("memory", "cpu", …), and where its mount begins.
struct CgroupFolder {
  std::string mount;   ///< folder of the mount; parents of `folder` are asked for limits down to here
  std::string folder;  ///< our own; equal to `mount` or below it
  int version = 2;
  friend bool operator==(const CgroupFolder&, const CgroupFolder&) = default;
};

/// From the texts of /proc/self/cgroup and /proc/self/mountinfo. A version 1 hierarchy that has the controller wins
/// over version 2 (the kernel gives a controller to one of them only); an empty `controller` means version 2 itself,
/// which is what cgroup.kill needs.
///
/// Nothing when there is no such hierarchy, or when the mount shows another part of the tree than ours.
[[nodiscard]] std::optional<CgroupFolder> cgroup_folder(std::string_view controller, std::string_view proc_self_cgroup,
                                                        std::string_view mountinfo);

}  // namespace torchup

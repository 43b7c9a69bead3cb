#pragma once

#include <set>
#include <string>
#include <string_view>

#include "rendezvous/base/result.hpp"

namespace torchup {

/// Logical CPUs by the kernel's index.
using CpuSet = std::set<int>;

/// Reads the kernel's list form, "0-2,4,6-7\n". Blanks around the numbers and empty parts are allowed, so an empty
/// text is the empty set.
///
/// Errors: errc::bad_value for anything else, a falling range, or an index above 1,048,575 (a damaged file must not
/// become a gigabyte of CPUs).
[[nodiscard]] Result<CpuSet> parse_cpu_list(std::string_view text);

/// The same form back, as compact as it gets: {0, 1, 2, 4} is "0-2,4".
[[nodiscard]] std::string to_cpu_list(const CpuSet& cpus);

[[nodiscard]] CpuSet intersection(const CpuSet& left, const CpuSet& right);

}  // namespace torchup

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/membership/membership.hpp"

namespace torchup {

/// Who has the report of a job in which no node has had a place, nor an index.
enum class FirstReporter : std::uint8_t {
  nobody,           ///< each node knows what it is to tell then
  longest_present,  ///< the member that joined before the others: node 0 may be torchrun's
};

/// Verdict::reporter, where a job ends with these `failures`: of the members that can hear that, or of all where none
/// can, one on the host of the root cause; else the first one of the last round; else the first one by index.
[[nodiscard]] std::string reporter(const Membership& members, const std::vector<WorkerFailure>& failures,
                                   FirstReporter first, TimePoint now);

}  // namespace torchup

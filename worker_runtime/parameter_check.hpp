#pragma once

#include <vector>

#include "torchup/process_group.hpp"
#include "worker_runtime/flat_buffer.hpp"

namespace torchup {

/// Collective. Throws Error on *every* rank when the ranks' lists differ in length, or in dtype, sizes or strides of
/// one parameter; names the first difference. Goes through the store: a collective over lists of different length would
/// hang.
void check_same_parameters(const std::vector<NamedParameter>& parameters, const ProcessGroup& group);

}  // namespace torchup

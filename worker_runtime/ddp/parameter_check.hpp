#pragma once

#include <vector>

#include "torchup/process_group.hpp"
#include "worker_runtime/ddp/flat_buffer.hpp"

namespace torchup {

/// Collective. Throws Error on *every* rank when the ranks' lists differ in length, or in dtype, sizes or strides of
/// one tensor; names the first difference. `reduced` are the parameters whose gradients are averaged, `state` is
/// everything that is broadcast: all parameters, frozen ones too, and buffers. Goes through the store: a collective
/// over lists of different length would hang.
void check_same_parameters(const std::vector<NamedParameter>& reduced, const std::vector<NamedParameter>& state,
                           const ProcessGroup& group);

}  // namespace torchup

#pragma once

#include <cstddef>
#include <vector>

#include "rendezvous/core/diagnosis/rank_look.hpp"

namespace torchup {

/// Whether a frame is in the program's own code: neither in Python's library nor in an installed package.
[[nodiscard]] bool is_of_program(const StackFrame& frame);

/// Whether a frame is in a call of torch.distributed.
[[nodiscard]] bool is_in_collective(const StackFrame& frame);

/// Keeps the innermost `count` frames of a Python stack. Where all of these are Python's and libraries', the last one
/// makes room for the innermost of the program, for which people look: eight others stand before a program that waits
/// for its DataLoader.
void keep_frames(std::vector<StackFrame>& frames, std::size_t count);

}  // namespace torchup

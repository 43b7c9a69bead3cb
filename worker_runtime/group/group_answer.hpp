#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace torchup {

// How far this process is in its groups, for who asks from another thread. The program's own is not stopped, and does
// nothing for it.

/// Of all connected groups together: LibTorch's counts of what they have begun.
[[nodiscard]] std::uint64_t collectives_begun();
/// The answer to `look`, bytes_max at most (look_answer.hpp). Takes some 20 ms. Does not throw.
///
/// What is begun and not finished is known by LibTorch's recorder, which is on unless TORCH_FR_BUFFER_SIZE is 0. The
/// newer of its two NCCL backends records nothing for C++ programs; the older one does (TORCH_DIST_USE_NCCL2=0).
[[nodiscard]] std::string group_answer(std::size_t bytes_max);

/// `begin` is called by the next thread that makes this process's first group, before it waits for other ranks. Empty:
/// nobody is to be called; whoever was is not being called any more.
void when_groups_begin(std::function<void()> begin);
/// They do.
void groups_begin();

}  // namespace torchup

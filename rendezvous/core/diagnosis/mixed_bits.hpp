#pragma once

#include <cstdint>

namespace torchup {

/// Each bit of the result depends on each bit of `number`: choices that look like chance, and are the same on all nodes
/// without a word between them. Different numbers have different results.
/// Source: splitmix64, https://prng.di.unimi.it/splitmix64.c.
[[nodiscard]] constexpr std::uint64_t mixed_bits(std::uint64_t number) {
  number += 0x9e3779b97f4a7c15u;
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9u;
  number = (number ^ (number >> 27)) * 0x94d049bb133111ebu;
  return number ^ (number >> 31);
}

}  // namespace torchup

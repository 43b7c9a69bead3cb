#pragma once

#include <cstdint>

namespace torchup {

/// 64 bits that depend on every bit of both words (splitmix64, twice): the seed of what stands under a number in what
/// another seed stands for.
constexpr std::uint64_t seed_within(std::uint64_t seed, std::uint64_t number) {
  const auto mixed = [](std::uint64_t word) {
    word += 0x9e3779b97f4a7c15;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
    word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
    return word ^ (word >> 31);
  };
  return mixed(mixed(seed) ^ number);
}

}  // namespace torchup

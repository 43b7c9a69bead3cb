#pragma once

#include <cstdint>
#include <string_view>

namespace torchup {

/// A secret without which nobody can find texts of one hash.
struct HashSecret {
  std::uint64_t first = 0, second = 0;
};

/// SipHash (Aumasson, Bernstein), with one round for each word and three at the end, as Rust and Python have it.
[[nodiscard]] std::uint64_t sip_hash_1_3(HashSecret secret, std::string_view bytes);
/// As it was published, whose results are known.
[[nodiscard]] std::uint64_t sip_hash_2_4(HashSecret secret, std::string_view bytes);

}  // namespace torchup

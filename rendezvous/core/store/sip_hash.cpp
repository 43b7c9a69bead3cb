#include "rendezvous/core/store/sip_hash.hpp"

#include <bit>
#include <cstring>

namespace torchup {
namespace {

struct SipState {
  std::uint64_t v0, v1, v2, v3;

  explicit SipState(HashSecret secret)
      : v0{secret.first ^ 0x736f6d6570736575U}, v1{secret.second ^ 0x646f72616e646f6dU},
        v2{secret.first ^ 0x6c7967656e657261U}, v3{secret.second ^ 0x7465646279746573U} {}

  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1;
      v1 = std::rotl(v1, 13) ^ v0;
      v0 = std::rotl(v0, 32);
      v2 += v3;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1;
      v1 = std::rotl(v1, 17) ^ v2;
      v2 = std::rotl(v2, 32);
    }
  }
  void take(std::uint64_t word, int count) {
    v3 ^= word;
    rounds(count);
    v0 ^= word;
  }
};

std::uint64_t sip_hash(HashSecret secret, std::string_view bytes, int word_rounds, int last_rounds) {
  SipState state{secret};
  const std::size_t whole = bytes.size() & ~std::size_t{7};
  for (std::size_t at = 0; at < whole; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, 8);
    state.take(word, word_rounds);
  }
  std::uint64_t last = std::uint64_t{bytes.size()} << 56;
  for (std::size_t at = whole; at < bytes.size(); ++at)
    last |= std::uint64_t{static_cast<unsigned char>(bytes[at])} << (8 * (at - whole));
  state.take(last, word_rounds);
  state.v2 ^= 0xff;
  state.rounds(last_rounds);
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

}  // namespace

std::uint64_t sip_hash_1_3(HashSecret secret, std::string_view bytes) { return sip_hash(secret, bytes, 1, 3); }
std::uint64_t sip_hash_2_4(HashSecret secret, std::string_view bytes) { return sip_hash(secret, bytes, 2, 4); }

}  // namespace torchup

#include "launcher/os/machine/random_run_id.hpp"

#include <sys/random.h>

#include <array>
#include <cstdio>
#include <stdexcept>

namespace torchup {

std::string random_run_id() {
  std::array<unsigned, 4> words{};
  if (::getrandom(words.data(), sizeof words, 0) != sizeof words)
    throw std::runtime_error{"the kernel gives no random bytes"};
  words[1] = (words[1] & 0xffff0fffU) | 0x4000U;
  words[2] = (words[2] & 0x3fffffffU) | 0x80000000U;
  std::array<char, 37> text{};
  std::snprintf(text.data(), text.size(), "%08x-%04x-%04x-%04x-%04x%08x", words[0], words[1] >> 16, words[1] & 0xffffU,
                words[2] >> 16, words[2] & 0xffffU, words[3]);
  return text.data();
}

}  // namespace torchup

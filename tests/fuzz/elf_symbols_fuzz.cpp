// What a file says that a worker has loaded: its tables of sections, symbols and names.
#include "launcher/core/diagnosis/elf_symbols.hpp"

#include <algorithm>
#include <array>

#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string file{reinterpret_cast<const char*>(data), size};
  std::size_t largest = 0, asked = 0;
  const auto read = [&](std::uint64_t offset, std::size_t bytes) {
    largest = std::max(largest, bytes);
    ++asked;
    return offset < file.size() ? file.substr(offset, bytes) : std::string{};
  };
  const std::array<std::uint64_t, 8> addresses{0x1004, 0x1000, 0x1020, 0x1010, 0x1fff, 0, 0x1000, ~0ULL};
  const auto names = elf_function_names(read, addresses);
  fuzz::require(largest <= elf_sections_max * 64);
  fuzz::require(asked <= 16 + elf_sections_max + size / 24 + 8 * 64);
  if (!names) return 0;
  fuzz::require(names->size() == addresses.size());
  for (const std::string& name : *names) {
    fuzz::require(name.size() <= elf_name_bytes_max && file.find(name) != std::string::npos);
  }
  fuzz::require((*names)[1] == (*names)[6]);
  return 0;
}

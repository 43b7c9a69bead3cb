// What a file says that may be an ELF program.
#include "launcher/core/plan/elf_note.hpp"

#include "rendezvous/base/template_mark.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string file{reinterpret_cast<const char*>(data), size};
  std::size_t asked = 0;
  const auto read = [&](std::uint64_t offset, std::size_t bytes) {
    asked += bytes;
    return offset < file.size() ? file.substr(offset, bytes) : std::string{};
  };
  const auto mark = elf_note(read, TemplateMark::owner, TemplateMark::kind);
  fuzz::require(asked <= 64 + program_headers_max * 56 + note_bytes_max);
  if (mark) fuzz::require(file.find(TemplateMark::owner) != std::string::npos);
  return 0;
}

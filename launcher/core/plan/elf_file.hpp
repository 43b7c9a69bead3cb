#pragma once

#include <elf.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

/// What the readers of ELF files share. The files are strangers'.
namespace torchup {

/// Reads a file: up to `bytes` bytes at `offset`, fewer at its end, none where there are none.
using ReadAt = std::function<std::string(std::uint64_t offset, std::size_t bytes)>;

/// Cuts a value off the front of `bytes`; nothing where they are too few.
template <class T>
std::optional<T> take_value(std::string_view& bytes) {
  if (bytes.size() < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

/// The header of a program or a library of this kind of machine (64 bit, its byte order); nothing for any other file.
[[nodiscard]] inline std::optional<Elf64_Ehdr> elf_header(const ReadAt& read) {
  constexpr unsigned char byte_order = std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;
  const std::string begin = read(0, sizeof(Elf64_Ehdr));
  std::string_view bytes = begin;
  const auto header = take_value<Elf64_Ehdr>(bytes);
  const bool ours = header && std::memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 &&
                    header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_ident[EI_DATA] == byte_order &&
                    (header->e_type == ET_EXEC || header->e_type == ET_DYN);
  return ours ? header : std::nullopt;
}

}  // namespace torchup

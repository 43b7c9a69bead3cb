#include "launcher/core/plan/elf_note.hpp"

#include <elf.h>

#include <algorithm>
#include <string>

namespace torchup {
namespace {

/// Cuts off `size` bytes and what fills them up to `alignment`, which the last ones of a segment may lack.
std::optional<std::string_view> take_field(std::string_view& bytes, std::size_t size, std::size_t padding) {
  if (bytes.size() < size) return std::nullopt;
  const std::string_view field = bytes.substr(0, size);
  bytes.remove_prefix(std::min(bytes.size(), size + padding));
  return field;
}

/// Looks through one segment of notes.
std::optional<std::uint32_t> find_note(std::string_view notes, std::size_t alignment, std::string_view owner,
                                       std::uint32_t type) {
  const std::size_t whole = notes.size();
  const auto padding = [&](std::size_t size) {
    const std::size_t end = whole - notes.size() + size;
    return (alignment - end % alignment) % alignment;
  };
  while (const auto header = take_value<Elf64_Nhdr>(notes)) {
    const auto name = take_field(notes, header->n_namesz, padding(header->n_namesz));
    if (!name) break;
    auto value = take_field(notes, header->n_descsz, padding(header->n_descsz));
    if (!value) break;
    const bool is_owners = name->size() == owner.size() + 1 && name->starts_with(owner) && name->back() == '\0';
    if (is_owners && header->n_type == type) return take_value<std::uint32_t>(*value);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::uint32_t> elf_note(const ReadAt& read, std::string_view owner, std::uint32_t type) {
  const auto header = elf_header(read);
  if (!header || header->e_phentsize != sizeof(Elf64_Phdr) || header->e_phnum > program_headers_max) {
    return std::nullopt;
  }
  const std::string table = read(header->e_phoff, header->e_phnum * sizeof(Elf64_Phdr));
  std::string_view entries = table;
  std::size_t room = note_bytes_max;
  while (const auto segment = take_value<Elf64_Phdr>(entries)) {
    if (segment->p_type != PT_NOTE || segment->p_filesz > room) continue;
    room -= segment->p_filesz;
    const std::string notes = read(segment->p_offset, segment->p_filesz);
    if (const auto value = find_note(notes, segment->p_align == 8 ? 8 : 4, owner, type)) return value;
  }
  return std::nullopt;
}

}  // namespace torchup

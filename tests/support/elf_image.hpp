#pragma once

#include <elf.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace torchup::test {

/// A small library: one section of code, a table of symbols and their names.
struct ElfImage {
  struct Symbol {
    std::string name;
    std::uint64_t value = 0;
    std::uint64_t size = 0;
    unsigned char binding = STB_GLOBAL;
    unsigned char type = STT_FUNC;
    std::uint16_t section = code;
  };
  // Where the sections stand.
  static constexpr std::uint16_t code = 1;
  static constexpr std::uint16_t table = 2;
  static constexpr std::uint16_t names = 3;

  std::vector<Symbol> symbols;
  std::size_t locals = 0;  ///< so many of them, the first ones
  std::uint32_t table_type = SHT_SYMTAB;
  std::string extra_section = "";  ///< the name of one more

  [[nodiscard]] std::string bytes() const {
    std::string texts(1, '\0'), entries(sizeof(Elf64_Sym), '\0');
    for (const Symbol& symbol : symbols) {
      Elf64_Sym entry{};
      entry.st_name = symbol.name.empty() ? 0 : static_cast<Elf64_Word>(texts.size());
      entry.st_info = static_cast<unsigned char>(ELF64_ST_INFO(symbol.binding, symbol.type));
      entry.st_shndx = symbol.section;
      entry.st_value = symbol.value;
      entry.st_size = symbol.size;
      entries.append(reinterpret_cast<const char*>(&entry), sizeof entry);
      if (!symbol.name.empty()) texts += symbol.name + '\0';
    }
    const auto extra_name = static_cast<Elf64_Word>(texts.size());
    texts += extra_section + '\0';

    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;
    header.e_type = ET_DYN;
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = extra_section.empty() ? 4 : 5;
    header.e_shstrndx = names;
    header.e_shoff = sizeof header;
    const std::size_t after = sizeof header + header.e_shnum * sizeof(Elf64_Shdr);

    std::vector<Elf64_Shdr> sections(header.e_shnum);
    sections[code].sh_type = SHT_PROGBITS;
    sections[code].sh_flags = SHF_ALLOC | SHF_EXECINSTR;
    sections[code].sh_addr = 0x1000;
    sections[code].sh_size = 0x800;
    sections[table].sh_type = table_type;
    sections[table].sh_offset = after;
    sections[table].sh_size = entries.size();
    sections[table].sh_link = names;
    sections[table].sh_info = static_cast<Elf64_Word>(1 + locals);
    sections[table].sh_entsize = sizeof(Elf64_Sym);
    sections[names].sh_type = SHT_STRTAB;
    sections[names].sh_offset = after + entries.size();
    sections[names].sh_size = texts.size();
    if (!extra_section.empty()) {
      sections.back().sh_type = SHT_PROGBITS;
      sections.back().sh_name = extra_name;
    }
    std::string file{reinterpret_cast<const char*>(&header), sizeof header};
    file.append(reinterpret_cast<const char*>(sections.data()), sections.size() * sizeof(Elf64_Shdr));
    return file + entries + texts;
  }
};

}  // namespace torchup::test

#include "launcher/core/diagnosis/elf_symbols.hpp"

#include <elf.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace torchup {
namespace {

constexpr std::size_t piece_bytes = std::size_t{64} << 10;

/// The table of sections; nothing where there is none.
std::optional<std::vector<Elf64_Shdr>> sections_of(const ReadAt& read, const Elf64_Ehdr& header) {
  if (header.e_shoff == 0 || header.e_shentsize != sizeof(Elf64_Shdr)) return std::nullopt;
  std::size_t count = header.e_shnum;
  if (count == 0) {  // it does not fit there
    const std::string first = read(header.e_shoff, sizeof(Elf64_Shdr));
    std::string_view bytes = first;
    const auto section = take_value<Elf64_Shdr>(bytes);
    count = section ? std::min<std::uint64_t>(section->sh_size, elf_sections_max) : 0;
  }
  const std::string table = read(header.e_shoff, std::min(count, elf_sections_max) * sizeof(Elf64_Shdr));
  std::string_view bytes = table;
  std::vector<Elf64_Shdr> sections;
  while (const auto section = take_value<Elf64_Shdr>(bytes)) sections.push_back(*section);
  return sections.empty() ? std::nullopt : std::optional{std::move(sections)};
}

/// A text of a table of texts, cut where it is too long; empty where it lies beyond.
std::string text_at(const ReadAt& read, const Elf64_Shdr& texts, std::uint64_t at, std::size_t bytes_max) {
  if (texts.sh_type != SHT_STRTAB || at >= texts.sh_size) return {};
  const std::uint64_t room = texts.sh_size - at;
  std::string text;
  for (std::size_t piece = 256; text.size() < bytes_max; piece *= 2) {
    const std::size_t wanted = std::min<std::uint64_t>({piece, bytes_max - text.size(), room - text.size()});
    const std::string part = wanted > 0 ? read(texts.sh_offset + at + text.size(), wanted) : std::string{};
    const auto end = part.find('\0');
    text += part.substr(0, end);
    if (end != std::string::npos || part.empty()) break;
  }
  return text;
}

bool has_section(const ReadAt& read, const Elf64_Ehdr& header, const std::vector<Elf64_Shdr>& sections,
                 std::string_view name) {
  const std::size_t place = header.e_shstrndx != SHN_XINDEX ? header.e_shstrndx : sections[0].sh_link;
  if (place >= sections.size()) return false;
  return std::ranges::any_of(sections, [&](const Elf64_Shdr& section) {
    return section.sh_type == SHT_PROGBITS && text_at(read, sections[place], section.sh_name, name.size() + 1) == name;
  });
}

/// A symbol that may name an address.
struct Candidate {
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
  std::uint32_t name = 0;  ///< where it lies; 0: there is no such symbol
  int binding = 0;
};

constexpr int local_binding = 1;

int binding_of(const Elf64_Sym& symbol) {
  switch (ELF64_ST_BIND(symbol.st_info)) {
    case STB_GLOBAL:
      return 3;
    case STB_WEAK:
      return 2;
    case STB_LOCAL:
      return local_binding;
    default:
      return 0;
  }
}

bool may_name(const Elf64_Sym& symbol) {
  const auto type = ELF64_ST_TYPE(symbol.st_info);
  const bool in_section =
      symbol.st_shndx != SHN_UNDEF && (symbol.st_shndx < SHN_LORESERVE || symbol.st_shndx == SHN_XINDEX);
  return in_section && symbol.st_name != 0 && type != STT_SECTION && type != STT_FILE && type != STT_TLS;
}

bool is_better(const Candidate& one, const Candidate& than) {
  if (than.name == 0 || one.begin != than.begin) return than.name == 0 || one.begin > than.begin;
  if (one.size != than.size) return one.size < than.size && one.binding >= than.binding;
  return one.binding > than.binding;
}

/// A label's begin is all that it has: of those that begin together it is the last, the local ones behind the global
/// ones, though they come first in the table.
bool is_better_label(const Candidate& one, const Candidate& than) {
  if (than.name == 0 || one.begin != than.begin) return than.name == 0 || one.begin > than.begin;
  return one.binding <= local_binding || than.binding > local_binding;
}

/// What is known of one address.
struct Wanted {
  std::uint64_t address = 0;
  std::size_t place = 0;  ///< among those that were asked for
  std::size_t section = 0;
  Candidate global, local;
  Candidate sizeless;
  std::uint64_t reached = 0;  ///< by the symbols that begin at this address or before, and behind the one wanted before
};

/// Goes through the symbols of a file once.
class Search {
 public:
  Search(const std::vector<Elf64_Shdr>& sections, std::span<const std::uint64_t> addresses) {
    for (const std::uint64_t address : addresses) {
      const auto found = std::ranges::find_if(sections, [address](const Elf64_Shdr& section) {
        return (section.sh_flags & SHF_ALLOC) != 0 && address >= section.sh_addr &&
               address - section.sh_addr < section.sh_size;
      });
      Wanted& wanted = wanted_.emplace_back();
      wanted.address = address;
      wanted.place = wanted_.size() - 1;
      wanted.section = static_cast<std::size_t>(found - sections.begin());
    }
    std::ranges::sort(wanted_, {}, &Wanted::address);
  }

  /// False: it has been enough.
  bool take(const Elf64_Sym& symbol, bool global) {
    if (!may_name(symbol)) return true;
    const Candidate candidate{symbol.st_value, symbol.st_size, symbol.st_name, binding_of(symbol)};
    const auto first = std::ranges::lower_bound(wanted_, symbol.st_value, {}, &Wanted::address);
    if (first == wanted_.end()) return true;
    std::uint64_t end = 0;
    if (__builtin_add_overflow(symbol.st_value, symbol.st_size, &end)) end = ~std::uint64_t{0};
    first->reached = std::max(first->reached, end);
    const bool same_section = symbol.st_shndx == SHN_XINDEX || symbol.st_shndx == first->section;
    if (symbol.st_size == 0 && same_section && is_better_label(candidate, first->sizeless)) first->sizeless = candidate;
    for (auto at = first; at != wanted_.end() && at->address < end; ++at) {
      if (++comparisons_ > elf_comparisons_max) return false;
      Candidate& best = global ? at->global : at->local;
      if (is_better(candidate, best)) best = candidate;
    }
    return true;
  }

  /// Where each name lies; 0: there is none. In the order in which the addresses were asked for.
  std::vector<std::uint32_t> names() {
    std::vector<std::uint32_t> names(wanted_.size());
    const Wanted* before = nullptr;
    for (Wanted& wanted : wanted_) {
      if (before) wanted.reached = std::max(wanted.reached, before->reached);
      const bool has_label = wanted.sizeless.name != 0;  // which begins behind all that were there before
      if (before && before->section == wanted.section && !has_label) wanted.sizeless = before->sizeless;
      const Candidate& sized = wanted.global.name != 0 ? wanted.global : wanted.local;
      const bool label = sized.name == 0 && wanted.sizeless.begin >= wanted.reached;
      names[wanted.place] = label ? wanted.sizeless.name : sized.name;
      before = &wanted;
    }
    return names;
  }

 private:
  std::vector<Wanted> wanted_;  ///< in order
  std::size_t comparisons_ = 0;
};

void go_through(const ReadAt& read, const Elf64_Shdr& table, Search& search) {
  const std::uint64_t count = std::min<std::uint64_t>(table.sh_size / sizeof(Elf64_Sym), elf_symbols_max);
  constexpr std::uint64_t in_piece = piece_bytes / sizeof(Elf64_Sym);
  for (std::uint64_t index = 0; index < count;) {
    const std::string piece =
        read(table.sh_offset + index * sizeof(Elf64_Sym), std::min(in_piece, count - index) * sizeof(Elf64_Sym));
    std::string_view bytes = piece;
    auto symbol = take_value<Elf64_Sym>(bytes);
    if (!symbol) return;  // the file is shorter
    for (; symbol; symbol = take_value<Elf64_Sym>(bytes), ++index) {
      if (!search.take(*symbol, index >= table.sh_info)) return;
    }
  }
}

}  // namespace

std::optional<std::vector<std::string>> elf_function_names(const ReadAt& read,
                                                           std::span<const std::uint64_t> addresses) {
  const auto header = elf_header(read);
  const auto sections = header ? sections_of(read, *header) : std::nullopt;
  if (!sections) return std::nullopt;
  auto table = std::ranges::find(*sections, SHT_SYMTAB, &Elf64_Shdr::sh_type);
  if (table == sections->end()) {
    if (has_section(read, *header, *sections, ".gnu_debugdata")) return std::nullopt;
    table = std::ranges::find(*sections, SHT_DYNSYM, &Elf64_Shdr::sh_type);
  }
  std::vector<std::string> names(addresses.size());
  if (table == sections->end() || table->sh_entsize != sizeof(Elf64_Sym) || table->sh_link >= sections->size()) {
    return names;
  }
  Search search{*sections, addresses};
  go_through(read, *table, search);
  const std::vector<std::uint32_t> places = search.names();
  std::size_t room = elf_names_bytes_max;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (places[i] == 0) continue;
    names[i] = text_at(read, (*sections)[table->sh_link], places[i], std::min(room, elf_name_bytes_max));
    room -= names[i].size();
  }
  return names;
}

}  // namespace torchup

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launcher/core/plan/elf_file.hpp"

/// The names of the functions at some addresses of an ELF file. The table of symbols goes by in pieces, and of names
/// those that are wanted are read: a library of PyTorch's has 80 MB of them.
namespace torchup {

// What a stranger's file can make us read and do: sections and symbols beyond these are none, and names are cut off.
inline constexpr std::size_t elf_sections_max = 4096;
inline constexpr std::size_t elf_symbols_max = std::size_t{1} << 23;
inline constexpr std::size_t elf_name_bytes_max = std::size_t{8} << 10;
inline constexpr std::size_t elf_names_bytes_max = std::size_t{4} << 20;  ///< of all that are wanted together
/// A symbol is compared with all addresses within it: with so many in all.
inline constexpr std::size_t elf_comparisons_max = std::size_t{1} << 24;

/// A function's name, as the linker knows it, for each of `addresses`, which are the file's own; empty where it has
/// none. It is that of the symbol that begins last of those in which the address lies: a global one before a local one;
/// of those that begin together the shorter, the more global, the first. Where it lies in none it is that of the last
/// symbol before it in its section that has no size, unless another one reaches beyond that; of those that begin
/// together the last, local ones behind global ones.
///
/// Nothing: it is no such file, or it has its names where we do not look: without sections, or in .gnu_debugdata.
/// Source: elfutils, dwfl_module_addrsym, whose choice this is.
[[nodiscard]] std::optional<std::vector<std::string>> elf_function_names(const ReadAt& read,
                                                                         std::span<const std::uint64_t> addresses);

}  // namespace torchup

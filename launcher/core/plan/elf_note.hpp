#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "launcher/core/plan/elf_file.hpp"

namespace torchup {

/// Program headers that are looked at, and bytes of notes in all: real programs have a dozen, and 200.
inline constexpr std::size_t program_headers_max = 256;
inline constexpr std::size_t note_bytes_max = std::size_t{64} << 10;

/// The number that the first note of this owner and type in an ELF program begins with. Found by the program headers,
/// as the kernel reads a program, so that it is there when all sections are stripped.
///
/// Nothing: there is none, or the file is no ELF program of this kind of machine (64 bit, its byte order), or it is
/// damaged. A stranger's file makes it read no more than the limits above.
[[nodiscard]] std::optional<std::uint32_t> elf_note(const ReadAt& read, std::string_view owner, std::uint32_t type);

}  // namespace torchup

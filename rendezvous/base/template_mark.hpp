#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace torchup {

/// How a native program says that it can be started as a template (--preload program): an ELF note, which every program
/// has that contains worker_main (worker_runtime/worker/template_service.cpp). No other program is ever started so. A
/// launcher finds it without running anything (launcher/core/plan/elf_note.hpp).
struct TemplateMark {
  static constexpr std::string_view owner = "torchup";
  static constexpr std::uint32_t kind = 1;
  /// Of what a template and its agent say to each other (launcher/python/injected/template.py).
  static constexpr std::uint32_t protocol = 1;

  // The note as it lies in the file.
  std::uint32_t owner_bytes = owner.size() + 1;
  std::uint32_t value_bytes = sizeof value;
  std::uint32_t type = kind;
  std::array<char, owner.size() + 1> name{'t', 'o', 'r', 'c', 'h', 'u', 'p', '\0'};
  std::uint32_t value = protocol;
};

/// Tells a process that it is a template, and of its end of the pair to its agent: as a worker's channel is named
/// (WorkerChannelAddress).
inline constexpr const char* template_variable = "TORCHUP_TEMPLATE";

}  // namespace torchup

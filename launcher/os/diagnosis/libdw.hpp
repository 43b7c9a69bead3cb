#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

/// The part of elfutils' libdw that is used here, opened at run time: who needs no native stacks needs no library, and
/// the build no headers. Stable since 0.158. Source: elfutils, libdwfl.h.
namespace torchup::dw {

using Address = std::uint64_t;
using Word = std::uint64_t;
using Session = struct Dwfl;
using Module = struct Dwfl_Module;
using Thread = struct Dwfl_Thread;
using Frame = struct Dwfl_Frame;
struct Elf;

struct Callbacks {
  int (*find_elf)(Module*, void**, const char*, Address, char**, Elf**);
  int (*find_debug_file)(Module*, void**, const char*, Address, const char*, const char*, std::uint32_t, char**);
  int (*section_address)(Module*, void**, const char*, Address, const char*, std::uint32_t, const void*, Address*);
  char** debug_path;
};

struct ThreadCallbacks {
  pid_t (*next_thread)(Session*, void* argument, void** thread_argument);
  bool (*get_thread)(Session*, pid_t, void* argument, void** thread_argument);
  bool (*memory_read)(Session*, Address, Word* result, void* argument);
  bool (*set_initial_registers)(Thread*, void* thread_argument);
  void (*detach)(Session*, void* argument);
  void (*thread_detach)(Thread*, void* thread_argument);
};

// What a callback for frames returns.
inline constexpr int goes_on = 0;
inline constexpr int ends = 1;

struct Library {
  /// Opens it. `problem` says why it cannot be used, and what to install; empty: it can.
  explicit Library(const char* name = "libdw.so.1");
  std::string problem;

  Session* (*begin)(const Callbacks*) = nullptr;
  void (*end)(Session*) = nullptr;
  const char* (*error)(int) = nullptr;  ///< -1: the last one's text
  int (*linux_proc_find_elf)(Module*, void**, const char*, Address, char**, Elf**) = nullptr;
  int (*linux_proc_report)(Session*, pid_t) = nullptr;
  int (*report_end)(Session*, int (*)(Module*, void*, const char*, Address, void*), void*) = nullptr;
  bool (*attach_state)(Session*, Elf*, pid_t, const ThreadCallbacks*, void*) = nullptr;
  bool (*state_registers)(Thread*, int first, unsigned count, const Word*) = nullptr;
  void (*state_register_pc)(Thread*, Word) = nullptr;
  int (*thread_frames)(Session*, pid_t, int (*)(Frame*, void*), void*) = nullptr;
  bool (*frame_pc)(Frame*, Address*, bool* is_activation) = nullptr;
  Module* (*module_at)(Session*, Address) = nullptr;
  const char* (*module_info)(Module*, void***, Address*, Address*, Address*, Address*, const char**,
                             const char**) = nullptr;
  Elf* (*module_elf)(Module*, Address* bias) = nullptr;
  const char* (*symbol_at)(Module*, Address) = nullptr;
};

}  // namespace torchup::dw

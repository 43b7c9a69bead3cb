#include "launcher/os/diagnosis/libdw.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace torchup::dw {
namespace {

template <class Function>
void find(void* library, std::string& problem, Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (!function && problem.empty()) problem = fmt::format("libdw.so.1 has no function {}: it is too old", name);
}

}  // namespace

Library::Library(const char* name) {
  void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);  // never closed: the process ends soon
  if (!library) {
    problem = fmt::format("no {}: install libdw1 (Debian) or elfutils-libs (Fedora)", name);
    return;
  }
  find(library, problem, begin, "dwfl_begin");
  find(library, problem, end, "dwfl_end");
  find(library, problem, error, "dwfl_errmsg");
  find(library, problem, linux_proc_find_elf, "dwfl_linux_proc_find_elf");
  find(library, problem, linux_proc_report, "dwfl_linux_proc_report");
  find(library, problem, report_end, "dwfl_report_end");
  find(library, problem, attach_state, "dwfl_attach_state");
  find(library, problem, state_registers, "dwfl_thread_state_registers");
  find(library, problem, state_register_pc, "dwfl_thread_state_register_pc");
  find(library, problem, thread_frames, "dwfl_getthread_frames");
  find(library, problem, frame_pc, "dwfl_frame_pc");
  find(library, problem, module_at, "dwfl_addrmodule");
  find(library, problem, module_info, "dwfl_module_info");
  find(library, problem, module_elf, "dwfl_module_getelf");
  find(library, problem, symbol_at, "dwfl_module_addrname");
}

}  // namespace torchup::dw

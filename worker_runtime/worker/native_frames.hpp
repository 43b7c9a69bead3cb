#pragma once

/// The native frames of this thread, and what they are called: libbacktrace, GCC's own reader of symbols and lines,
/// where the compiler brings it. Else the same functions, as far as they are used here, by the unwinder and the dynamic
/// linker: exported names alone, and no lines.
#if __has_include(<backtrace.h>)
#include <backtrace.h>
#else
#include <dlfcn.h>
#include <unwind.h>

#include <cstdint>

struct backtrace_state {};
using backtrace_error_callback = void (*)(void* data, const char* message, int number);
using backtrace_simple_callback = int (*)(void* data, std::uintptr_t at);
using backtrace_full_callback = int (*)(void* data, std::uintptr_t at, const char* file, int line,
                                        const char* function);
using backtrace_syminfo_callback = void (*)(void* data, std::uintptr_t at, const char* name, std::uintptr_t value,
                                            std::uintptr_t size);

inline backtrace_state* backtrace_create_state(const char*, int, backtrace_error_callback, void*) {
  static backtrace_state state;
  return &state;
}

[[gnu::noinline]] inline int backtrace_simple(backtrace_state*, int skipped, backtrace_simple_callback take,
                                              backtrace_error_callback, void* data) {
  struct Walk {
    int skipped;
    backtrace_simple_callback take;
    void* data;
  } walk{skipped, take, data};
  _Unwind_Backtrace(
      [](_Unwind_Context* context, void* argument) {
        auto& here = *static_cast<Walk*>(argument);
        // The call, not what it returns to.
        const auto at = static_cast<std::uintptr_t>(_Unwind_GetIP(context)) - 1;
        if (here.skipped-- >= 0 || here.take(here.data, at) == 0) return _URC_NO_REASON;
        return _URC_END_OF_STACK;
      },
      &walk);
  return 0;
}

inline int backtrace_pcinfo(backtrace_state*, std::uintptr_t, backtrace_full_callback, backtrace_error_callback,
                            void*) {
  return 0;
}

inline int backtrace_syminfo(backtrace_state*, std::uintptr_t at, backtrace_syminfo_callback take,
                             backtrace_error_callback, void* data) {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(at), &info) == 0 || info.dli_sname == nullptr) return 0;
  take(data, at, info.dli_sname, reinterpret_cast<std::uintptr_t>(info.dli_saddr), 0);
  return 1;
}
#endif

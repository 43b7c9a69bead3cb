#include "launcher/os/diagnosis/native_stack.hpp"

#include <cxxabi.h>
#include <dirent.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "launcher/os/diagnosis/thread_copy.hpp"
#include "launcher/os/io/read_text.hpp"

namespace torchup {
namespace {

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain{abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                          &std::free};
  return plain ? plain.get() : name;
}

/// One process, as libdw knows it. The thread that is unwound is a copy.
class Session {
 public:
  Session(const dw::Library& library, pid_t process) : library_{library}, process_{process} {
    session_ = library_.begin(&callbacks());
    if (!session_) {
      problem_ = last_error();
      return;
    }
    const int reported = library_.linux_proc_report(session_, process);
    const bool good = reported == 0 && library_.report_end(session_, nullptr, nullptr) == 0 &&
                      library_.attach_state(session_, nullptr, process, &thread_callbacks(), this);
    if (!good) problem_ = reported > 0 ? fmt::format("its memory map: {}", std::strerror(reported)) : last_error();
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    if (session_) library_.end(session_);
  }

  void unwind(pid_t thread, NativeThread& result) {
    result.problem = problem_;
    if (!result.problem.empty()) return;
    copy_ = copy_thread(process_, thread);
    result.problem = copy_.problem;
    if (!result.problem.empty()) return;
    pcs_.clear();
    const int end = library_.thread_frames(session_, thread, take_frame, this);
    if (pcs_.empty()) result.problem = end < 0 ? last_error() : "it has no frames";
    result.cut = pcs_.size() > native_frames_max;
    pcs_.resize(std::min(pcs_.size(), native_frames_max));
    for (const dw::Address pc : pcs_) result.frames.push_back(frame_text(pc));
  }

 private:
  std::string last_error() const { return library_.error(-1); }

  std::string frame_text(dw::Address pc) const {
    dw::Module* const module = library_.module_at(session_, pc);
    if (!module) return native_frame_text({}, {}, pc);
    const char* file = nullptr;
    const char* const name = library_.module_info(module, nullptr, nullptr, nullptr, nullptr, nullptr, &file, nullptr);
    const char* const symbol = library_.symbol_at(module, pc);
    const char* const shown = file ? file : name;
    return native_frame_text(symbol ? demangled(symbol) : std::string{}, shown ? shown : "", pc);
  }

  const dw::Callbacks& callbacks() {
    // The library's own search for debug files may ask servers.
    const auto find_none = [](dw::Module*, void**, const char*, dw::Address, const char*, const char*, std::uint32_t,
                              char**) { return -1; };
    callbacks_ = {library_.linux_proc_find_elf, find_none, nullptr, nullptr};
    return callbacks_;
  }

  static const dw::ThreadCallbacks& thread_callbacks() {
    static constexpr dw::ThreadCallbacks callbacks{[](dw::Session*, void*, void**) { return pid_t{0}; },
                                                   [](dw::Session*, pid_t, void* self, void** thread_argument) {
                                                     *thread_argument = self;
                                                     return true;
                                                   },
                                                   read_memory,
                                                   set_registers,
                                                   nullptr,
                                                   nullptr};
    return callbacks;
  }

  static bool set_registers(dw::Thread* thread, void* argument) {
    const auto& self = *static_cast<Session*>(argument);
    const ThreadCopy& copy = self.copy_;
    const auto count = static_cast<unsigned>(copy.registers.size());
    if (!self.library_.state_registers(thread, 0, count, copy.registers.data())) return false;
    self.library_.state_register_pc(thread, copy.instruction);
    return true;
  }

  static bool read_memory(dw::Session*, dw::Address address, dw::Word* result, void* argument) {
    const auto& self = *static_cast<Session*>(argument);
    const ThreadCopy& copy = self.copy_;
    const std::uint64_t place = address - copy.stack_begin;
    if (address >= copy.stack_begin && place < copy.stack.size() && copy.stack.size() - place >= sizeof *result) {
      copy.stack.copy(reinterpret_cast<char*>(result), sizeof *result, place);
      return true;
    }
    const std::string word = copy_memory(self.process_, address, sizeof *result);
    if (word.size() != sizeof *result) return false;
    word.copy(reinterpret_cast<char*>(result), sizeof *result);
    return true;
  }

  static int take_frame(dw::Frame* frame, void* argument) {
    auto& self = *static_cast<Session*>(argument);
    dw::Address pc = 0;
    bool is_activation = false;
    if (!self.library_.frame_pc(frame, &pc, &is_activation)) return dw::ends;
    // A caller's is the one behind the call, which may lie in the next function.
    self.pcs_.push_back(is_activation ? pc : pc - 1);
    return self.pcs_.size() > native_frames_max ? dw::ends : dw::goes_on;
  }

  const dw::Library& library_;
  const pid_t process_;
  dw::Callbacks callbacks_{};
  dw::Session* session_ = nullptr;
  std::string problem_;
  ThreadCopy copy_;
  std::vector<dw::Address> pcs_;
};

/// All of a process, the main one first; empty: it is gone.
std::vector<pid_t> all_threads(pid_t process) {
  std::vector<pid_t> threads;
  DIR* const folder = ::opendir(fmt::format("/proc/{}/task", process).c_str());
  while (const dirent* entry = folder ? ::readdir(folder) : nullptr) {
    pid_t thread = 0;
    const std::string_view name = entry->d_name;
    const auto result = std::from_chars(name.data(), name.data() + name.size(), thread);
    if (result.ec == std::errc{}) threads.push_back(thread);
  }
  if (folder) ::closedir(folder);
  std::ranges::sort(threads, {}, [process](pid_t thread) { return std::pair{thread != process, thread}; });
  return threads;
}

std::string thread_name(pid_t process, pid_t thread) {
  std::string name = read_text(fmt::format("/proc/{}/task/{}/comm", process, thread), 64);
  if (name.ends_with('\n')) name.pop_back();
  return name;
}

std::optional<pid_t> process_id(std::string_view text) {
  pid_t id = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), id);
  const bool good = code == std::errc{} && end == text.data() + text.size() && id > 0;
  return good ? std::optional{id} : std::nullopt;
}

/// `4242` or `4242:4243`.
std::optional<StackTarget> target_of(std::string_view text) {
  const auto colon = text.find(':');
  const auto process = process_id(text.substr(0, colon));
  if (!process) return std::nullopt;
  if (colon == std::string_view::npos) return StackTarget{*process, 0};
  const auto thread = process_id(text.substr(colon + 1));
  return thread ? std::optional{StackTarget{*process, *thread}} : std::nullopt;
}

constexpr const char* usage = "usage: torchup-stack [--help] PID[:TID]...\n";
constexpr const char* help =
    "\n"
    "Shows the native functions in which a process is, innermost first: of one thread, or of its threads, the main "
    "one\n"
    "first, at most 32 in all. Each is stopped for less than a millisecond. Needs libdw.so.1 (Debian: libdw1), and "
    "the\n"
    "right to trace the process.\n"
    "\n"
    "Exit codes:\n"
    "  0       all were read\n"
    "  1       one could not be read; its lines say why\n"
    "  2       wrong arguments\n";

}  // namespace

bool is_stack_program(std::string_view argument_zero) {
  return argument_zero.substr(argument_zero.rfind('/') + 1) == stack_program_name;
}

std::vector<NativeThread> read_native_stacks(const dw::Library& library, std::span<const StackTarget> targets) {
  std::vector<NativeThread> result;
  for (const StackTarget& target : targets) {
    std::vector<pid_t> threads{target.thread};
    if (target.thread == 0) threads = all_threads(target.process);
    if (threads.empty()) threads.push_back(target.process);
    std::optional<Session> session;
    if (library.problem.empty()) session.emplace(library, target.process);
    for (const pid_t thread : threads) {
      if (result.size() == native_threads_max) return result;
      NativeThread& one = result.emplace_back();
      one.process = target.process;
      one.thread = thread;
      one.name = thread_name(target.process, thread);
      one.problem = library.problem;
      if (one.name.empty()) one.problem = fmt::format("there is no thread {} of process {}", thread, target.process);
      if (one.problem.empty()) session->unwind(thread, one);
    }
  }
  return result;
}

int run_stack_program(std::span<const std::string> arguments) {
  constexpr int unread_status = 1, refused_status = 2;
  std::vector<StackTarget> targets;
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") {
      return std::printf("%s%s", usage, help) >= 0 && std::fflush(stdout) == 0 ? 0 : unread_status;
    }
    const auto target = target_of(argument);
    if (!target) {
      std::fprintf(stderr, "%storchup-stack: error: '%s' is no process id\n", usage, argument.c_str());
      return refused_status;
    }
    targets.push_back(*target);
  }
  if (targets.empty()) {
    std::fprintf(stderr, "%storchup-stack: error: the following arguments are required: PID\n", usage);
    return refused_status;
  }
  bool all = true;
  for (const NativeThread& thread : read_native_stacks(dw::Library{}, targets)) {
    all = all && thread.problem.empty();
    std::fputs(to_text(thread).c_str(), stdout);
  }
  return std::fflush(stdout) == 0 && all ? 0 : unread_status;
}

}  // namespace torchup

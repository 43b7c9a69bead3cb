#include "launcher/os/diagnosis/native_stack.hpp"

#include <cxxabi.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "launcher/core/diagnosis/elf_symbols.hpp"
#include "launcher/os/diagnosis/thread_copy.hpp"
#include "launcher/os/io/read_text.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {
namespace {

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain{abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                          &std::free};
  return plain ? plain.get() : name;
}

/// What the file holds; nothing where it is none that can be read without waiting for somebody.
std::optional<std::vector<std::string>> names_in(const char* path, std::span<const dw::Address> addresses) {
  const UniqueFd file{::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  const auto read = [&file](std::uint64_t offset, std::size_t bytes) {
    std::string text(bytes, '\0');
    const ssize_t count = ::pread(file.get(), text.data(), text.size(), static_cast<off_t>(offset));
    text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
    return text;
  };
  return elf_function_names(read, addresses);
}

/// One process, as libdw knows it, which is asked for frames alone: their names it would look up in all that a library
/// has. The thread that is unwound is a copy.
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

  /// The frames' addresses, innermost first.
  std::vector<dw::Address> unwind(pid_t thread, NativeThread& result, Patience& patience) {
    result.problem = problem_;
    if (!result.problem.empty()) return {};
    copy_ = copy_thread(process_, thread, patience);
    result.problem = copy_.problem;
    if (!result.problem.empty()) return {};
    pcs_.clear();
    const int end = library_.thread_frames(session_, thread, take_frame, this);
    if (pcs_.empty()) result.problem = end < 0 ? last_error() : "it has no frames";
    result.cut = pcs_.size() > native_frames_max;
    pcs_.resize(std::min(pcs_.size(), native_frames_max));
    return pcs_;
  }

  /// What frames at these addresses are called.
  std::map<dw::Address, std::string> frame_texts(const std::vector<dw::Address>& pcs) const {
    std::map<dw::Module*, std::vector<dw::Address>> modules;
    for (const dw::Address pc : pcs) modules[library_.module_at(session_, pc)].push_back(pc);
    std::map<dw::Address, std::string> texts;
    for (const auto& entry : modules) add_texts(entry.first, entry.second, texts);
    return texts;
  }

 private:
  std::string last_error() const { return library_.error(-1); }

  void add_texts(dw::Module* module, const std::vector<dw::Address>& pcs,
                 std::map<dw::Address, std::string>& texts) const {
    if (!module) {
      for (const dw::Address pc : pcs) texts[pc] = native_frame_text({}, {}, pc);
      return;
    }
    const char* file = nullptr;
    const char* const name = library_.module_info(module, nullptr, nullptr, nullptr, nullptr, nullptr, &file, nullptr);
    const char* const shown = file ? file : name;
    dw::Address bias = 0;
    std::optional<std::vector<std::string>> names;
    if (file && file[0] == '/' && library_.module_elf(module, &bias)) {
      std::vector<dw::Address> addresses = pcs;
      for (dw::Address& address : addresses) address -= bias;
      names = names_in(file, addresses);
    }
    for (std::size_t i = 0; i < pcs.size(); ++i) {
      // What is no such file, as the kernel's own part of a process, is small.
      const char* const symbol = names ? (*names)[i].c_str() : library_.symbol_at(module, pcs[i]);
      const bool known = symbol && *symbol != '\0';
      texts[pcs[i]] = native_frame_text(known ? demangled(symbol) : std::string{}, shown ? shown : "", pcs[i]);
    }
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
  std::vector<pid_t> threads = threads_of(process);
  std::ranges::sort(threads, {}, [process](pid_t thread) { return std::pair{thread != process, thread}; });
  return threads;
}

/// Nothing: there is no such thread. A name may be empty.
std::optional<std::string> thread_name(pid_t process, pid_t thread) {
  std::string name = read_text(fmt::format("/proc/{}/task/{}/comm", process, thread), 64);
  if (name.empty()) return std::nullopt;
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

/// Their names are looked up together, when all have been let go.
void read_threads(const dw::Library& library, pid_t process, std::span<const pid_t> threads, Patience& patience,
                  const std::function<void(const NativeThread&)>& take) {
  std::optional<Session> session;
  if (library.problem.empty() && !threads.empty()) session.emplace(library, process);
  std::vector<NativeThread> read;
  std::vector<std::vector<dw::Address>> frames;
  std::vector<dw::Address> all;
  for (const pid_t thread : threads) {
    NativeThread& one = read.emplace_back();
    one.process = process;
    one.thread = thread;
    one.problem = library.problem;
    const auto name = thread_name(process, thread);
    one.name = name.value_or("");
    if (!name) one.problem = fmt::format("there is no thread {} of process {}", thread, process);
    frames.push_back(one.problem.empty() ? session->unwind(thread, one, patience) : std::vector<dw::Address>{});
    all.insert(all.end(), frames.back().begin(), frames.back().end());
  }
  const auto texts = session ? session->frame_texts(all) : std::map<dw::Address, std::string>{};
  for (std::size_t i = 0; i < read.size(); ++i) {
    for (const dw::Address pc : frames[i]) read[i].frames.push_back(texts.at(pc));
    take(read[i]);
  }
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

void read_native_stacks(const dw::Library& library, std::span<const StackTarget> targets,
                        const std::function<void(const NativeThread&)>& take) {
  std::size_t room = native_threads_max;
  Patience patience;
  for (const StackTarget& target : targets) {
    std::vector<pid_t> threads{target.thread};
    if (target.thread == 0) threads = all_threads(target.process);
    if (threads.empty()) threads.push_back(target.process);
    threads.resize(std::min(threads.size(), room));
    room -= threads.size();
    read_threads(library, target.process, threads, patience, take);
  }
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
  bool written = true;
  read_native_stacks(dw::Library{}, targets, [&](const NativeThread& thread) {
    all = all && thread.problem.empty();
    std::fputs(to_text(thread).c_str(), stdout);
    written = std::fflush(stdout) == 0 && written;  // who reads them may not wait for the others
  });
  return written && all ? 0 : unread_status;
}

}  // namespace torchup

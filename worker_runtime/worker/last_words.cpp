#include "worker_runtime/worker/last_words.hpp"

#include <c10/util/Exception.h>
#include <cxxabi.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <mutex>
#include <string_view>
#include <torchup/error.hpp>
#include <utility>
#include <vector>

#include "worker_runtime/worker/native_frames.hpp"

namespace torchup {

namespace {

/// Bytes of the character, in UTF-8, that `text` begins with; 0: it begins with none.
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t index) { return static_cast<unsigned char>(text[index]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t bytes = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  if (bytes == 0 || bytes > text.size()) return 0;
  for (std::size_t i = 1; i < bytes; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  const unsigned second = byte(1);
  const bool longer_than_needed = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool no_character = (first == 0xED && second > 0x9F) || (first == 0xF4 && second > 0x8F);
  return longer_than_needed || no_character ? 0 : bytes;
}

/// Text in memory that was there before the crash: a signal handler must not allocate.
class Text {
 public:
  Text(char* storage, std::size_t capacity) : begin_{storage}, capacity_{capacity} {}
  Text& operator<<(std::string_view text) {
    const std::size_t count = std::min(text.size(), capacity_ - size_);
    std::memcpy(begin_ + size_, text.data(), count);
    size_ += count;
    return *this;
  }
  Text& number(std::int64_t value, int base = 10) {
    std::array<char, 24> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, base).ptr;
    return *this << std::string_view{digits.data(), end};
  }
  /// As the inside of a JSON string, cut where only `room` bytes are left for what must follow. Bytes that are no UTF-8
  /// (a file's name in another encoding) become the character that stands for such: nobody could read the file else.
  Text& json(std::string_view text, std::size_t room) {
    while (!text.empty() && capacity_ - size_ >= room) {
      const std::size_t bytes = character_bytes(text);
      const std::string_view character = text.substr(0, std::max<std::size_t>(bytes, 1));
      const auto code = static_cast<unsigned char>(character[0]);
      if (bytes == 0) {
        *this << "\\ufffd";
      } else if (code == '"' || code == '\\') {
        *this << "\\" << character;
      } else if (code == '\n') {
        *this << "\\n";
      } else if (code < 0x20) {
        *this << "\\u00" << (code < 0x10 ? "0" : "1");
        *this << std::string_view{&"0123456789abcdef"[code & 15], 1};
      } else {
        *this << character;
      }
      text.remove_prefix(character.size());
    }
    return *this;
  }
  std::string_view view() const { return {begin_, size_}; }

 private:
  char* begin_;
  std::size_t capacity_;
  std::size_t size_ = 0;
};

constexpr std::array fatal_signals{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGQUIT};
constexpr int frames_max = 96;
constexpr unsigned actions_limit_s = 5;   // telling those who wait, over a network that may be gone
constexpr unsigned symbols_limit_s = 20;  // naming the frames reads the symbol tables of half a gigabyte of libraries

// Everything the handlers need, made before the crash and never freed.
struct Scene {
  Speaker speaker;
  std::string temporary_file;
  backtrace_state* symbols = nullptr;
  std::atomic<std::int64_t> step{-1};
  std::atomic<pid_t> speaking{0};  // the thread whose report it is
  std::array<char, 128 << 10> stack_text;
  std::array<char, 320 << 10> file_text;
  std::array<char, 256 << 10> signal_stack;
  std::mutex actions_mutex;
  std::vector<std::pair<FailureAction, void*>> actions;
};

Scene& scene() {
  static Scene* const the_scene = new Scene;
  return *the_scene;
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t done = ::write(fd, text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(done));
  }
  return true;
}

void write_error_file(std::string_view message, std::string_view stack) {
  Scene& s = scene();
  if (s.speaker.error_file.empty()) return;
  Text text{s.file_text.data(), s.file_text.size()};
  constexpr std::size_t stack_room = 128 << 10, end_room = 64;
  constexpr std::size_t facts_room = stack_room + (64 << 10);  // the message comes twice, and may be of any length
  (text << R"({"message": {"message": ")").json(message, facts_room) << R"(", "extraInfo": {"timestamp": ")";
  text.number(::time(nullptr)) << R"(", "rank": )";
  text.number(s.speaker.rank) << R"(, "local_rank": )";
  text.number(s.speaker.local_rank) << R"(, "restart_count": )";
  (text.number(s.speaker.restart_count) << R"(, "host": ")").json(s.speaker.host, stack_room) << R"(", "pid": )";
  text.number(::getpid());
  if (const std::int64_t step = s.step; step >= 0) (text << R"(, "step": )").number(step);
  // Launchers show this field alone, so it says first what happened.
  ((text << R"(, "py_callstack": ")").json(message, stack_room) << R"(\n)").json(stack, end_room) << R"("}}})"
                                                                                                  << "\n";
  const int fd = ::open(s.temporary_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return;
  const bool whole = write_all(fd, text.view());
  ::close(fd);
  if (whole)
    ::rename(s.temporary_file.c_str(), s.speaker.error_file.c_str());
  else
    ::unlink(s.temporary_file.c_str());  // on a full disk the plain report, which is shorter, stays
}

struct Frames {
  std::array<std::uintptr_t, frames_max> at;
  int count = 0;
};

Frames capture() {
  Frames frames;
  backtrace_simple(
      scene().symbols, 1,
      [](void* data, std::uintptr_t at) {
        auto& all = *static_cast<Frames*>(data);
        if (at == ~std::uintptr_t{0} || all.count == frames_max) return 1;
        all.at[static_cast<std::size_t>(all.count++)] = at;
        return 0;
      },
      [](void*, const char*, int) {}, &frames);
  return frames;
}

std::string_view addresses_of(const Frames& frames) {
  Text text{scene().stack_text.data(), scene().stack_text.size()};
  for (int i = 0; i < frames.count; ++i) {
    (text << "#").number(i) << " 0x";
    text.number(static_cast<std::int64_t>(frames.at[static_cast<std::size_t>(i)]), 16) << "\n";
  }
  return text.view();
}

// Frames with the names of functions (static ones too), and file and line where there is debug information.
std::string_view names_of(const Frames& frames) {
  Text text{scene().stack_text.data(), scene().stack_text.size()};
  const auto add_name = [&](const char* mangled) {
    int status = -1;
    char* plain = mangled != nullptr ? abi::__cxa_demangle(mangled, nullptr, nullptr, &status) : nullptr;
    text << (plain != nullptr ? plain : mangled != nullptr ? mangled : "??");
    std::free(plain);
  };
  for (int i = 0; i < frames.count; ++i) {
    struct Place {
      const char* function = nullptr;
      const char* file = nullptr;
      int line = 0;
    } place;
    const std::uintptr_t at = frames.at[static_cast<std::size_t>(i)];
    backtrace_pcinfo(
        scene().symbols, at,
        [](void* data, std::uintptr_t, const char* file, int line, const char* function) {
          if (function != nullptr) *static_cast<Place*>(data) = {function, file, line};
          return 0;
        },
        [](void*, const char*, int) {}, &place);
    if (place.function == nullptr) {
      backtrace_syminfo(
          scene().symbols, at,
          [](void* data, std::uintptr_t, const char* name, std::uintptr_t, std::uintptr_t) {
            static_cast<Place*>(data)->function = name;
          },
          [](void*, const char*, int) {}, &place);
    }
    (text << "#").number(i) << " ";
    add_name(place.function);
    if (place.file != nullptr) (text << " at " << place.file << ":").number(place.line);
    text << " [0x";
    text.number(static_cast<std::int64_t>(at), 16) << "]\n";
  }
  return text.view();
}

std::string_view name_of(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "SIGSEGV";
    case SIGBUS:
      return "SIGBUS";
    case SIGFPE:
      return "SIGFPE";
    case SIGILL:
      return "SIGILL";
    case SIGABRT:
      return "SIGABRT";
    case SIGQUIT:
      return "SIGQUIT";
    default:
      return "signal";
  }
}

std::atomic<int> dying_of{0};

/// One thread reports, and ends the process; others that crash meanwhile wait for that. False: this one speaks already,
/// and what it did for its report crashed too.
bool begin_to_speak() {
  pid_t speaking = 0;
  const pid_t me = ::gettid();
  if (scene().speaking.compare_exchange_strong(speaking, me)) return true;
  while (speaking != me) ::pause();
  return false;
}

[[noreturn]] void die_of(int signal) {
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  ::sigaction(signal, &by_default, nullptr);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  ::raise(signal);
  ::_exit(128 + signal);
}

/// What has a report to finish gives up after that time: what matters is written by then.
void give_up_after(unsigned seconds) {
  struct sigaction give_up {};
  give_up.sa_handler = [](int) {
    if (dying_of != 0) die_of(dying_of);
    ::_exit(1);
  };
  ::sigaction(SIGALRM, &give_up, nullptr);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, SIGALRM);
  ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  ::alarm(seconds);
}

void on_fatal_signal(int signal, siginfo_t* info, void*) {
  if (!begin_to_speak()) die_of(signal);  // the plain report is written
  dying_of = signal;
  std::array<char, 160> storage;
  Text message{storage.data(), storage.size()};
  (message << "Signal ").number(signal) << " (" << name_of(signal) << ")";
  if (signal == SIGSEGV || signal == SIGBUS) {
    message << ": bad access to address 0x";
    message.number(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(info->si_addr)), 16);
  } else if (info->si_code == SI_USER) {
    (message << ", sent by process ").number(info->si_pid);
  }

  // First what needs nothing but system calls, then the names, which need the heap: it may be what is broken.
  give_up_after(symbols_limit_s);
  const Frames frames = capture();
  write_error_file(message.view(), addresses_of(frames));
  const std::string_view stack = names_of(frames);
  write_error_file(message.view(), stack);
  write_all(STDERR_FILENO, message.view());
  write_all(STDERR_FILENO, "\n");
  write_all(STDERR_FILENO, stack);
  die_of(signal);
}

// Called where the exception was thrown: with nobody to catch it, the stack is not unwound first.
[[noreturn]] void on_terminate() {
  Scene& s = scene();
  if (!begin_to_speak()) ::_exit(1);
  give_up_after(actions_limit_s);
  const Frames frames = capture();
  std::string message = "std::terminate was called without an exception";
  std::string detail;
  bool refusal = false;  // ours, said in full by its message: nobody needs the stack on the screen
  if (const std::type_info* type = abi::__cxa_current_exception_type()) {
    int status = -1;
    char* plain = abi::__cxa_demangle(type->name(), nullptr, nullptr, &status);
    const std::string name = plain != nullptr ? plain : type->name();
    std::free(plain);
    try {
      throw;
    } catch (const Error& error) {
      message = name + ": " + error.what();
      refusal = true;
    } catch (const c10::Error& error) {
      message = name + ": " + error.what_without_backtrace();
      detail = error.what();
    } catch (const std::exception& error) {
      message = name + ": " + error.what();
    } catch (...) {
      message = name;
    }
  }
  // What can hang comes after what must not be lost: the file first, then the others, who are told over the network.
  write_error_file(message, addresses_of(frames));
  std::fflush(nullptr);
  const std::string who = fmt::format("torchup: rank {}", s.speaker.rank);
  write_all(STDERR_FILENO, refusal ? fmt::format("{}: {}\n", who, message.substr(message.find(": ") + 2))
                                   : fmt::format("{} ends by an exception: {}\n", who, message));
  {
    const std::lock_guard lock{s.actions_mutex};
    for (auto action = s.actions.rbegin(); action != s.actions.rend(); ++action) {
      action->first(action->second, message.c_str());
    }
  }
  give_up_after(symbols_limit_s);
  std::string stack{names_of(frames)};
  if (!detail.empty()) stack += "LibTorch's own account:\n" + detail;
  write_error_file(message, stack);
  if (!refusal) write_all(STDERR_FILENO, stack);
  ::_exit(1);
}

}  // namespace

void speak_last_words(const Speaker& speaker) {
  Scene& s = scene();
  s.speaker = speaker;
  s.temporary_file = speaker.error_file + ".tmp-" + std::to_string(::getpid());
  if (s.symbols != nullptr) return;
  s.symbols = backtrace_create_state(
      nullptr, 1, [](void*, const char*, int) {}, nullptr);
  capture();  // loads the unwinder now: in a signal handler it must not be loaded

  const stack_t own_stack{s.signal_stack.data(), 0, s.signal_stack.size()};
  ::sigaltstack(&own_stack, nullptr);  // a stack overflow has no room left for its own handler
  for (const int signal : fatal_signals) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    if ((before.sa_flags & SA_SIGINFO) != 0 || before.sa_handler != SIG_DFL) continue;
    struct sigaction ours {};
    ours.sa_sigaction = on_fatal_signal;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigaction(signal, &ours, nullptr);
  }
  std::set_terminate(on_terminate);
}

void set_last_words_step(std::int64_t step) { scene().step.store(step, std::memory_order_relaxed); }

void at_failure(FailureAction action, void* context) {
  const std::lock_guard lock{scene().actions_mutex};
  scene().actions.emplace_back(action, context);
}

void cancel_at_failure(void* context) {
  const std::lock_guard lock{scene().actions_mutex};
  std::erase_if(scene().actions, [&](const auto& entry) { return entry.second == context; });
}

}  // namespace torchup

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>

#include "rendezvous/base/worker_page.hpp"
#include "tests/support/uninterruptible.hpp"

/// A worker that does what its arguments say, one after the other:
///
///   note FILE      append "<local rank> <pid> <restart count>" to FILE
///   ignore SIGNAL  ignore a signal by number        on SIGNAL CODE  exit with CODE when it comes
///   child          leave a child behind in a session of its own, without environment, deaf to SIGTERM
///   say TEXT       a line on stdout                 hang            stop in the middle of this process: raise SIGSTOP
///   sleep SECONDS  then go on                       wait            for ever
///   await FILE N   go on when FILE has N lines: so many workers have noted that they are there
///   exit CODE      kill SIGNAL   itself             fail_first CODE exit with CODE unless this is a restart
///   fail_first_wait  wait for ever unless this is a restart
///   uninterruptible   sleep so (state D), as before a file server that is gone
///   only RANK      the rest is for this local rank only; others wait for ever
///   stamp FILE     append the monotonic time in nanoseconds to FILE
///   step N         end step N in the page that the agent gave us
///   late SIGNAL CODE  exit with CODE a second after it comes; a second one in that time changes nothing
///   drained CODE   wait until the agent asks over the page to save, then exit with CODE
///   heir SECONDS FILE  leave a child behind in a session of its own that appends a line to FILE after that time,
///   unless
///                  a signal ends it
///   timer SIGNAL   set a watchdog timer named "fake" that is over already
///   flood          write 24 MiB to stdout, from a process and session of its own
///   only_reads     read two bytes of stdin at once and print them
///   descriptors    print the open descriptors above 2
namespace {

volatile std::sig_atomic_t exit_code_on_signal = 0;

void exit_on_signal(int) { ::_exit(exit_code_on_signal); }

void exit_late(int) {
  const timespec second{1, 0};
  ::nanosleep(&second, nullptr);
  ::_exit(exit_code_on_signal);
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

void wait_for_ever() {
  while (true) ::pause();
}

void append(const char* path, const std::string& line) {
  const int file = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0 || ::write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::perror(path);
  ::close(file);
}

void await_lines(const char* path, long count) {
  while (true) {
    std::ifstream file{path};
    if (std::count(std::istreambuf_iterator<char>{file}, {}, '\n') >= count) return;
    ::usleep(1000);
  }
}

void leave_child() {
  if (::fork() != 0) return;
  ::setsid();
  if (::fork() != 0) ::_exit(0);
  ::clearenv();
  ::signal(SIGTERM, SIG_IGN);
  ::close(STDOUT_FILENO);
  ::close(STDERR_FILENO);
  wait_for_ever();
}

void leave_heir(double seconds, const char* file) {
  if (::fork() != 0) return;
  ::setsid();
  if (::fork() != 0) ::_exit(0);
  ::close(STDOUT_FILENO);
  ::close(STDERR_FILENO);
  ::usleep(static_cast<useconds_t>(seconds * 1e6));
  append(file, "tidied\n");
  ::_exit(0);
}

void set_expired_timer(int number) {
  const std::string line = "{\"version\": 1, \"pid\": " + std::to_string(::getpid()) +
                           ", \"scope_id\": \"fake\", \"expiration_time\": 1.0, \"signal\": " + std::to_string(number) +
                           "}\n";
  append(variable("TORCHELASTIC_TIMER_FILE").c_str(), line);
}

/// Fills whatever is between it and a reader, and waits there, longer than its worker lives.
void flood() {
  if (::fork() != 0) return;
  ::setsid();
  const std::string line(1023, 'x');
  for (int i = 0; i < 24 * 1024; ++i) std::puts(line.c_str());
  std::fflush(stdout);
  ::_exit(0);
}

void print_two_bytes_of_stdin() {
  char bytes[3] = {};
  if (::read(STDIN_FILENO, bytes, 2) == 2) std::fputs(bytes, stdout);
}

void print_descriptors() {
  for (int fd = 3; fd < 1024; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) std::printf("descriptor %d\n", fd);
  }
  std::printf("descriptors listed\n");
}

/// As the C++ runtime does it: the one number that counts is written last.
char* page() {
  static char* const opened = [] {
    const auto address = torchup::parse_worker_page_address(variable(torchup::worker_page_variable));
    if (!address || address->pid != ::getpid()) {
      std::fputs("fake_worker: no page for us\n", stderr);
      ::_exit(98);
    }
    void* const memory =
        ::mmap(nullptr, torchup::worker_page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, address->fd, 0);
    if (memory == MAP_FAILED) ::_exit(97);
    return static_cast<char*>(memory);
  }();
  return opened;
}

void wait_for_drain() {
  const volatile char* const asked = page() + torchup::worker_page::drain;
  while (*asked == 0) ::usleep(1000);
}

void end_step(std::int64_t step) {
  namespace wp = torchup::worker_page;
  const auto put = [](std::size_t offset, auto value) { std::memcpy(page() + offset, &value, sizeof value); };
  std::uint64_t beats = 0;
  std::memcpy(&beats, page() + wp::newest, sizeof beats);
  ++beats;
  put(wp::magic, wp::magic_value);
  put(wp::pid, std::int64_t{::getpid()});
  const std::size_t slot = wp::beats + (beats % 2) * wp::beat_bytes;
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  put(slot + wp::beat_step, step);
  put(slot + wp::beat_time, std::int64_t{now.tv_sec * 1'000'000'000L + now.tv_nsec});
  put(slot + wp::beat_number, beats);
  put(wp::newest, beats);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string rank = variable("LOCAL_RANK");
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto next = [&] { return i + 1 < argc ? argv[++i] : nullptr; };
    if (word == "note") {
      append(next(), rank + " " + std::to_string(::getpid()) + " " + variable("TORCHELASTIC_RESTART_COUNT") + "\n");
    } else if (word == "step") {
      end_step(std::atoll(next()));
    } else if (word == "stamp") {
      timespec now{};
      ::clock_gettime(CLOCK_MONOTONIC, &now);
      append(next(), std::to_string(now.tv_sec * 1'000'000'000L + now.tv_nsec) + "\n");
    } else if (word == "ignore") {
      ::signal(std::atoi(next()), SIG_IGN);
    } else if (word == "on") {
      const int number = std::atoi(next());
      exit_code_on_signal = std::atoi(next());
      ::signal(number, exit_on_signal);
    } else if (word == "late") {
      const int number = std::atoi(next());
      exit_code_on_signal = std::atoi(next());
      ::signal(number, exit_late);
    } else if (word == "drained") {
      wait_for_drain();
      return std::atoi(next());
    } else if (word == "heir") {
      const double seconds = std::atof(next());
      leave_heir(seconds, next());
    } else if (word == "timer") {
      set_expired_timer(std::atoi(next()));
    } else if (word == "flood") {
      flood();
    } else if (word == "only_reads") {
      print_two_bytes_of_stdin();
    } else if (word == "child") {
      leave_child();
    } else if (word == "say") {
      std::puts(next());
      std::fflush(stdout);
    } else if (word == "hang") {
      ::raise(SIGSTOP);
    } else if (word == "sleep") {
      ::usleep(static_cast<useconds_t>(std::atof(next()) * 1e6));
    } else if (word == "await") {
      const char* const path = next();
      await_lines(path, std::atol(next()));
    } else if (word == "wait") {
      wait_for_ever();
    } else if (word == "exit") {
      return std::atoi(next());
    } else if (word == "kill") {
      ::kill(::getpid(), std::atoi(next()));
    } else if (word == "fail_first") {
      const int code = std::atoi(next());
      if (variable("TORCHELASTIC_RESTART_COUNT") == "0") return code;
    } else if (word == "fail_first_wait") {
      if (variable("TORCHELASTIC_RESTART_COUNT") == "0") wait_for_ever();
    } else if (word == "uninterruptible") {
      torchup::test::sleep_uninterruptibly([] {});
    } else if (word == "only") {
      if (rank != next()) wait_for_ever();
    } else if (word == "descriptors") {
      print_descriptors();
    } else {
      std::fprintf(stderr, "fake_worker: what is %s?\n", word.c_str());
      return 99;
    }
  }
  return 0;
}

#include "launcher/core/text/signals.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>

#include "launcher/core/text/python_numbers.hpp"

namespace torchup {
namespace {

/// What a shell adds to a signal's number.
constexpr int shell_base = 128;

struct SignalName {
  int number;
  std::string_view name;  ///< without SIG
};
constexpr std::array signal_table = {
    SignalName{SIGHUP, "HUP"},   SignalName{SIGINT, "INT"},       SignalName{SIGQUIT, "QUIT"},
    SignalName{SIGILL, "ILL"},   SignalName{SIGTRAP, "TRAP"},     SignalName{SIGABRT, "ABRT"},
    SignalName{SIGBUS, "BUS"},   SignalName{SIGFPE, "FPE"},       SignalName{SIGKILL, "KILL"},
    SignalName{SIGUSR1, "USR1"}, SignalName{SIGSEGV, "SEGV"},     SignalName{SIGUSR2, "USR2"},
    SignalName{SIGPIPE, "PIPE"}, SignalName{SIGALRM, "ALRM"},     SignalName{SIGTERM, "TERM"},
    SignalName{SIGCHLD, "CHLD"}, SignalName{SIGSTKFLT, "STKFLT"}, SignalName{SIGCONT, "CONT"},
    SignalName{SIGSTOP, "STOP"}, SignalName{SIGTSTP, "TSTP"},     SignalName{SIGTTIN, "TTIN"},
    SignalName{SIGTTOU, "TTOU"}, SignalName{SIGURG, "URG"},       SignalName{SIGXCPU, "XCPU"},
    SignalName{SIGXFSZ, "XFSZ"}, SignalName{SIGVTALRM, "VTALRM"}, SignalName{SIGPROF, "PROF"},
    SignalName{SIGIO, "IO"},     SignalName{SIGWINCH, "WINCH"},   SignalName{SIGPWR, "PWR"},
    SignalName{SIGSYS, "SYS"}};

}  // namespace

std::string signal_name(int signal) {
  // The C library keeps some of the real-time signals for itself, so these two are known at run time only.
  if (signal == SIGRTMIN) return "SIGRTMIN";
  if (signal == SIGRTMAX) return "SIGRTMAX";
  const auto found = std::ranges::find(signal_table, signal, &SignalName::number);
  return found == signal_table.end() ? "" : fmt::format("SIG{}", found->name);
}

std::string signal_text(int signal) {
  const std::string name = signal_name(signal);
  return name.empty() ? fmt::format("signal {}", signal) : name;
}

std::optional<int> signal_number(std::string_view name) {
  if (const auto number = python_int(name); number && *number > 0 && *number <= SIGRTMAX)
    return static_cast<int>(*number);
  if (name.starts_with("SIG")) name.remove_prefix(3);
  if (name == "RTMIN") return SIGRTMIN;
  if (name == "RTMAX") return SIGRTMAX;
  const auto found = std::ranges::find(signal_table, name, &SignalName::name);
  return found == signal_table.end() ? std::nullopt : std::optional{found->number};
}

bool is_for_users(int signal) {
  constexpr std::array taken{SIGKILL, SIGSTOP, SIGSEGV, SIGBUS,  SIGFPE,  SIGILL,  SIGTRAP,  SIGSYS, SIGABRT,
                             SIGPIPE, SIGTTIN, SIGTTOU, SIGCHLD, SIGTSTP, SIGCONT, SIGWINCH, SIGURG};
  return std::find(taken.begin(), taken.end(), signal) == taken.end();
}

int shell_code(int signal) { return shell_base + signal; }

std::optional<int> signal_of_shell_code(int exit_code) {
  if (exit_code <= shell_base || exit_code > shell_base + SIGRTMAX) return std::nullopt;
  return exit_code - shell_base;
}

}  // namespace torchup

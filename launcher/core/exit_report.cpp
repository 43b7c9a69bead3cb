#include "launcher/core/exit_report.hpp"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>

namespace torchup {
namespace {

constexpr std::size_t rule_width_max = 60;

/// Characters as Python counts them: code points.
std::size_t text_width(std::string_view line) {
  return static_cast<std::size_t>(
      std::count_if(line.begin(), line.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::size_t longest_line(std::string_view text) {
  std::size_t width = 0;
  for (;;) {
    const auto at = text.find('\n');
    width = std::max(width, text_width(text.substr(0, at)));
    if (at == std::string_view::npos) return width;
    text.remove_prefix(at + 1);
  }
}

std::string entry(std::size_t index, const WorkerFailure& failure, const LocalTime& local_time) {
  const std::string name = failure.exit_code < 0 ? signal_name(-failure.exit_code) : "";
  std::string text = "[";
  text += std::to_string(index);
  text += "]:\n  time      : " + local_time(failure.time_us);
  text += "\n  host      : " + failure.host;
  text += "\n  rank      : " + std::to_string(failure.rank.value());
  text += " (local_rank: " + std::to_string(failure.local_rank.value()) + ")";
  text += "\n  exitcode  : " + std::to_string(failure.exit_code) + " (pid: " + std::to_string(failure.pid) + ") ";
  if (!name.empty()) text += " (" + name + ")";
  text += "\n  error_file: " + (failure.error_file.empty() ? "<N/A>" : failure.error_file);
  text += "\n  traceback : ";
  text += failure.message.empty() ? default_failure_message(failure.exit_code, failure.pid) : failure.message;
  return text;
}

}  // namespace

std::size_t root_cause(const std::vector<WorkerFailure>& failures) {
  const auto second = [](const WorkerFailure& failure) { return failure.time_us / 1'000'000; };
  const auto first = std::min_element(failures.begin(), failures.end(),
                                      [&](const auto& a, const auto& b) { return second(a) < second(b); });
  return static_cast<std::size_t>(first - failures.begin());
}

std::string exit_report(std::string_view name, const std::vector<WorkerFailure>& failures,
                        const LocalTime& local_time) {
  const std::string title = std::string{name} + " FAILED";
  const std::size_t root = root_cause(failures);
  std::size_t width = text_width(title);
  std::string others;
  std::string cause;
  for (std::size_t index = 0; index < failures.size(); ++index) {
    const std::string text = entry(index, failures[index], local_time);
    width = std::max(width, longest_line(text));
    if (index == root)
      cause = text;
    else
      others += (others.empty() ? "" : "\n") + text;
  }
  width = std::min(width, rule_width_max);
  const std::string border(width, '=');
  const std::string section(width, '-');
  return "\n" + border + "\n" + title + "\n" + section + "\nFailures:\n" +
         (others.empty() ? "  <NO_OTHER_FAILURES>" : others) + "\n" + section +
         "\nRoot Cause (first observed failure):\n" + cause + "\n" + border;
}

std::string signal_name(int signal) {
  static const std::map<int, std::string> names{
      {SIGHUP, "SIGHUP"},    {SIGINT, "SIGINT"},       {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},
      {SIGTRAP, "SIGTRAP"},  {SIGABRT, "SIGABRT"},     {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
      {SIGKILL, "SIGKILL"},  {SIGUSR1, "SIGUSR1"},     {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"},
      {SIGPIPE, "SIGPIPE"},  {SIGALRM, "SIGALRM"},     {SIGTERM, "SIGTERM"}, {SIGSTKFLT, "SIGSTKFLT"},
      {SIGCHLD, "SIGCHLD"},  {SIGCONT, "SIGCONT"},     {SIGSTOP, "SIGSTOP"}, {SIGTSTP, "SIGTSTP"},
      {SIGTTIN, "SIGTTIN"},  {SIGTTOU, "SIGTTOU"},     {SIGURG, "SIGURG"},   {SIGXCPU, "SIGXCPU"},
      {SIGXFSZ, "SIGXFSZ"},  {SIGVTALRM, "SIGVTALRM"}, {SIGPROF, "SIGPROF"}, {SIGWINCH, "SIGWINCH"},
      {SIGIO, "SIGIO"},      {SIGPWR, "SIGPWR"},       {SIGSYS, "SIGSYS"},   {SIGRTMIN, "SIGRTMIN"},
      {SIGRTMAX, "SIGRTMAX"}};
  const auto found = names.find(signal);
  return found == names.end() ? "" : found->second;
}

std::string signal_text(int signal) {
  const std::string name = signal_name(signal);
  return name.empty() ? "signal " + std::to_string(signal) : name;
}

std::string default_failure_message(int exit_code, std::int64_t pid) {
  if (exit_code >= 0) return "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";
  const std::string name = signal_name(-exit_code);
  return "Signal " + std::to_string(-exit_code) + " (" + (name.empty() ? "<N/A>" : name) + ") received by PID " +
         std::to_string(pid);
}

}  // namespace torchup

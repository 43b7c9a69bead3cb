#include "launcher/ctl/explanation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <span>

#include "launcher/core/options/exit_codes.hpp"
#include "launcher/core/text/signals.hpp"

namespace torchup {
namespace {

struct Told {
  int code = 0;
  std::string_view meaning;
  std::string_view remedy;
};

/// Beside the meanings that launcher/core/options/exit_codes has.
constexpr std::array launcher_remedies{
    Told{1, "",
         "the failure report on stderr names the rank that failed first and its last lines; torchupctl events, "
         "or the file of --result-file, has the rest; --max-restarts=N starts the workers again"},
    Told{2, "", "the line on stderr names the option; torchup --help lists all of them, --dry-run shows the plan"},
    Told{65, "", "torchup --preflight-only shows what each node lacks; take the node out, or ask for less"},
    Told{66, "",
         "see who is missing in the line that tells whom it waited for; --rdzv-conf=join_timeout=S waits "
         "longer, --nnodes=MIN:MAX begins with fewer"},
    Told{67, "",
         "is the endpoint's host up, the port the right one, and no firewall between? torchupctl --endpoint "
         "HOST:PORT ps asks it"},
    Told{68, "",
         "start the same version with the same options and token on all nodes; the line on stderr names what "
         "differs"},
    Told{70, "", "this is a fault of torchup: please report it with the lines on stderr"},
    Told{75, "", "start the job again with the same command line; --requeue=N lets Slurm do it"},
};

constexpr std::array worker_codes{
    Told{0, "the worker has done its work", ""},
    Told{1, "the program failed; for Python an exception that nobody caught",
         "its traceback stands in the failure report "
         "and in its log (torchupctl logs)"},
    Told{2, "the program refused its command line; for Python also a file that is not there",
         "look at the arguments "
         "behind the program"},
    Told{75, "the worker has saved its state and asks to be started again; no failure", "start the job again"},
    Told{126, "the program is there and cannot be executed", "chmod +x it, or is it for another kind of machine?"},
    Told{127, "the program, or a library that it needs, was not found",
         "is it on PATH on every node? ldd shows "
         "libraries that are missing"},
};

constexpr std::array worker_signals{
    Told{SIGHUP, "a terminal was closed, or somebody sent it", "start the job under nohup, tmux or a scheduler"},
    Told{SIGINT, "somebody pressed Ctrl-C, or sent it", ""},
    Told{SIGQUIT, "somebody pressed Ctrl-\\, or sent it", ""},
    Told{SIGILL, "an instruction that this processor does not have",
         "a library was built for a newer processor; take "
         "another build of it"},
    Told{SIGTRAP, "a breakpoint or an assertion of a compiled program", "look at its last lines"},
    Told{SIGABRT,
         "the program ended itself: an assertion, an uncaught C++ exception, or the watchdog of NCCL where a "
         "collective took too long",
         "its last lines name which; for NCCL see which rank did not come (torchupctl stacks)"},
    Told{SIGBUS, "memory that could not be backed: often /dev/shm is full, or a mapped file became shorter",
         "df -h /dev/shm; in containers --shm-size or an emptyDir with medium Memory; fewer workers of the DataLoader"},
    Told{SIGFPE, "a division by zero of whole numbers", "its native stack stands in the incident record"},
    Told{SIGKILL, "somebody killed it; where nobody did it was the kernel, for memory had run out",
         "dmesg, or memory.events of its cgroup, says whether; smaller batches, fewer workers of the DataLoader, or "
         "more "
         "memory for the job"},
    Told{SIGSEGV, "it used memory that is not its own: a fault in native code, in an extension or a driver",
         "its native stack stands in the incident record; torchupctl stacks --native shows the others"},
    Told{SIGPIPE, "it wrote to a pipe that nobody reads", ""},
    Told{SIGTERM, "it was asked to end: by torchup after a failure elsewhere, by a scheduler, or by somebody",
         "see the rank that failed first; this one may be a consequence"},
    Told{SIGXCPU, "its limit of processor time is over", "ulimit -t"},
    Told{SIGXFSZ, "a file became larger than its limit allows", "ulimit -f"},
    Told{SIGSYS, "a system call that is forbidden to it", "look at the container's seccomp profile"},
};

template <class Table>
const Told* told_of(const Table& table, int code) {
  const auto found = std::ranges::find(table, code, &Told::code);
  return found == table.end() ? nullptr : &*found;
}

/// -9, 137, SIGKILL: a signal. 1: a code.
struct Meant {
  int code = 0;  ///< as a shell has it
  std::optional<int> signal = {};
  bool by_name = false;
};

std::optional<Meant> meant_by(std::string_view word) {
  int number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc{} || end != word.data() + word.size()) {
    const bool digits = word.find_first_not_of("0123456789") == std::string_view::npos;
    const auto signal = digits ? std::nullopt : signal_number(word);
    return signal ? std::optional{Meant{shell_code(*signal), signal, true}} : std::nullopt;
  }
  if (number < 0) {
    if (number < -SIGRTMAX) return std::nullopt;
    return Meant{shell_code(-number), -number, true};
  }
  if (number > 255) return std::nullopt;
  return Meant{number, signal_of_shell_code(number), false};
}

Explanation::Part launcher_part(const Meant& meant) {
  if (meant.signal) {
    return {"launcher",
            fmt::format("the job was ended by {}: somebody sent it to the launcher, or torchupctl stop did",
                        signal_text(*meant.signal)),
            *meant.signal == SIGKILL ? "no launcher can say anything after it; its workers are gone, too" : ""};
  }
  const std::span<const ExitCode> codes = exit_codes();
  const auto found = std::ranges::find(codes, fmt::format("{}", meant.code), &ExitCode::code);
  if (found == codes.end())
    return {"launcher", "no code of its own; with --propagate-exit-code it is that of the worker that failed first",
            ""};
  const Told* const remedy = told_of(launcher_remedies, meant.code);
  return {"launcher", std::string{found->meaning}, remedy ? std::string{remedy->remedy} : ""};
}

Explanation::Part worker_part(const Meant& meant) {
  const Told* const told = meant.signal ? told_of(worker_signals, *meant.signal) : told_of(worker_codes, meant.code);
  const std::string how = meant.signal ? fmt::format("ended by {}: ", signal_text(*meant.signal)) : "";
  if (told && !told->meaning.empty()) return {"worker", how + std::string{told->meaning}, std::string{told->remedy}};
  if (meant.signal) return {"worker", how + "somebody sent it", ""};
  return {"worker", "the program's own code; what it means stands in the program",
          "its last lines stand in the failure "
          "report and in its log"};
}

}  // namespace

std::optional<Explanation> explain(std::string_view word) {
  const auto meant = meant_by(word);
  if (!meant) return std::nullopt;
  Explanation explanation;
  explanation.title = meant->signal && meant->by_name
                          ? fmt::format("{}: signal {}, in a shell exit code {}", signal_text(*meant->signal),
                                        *meant->signal, meant->code)
                          : fmt::format("exit code {}", meant->code);
  explanation.parts = {launcher_part(*meant), worker_part(*meant)};
  return explanation;
}

std::string explanation_text(const Explanation& explanation) {
  std::string text = explanation.title + "\n";
  for (const auto& [who, meaning, remedy] : explanation.parts) {
    text += fmt::format("  as the {}'s: {}\n", who, meaning);
    if (!remedy.empty()) text += fmt::format("    {}\n", remedy);
  }
  return text;
}

}  // namespace torchup

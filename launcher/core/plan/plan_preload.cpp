#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "launcher/core/plan/plan_steps.hpp"
#include "launcher/core/plan/worker_command.hpp"
#include "launcher/core/text/text.hpp"
#include "rendezvous/base/template_mark.hpp"

namespace torchup {
namespace {

/// Stands for a program that no Python runs.
constexpr const char* program_word = "program";

/// One name of Python's, or several with dots between. A byte beyond ASCII may be part of one.
bool is_module_name(std::string_view name) {
  for (const std::string_view part : split(name, '.')) {
    const auto belongs = [](unsigned char c) { return c >= 0x80 || c == '_' || std::isalnum(c) != 0; };
    if (part.empty() || std::isdigit(static_cast<unsigned char>(part.front())) != 0) return false;
    if (!std::ranges::all_of(part, belongs)) return false;
  }
  return true;
}

/// Whether no word up to the program's name depends on the local rank.
bool same_program_for_all(const WorkerProgram& program) {
  const auto words = [&](int local_rank) {
    std::vector<std::string> command = worker_command(program, LocalRank{local_rank});
    command.resize(program.arguments_at);
    return command;
  };
  return words(0) == words(1);
}

/// Whether none at all does: a program's main may look at its arguments before it comes to worker_main.
bool same_arguments_for_all(const WorkerProgram& program) {
  return worker_command(program, LocalRank{0}) == worker_command(program, LocalRank{1});
}

Result<std::vector<std::string>> modules_of(const std::string& value, const WorkerProgram& program) {
  std::vector<std::string> modules;
  for (const std::string_view entry : split(value, ',')) {
    const std::string_view name = stripped(entry);
    if (!is_module_name(name)) {
      return bad(fmt::format("--preload={} is no comma list of Python modules, for instance torch,my.models", value));
    }
    modules.emplace_back(name);
  }
  if (!program.python) {
    return bad(fmt::format("--preload is for programs that Python runs, and {} is started itself ({})", program.title,
                           program.reason));
  }
  return modules;
}

/// Errors: this program cannot be a template.
Result<> check_program(const WorkerProgram& program) {
  if (program.python) {
    return bad(
        fmt::format("--preload={} is for C++ programs on torchup's worker_runtime, and {} is run by Python ({}): "
                    "name the modules that it imports, for instance --preload=torch",
                    program_word, program.title, program.reason));
  }
  if (!program.template_mark) {
    return bad(
        fmt::format("--preload={}: {} has no mark of torchup's worker_main ({}): name a program that is linked "
                    "with torchup::worker_runtime and calls worker_main, or leave --preload out",
                    program_word, program.title, program.reason));
  }
  if (*program.template_mark != TemplateMark::protocol) {
    return bad(
        fmt::format("--preload={}: {} was built with another release of torchup (its mark is of version {}, this "
                    "launcher's {}): build it again with this one, or leave --preload out",
                    program_word, program.title, *program.template_mark, TemplateMark::protocol));
  }
  return {};
}

}  // namespace

Result<> plan_preload(const PlanSource& source, LaunchConfig& plan) {
  const auto& [options, words, legacy, machine] = source;
  if (!options.has("preload") || plan.preflight.only) return {};
  const std::string value = options.text("preload");
  std::vector<std::string> what{program_word};
  if (stripped(value) == program_word) {
    if (auto checked = check_program(plan.program); !checked) return checked;
  } else {
    auto modules = modules_of(value, plan.program);
    if (!modules) return modules.error();
    what = *std::move(modules);
  }
  if (options.has("numa-binding")) {
    for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"}) {
      if (!machine.variable(name)) continue;
      warn(plan, fmt::format("--preload: with --numa-binding and {} the threads' processors are chosen when a library "
                             "is loaded; workers are started without it",
                             name));
      return {};
    }
  }
  if (!same_program_for_all(plan.program)) {
    warn(plan, fmt::format("--preload: {} is another program for each worker; workers are started without it",
                           plan.program.command[plan.program.arguments_at - 1]));
    return {};
  }
  if (!plan.program.python && !same_arguments_for_all(plan.program)) {
    warn(plan,
         fmt::format("--preload: {} has other arguments for each worker, and may look at them before worker_main; "
                     "workers are started without it",
                     plan.program.title));
    return {};
  }
  plan.preload = std::move(what);
  return {};
}

}  // namespace torchup

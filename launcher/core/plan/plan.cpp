#include "launcher/core/plan/plan.hpp"

#include <algorithm>
#include <array>

#include "launcher/core/plan/plan_rehearsal.hpp"
#include "launcher/core/plan/plan_steps.hpp"
#include "launcher/core/plan/worker_command.hpp"

namespace torchup {
namespace {

Result<> plan_program(const PlanSource& source, LaunchConfig& plan) {
  const auto& [options, words, legacy, machine] = source;
  plan.share_store = plan.preflight.only || machine.variable("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1" ||
                     plan.rendezvous.backend == Backend::static_;
  ProgramRequest request;
  request.words = plan.preflight.only ? std::vector<std::string>{"a program"} : words;  // whatever stands there
  request.module = options.flag("module") || plan.preflight.only;
  request.no_python = options.flag("no-python");
  request.run_path = options.flag("run-path");
  request.python = machine.variable("PYTHON_EXEC").value_or("");
  request.caller = machine.variable(caller_variable).value_or("");
  request.pass_local_rank = legacy;
  if (!legacy) plan.parent_error_file = machine.variable("TORCHELASTIC_ERROR_FILE").value_or("");
  auto program = choose_program(request, machine.program, machine.pythons);
  if (program && program->python) plan.preflight.python = program->executable;
  if (plan.preflight.only) return {};  // also without a Python
  if (!program) return program.error();
  plan.program = *std::move(program);
  // A program with our mark tells of itself without one.
  plan.worker_hook = !options.flag("no-worker-hook") && !plan.program.template_mark;
  return {};
}

}  // namespace

Duration seconds_of(double seconds) {
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>{std::min(seconds, std::chrono::duration<double>{duration_max}.count())});
}

Result<LaunchConfig> make_plan(const OptionValues& options, const std::vector<std::string>& words, bool legacy,
                               const Machine& machine) {
  using Step = Result<> (*)(const PlanSource&, LaunchConfig&);
  constexpr std::array<Step, 17> steps{plan_backend,   plan_nodes,         plan_workers,   plan_conf,    plan_output,
                                       plan_stop_time, plan_virtual_ranks, plan_stop,      plan_signals, plan_restarts,
                                       plan_hangs,     plan_checks,        plan_rehearsal, plan_outside, plan_program,
                                       plan_preload,   plan_operations};
  OptionValues own = in_rehearsed_nodes(options, machine.rehearsed);
  LaunchConfig plan;
  if (machine.linked) {
    hear_front(machine, own, plan);
  } else if (auto heard = hear_scheduler(machine, own, plan); !heard) {
    return heard.error();
  }
  const PlanSource source{own, words, legacy, machine};
  for (const Step step : steps) {
    if (auto done = step(source, plan); !done) return done.error();
  }
  if (machine.linked) take_place(*machine.linked, plan);
  name_origins(source, plan);
  return plan;
}

}  // namespace torchup

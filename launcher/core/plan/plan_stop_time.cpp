#include <fmt/format.h>

#include "launcher/core/plan/plan_steps.hpp"
#include "launcher/core/scheduler/slurm_job.hpp"
#include "launcher/core/scheduler/stop_time.hpp"
#include "launcher/core/text/text.hpp"

namespace torchup {
namespace {

constexpr std::int64_t unix_seconds_max = std::int64_t{1} << 33;  ///< in 2242; a Duration has room for it

/// A program of Slurm's; empty: it is not there.
std::string slurm_program(const Machine& machine, const std::string& name) {
  const auto found = machine.program(name, Where::path_list);
  return found && found->executable ? found->path : "";
}

Result<> read_deadline(const OptionValues& options, LaunchConfig& plan) {
  if (!options.has("deadline")) return {};
  const auto end = options.integer("deadline", 0);
  if (!end) return end.error();
  if (*end < 0 || *end > unix_seconds_max) {
    return bad(fmt::format("--deadline={} is no time in seconds since 1970", *end));
  }
  plan.deadline = *end;
  return {};
}

Result<> read_stop(const PlanSource& source, const std::optional<SlurmJob>& job, LaunchConfig& plan) {
  const auto& [options, words, legacy, machine] = source;
  if (!options.has("stop-before")) return {};
  const std::string text = options.text("stop-before");
  auto stop = parse_stop_before(text);
  if (!stop) return bad(fmt::format("--stop-before={} {}", text, stop.error().context));
  if (job && !options.given("deadline")) {
    stop->squeue = slurm_program(machine, "squeue");
    stop->slurm_job = job->id;
  }
  if (!plan.deadline && stop->slurm_job.empty()) {
    return bad("--stop-before: nobody says when the time of this job ends; --deadline=UNIX_SECONDS does");
  }
  plan.stop_before = *std::move(stop);
  return {};
}

/// What this node may be the only one to be refused for. Of several the others wait for it, and are told then.
Result<> refuse_with_others(std::string why, LaunchConfig& plan) {
  const bool others_wait = plan.scheduler.node && !plan.one_node() && !plan.behind_front;
  if (!others_wait) return bad(std::move(why));
  plan.gives_up = std::move(why);
  plan.gives_up_code = exit_code::refused;
  plan.stop_before.reset();  // it does not end for the sake of a time before the others have heard why
  return {};
}

/// By node 0 alone; of agents that are each a job of its own by the step's first.
bool is_first(const PlanSource& source, const LaunchConfig& plan) {
  if (plan.scheduler.node) return plan.scheduler.node == 0;
  const auto zero = [&](std::string_view name) { return source.machine.variable(name).value_or("0") == "0"; };
  return zero("SLURM_NODEID") && zero("SLURM_LOCALID");
}

Result<> read_requeue(const PlanSource& source, const std::optional<SlurmJob>& job, LaunchConfig& plan) {
  const OptionValues& options = source.options;
  if (!options.has("requeue")) return {};
  const auto most = options.integer("requeue", 0);
  if (!most) return most.error();
  if (*most < 0 || *most > requeues_max) {
    return bad(fmt::format("--requeue={} is no number from 0 to {}", *most, requeues_max));
  }
  if (!job) return bad(fmt::format("--requeue={}: this is no job of Slurm", *most));
  if (!is_first(source, plan)) return {};
  RequeueConfig requeue{.most = static_cast<int>(*most),
                        .restarts = job->restarts,
                        .slurm_job = job->id,
                        .scontrol = slurm_program(source.machine, "scontrol")};
  if (requeue.scontrol.empty()) {
    return refuse_with_others(fmt::format("--requeue={}: scontrol, which does it, is not on PATH", *most), plan);
  }
  plan.requeue = std::move(requeue);
  return {};
}

Result<std::optional<Duration>> told_time_left(const Machine& machine, const StopBefore& stop) {
  if (stop.squeue.empty()) return fail(errc::missing_value, "squeue, which tells it, is not on PATH");
  const auto answer = machine.time_left(stop.squeue, stop.slurm_job);
  return answer ? read_time_left(*answer) : Result<std::optional<Duration>>{answer.error()};
}

/// Where the first node does not know either, none runs.
Result<> go_without_deadline(const Error& why, LaunchConfig& plan) {
  const std::string text = fmt::format("--stop-before: when the time of this job ends is not known: {}", why.message());
  if (plan.scheduler.node.value_or(0) == 0) return refuse_with_others(text + "; --deadline=UNIX_SECONDS", plan);
  plan.stop_before->untold = true;
  warn(plan, text + "; this node stops when another one does");
  return {};
}

}  // namespace

Result<> plan_stop_time(const PlanSource& source, LaunchConfig& plan) {
  const OptionValues& options = source.options;
  if (auto read = read_deadline(options, plan); !read) return read;
  const bool wanted = options.has("stop-before") || options.has("requeue");
  if (!wanted) return {};
  const auto job = plan.scheduler.asked ? slurm_job(source.machine.variable) : Result<std::optional<SlurmJob>>{};
  if (!job) return job.error();
  if (auto read = read_stop(source, *job, plan); !read) return read;
  return read_requeue(source, *job, plan);
}

Result<> learn_deadline(const Machine& machine, LaunchConfig& plan) {
  if (!plan.stop_before || !plan.gives_up.empty()) return {};
  const StopBefore& stop = *plan.stop_before;
  if (!plan.deadline) {
    const auto left = told_time_left(machine, stop);
    if (!left) return go_without_deadline(left.error(), plan);
    if (!*left) return {};
    plan.deadline = machine.unix_seconds() + std::chrono::duration_cast<std::chrono::seconds>(**left).count();
    plan.origins.deadline = "squeue";
  }
  const std::int64_t left = *plan.deadline - machine.unix_seconds();
  if (std::chrono::seconds{left} > stop.lead) return {};
  return refuse_with_others(fmt::format("--stop-before: {} is longer than what is left of the time, {} s ({})",
                                        seconds_text(stop.lead), left, plan.origins.deadline),
                            plan);
}

}  // namespace torchup

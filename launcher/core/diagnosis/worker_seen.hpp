#pragma once

#include <optional>
#include <span>
#include <string>

#include "launcher/core/diagnosis/kernel_view.hpp"
#include "launcher/core/diagnosis/python_stack.hpp"
#include "launcher/core/diagnosis/worker_answer.hpp"
#include "rendezvous/base/worker_page.hpp"
#include "rendezvous/core/diagnosis/lateness.hpp"
#include "rendezvous/core/diagnosis/rank_look.hpp"

/// What has been seen of a worker, and what a verdict needs of it. Pure; what is missing was not to be seen.
namespace torchup {

/// A worker at one moment.
struct WorkerSeen {
  KernelView kernel = {};
  Activity activity = {};
  TimePoint activity_at{};  ///< when it was read
  std::optional<WorkerProgress> progress = {};
  std::optional<HookPage> hook = {};
  std::optional<PythonStack> python = {};
  bool helper_wrote = false;  ///< as main_thread's
  std::optional<WorkerAnswer> answer = {};
};

/// A look is two moments, or, for a person who waits, one.
struct WorkerMoments {
  WorkerSeen first = {};
  std::optional<WorkerSeen> second = {};
};

/// Everything of a look but rank, local rank, host, process id, native frames and what an error file says. What the
/// second moment has not is that of the first. `seen` is false where not even the process's state was to be read. Of
/// one moment alone, who runs moves.
[[nodiscard]] RankLook look_of(const WorkerMoments& moments, Processor processor);

/// When the exception by which a worker ends left its program. Nothing where none has, or where it has ended a step
/// since: then its program has printed one, and goes on.
[[nodiscard]] std::optional<std::int64_t> raised_for_good(std::int64_t raised_at_ns,
                                                          const std::optional<WorkerProgress>& progress);

/// Whether the native stack may tell more than what is seen already: it has no Python frames, or its innermost one
/// hides native code in which it computes, or waits for what the kernel does not name. A rank that waits for others in
/// a collective is no culprit, and nobody wants its.
[[nodiscard]] bool hides_native_code(const WorkerSeen& seen);

/// Whether the group has members besides those of `own`.
[[nodiscard]] bool has_others(const GroupPosition& group, std::span<const Rank> own);

/// What the straggler's rule wants of an answer, whose times are of the clock of the day: this node's monotonic clock,
/// which is `day_ahead` behind it, is the one that is compared with other nodes'.
[[nodiscard]] RankArrivals arrivals_of(Rank rank, WorkerAnswer answer, Duration day_ahead);

}  // namespace torchup

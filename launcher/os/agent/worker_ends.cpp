#include "launcher/os/agent/worker_ends.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "launcher/core/diagnosis/worker_seen.hpp"
#include "launcher/core/record/error_file.hpp"
#include "launcher/core/record/exit_report.hpp"

namespace torchup {

WorkerEnds::WorkerEnds(asio::io_context& loop, int local_world_size, const WorkerGroup& workers, Output& output,
                       Listener listener)
    : loop_{loop}, output_{output}, listener_{std::move(listener)},
      cause_{loop,
             workers,
             output,
             {listener_.tell,
              [this](LocalRank local_rank) {
                const AttemptOutput* const attempt = listener_.attempt();
                return attempt ? attempt->files(local_rank).error_file : std::string{};
              }}},
      left_(static_cast<std::size_t>(local_world_size)) {}

void WorkerEnds::gone(const WorkerId& worker, int exit_code, WorkerRemains remains) {
  WorkerEnded ended;
  ended.local_rank = worker.local_rank;
  ended.exit_code = exit_code;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  ended.time_us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  ended.progress = remains.progress;
  if (remains.hook) ended.raised_at_ns = raised_for_good(remains.hook->raised_at_ns, remains.progress).value_or(0);
  const bool by_hook = remains.hook && remains.hook->recorded;
  at(worker.local_rank) = {ended.time_us, std::move(remains)};
  AttemptOutput* const attempt = listener_.attempt();
  if (attempt) attempt->worker_gone(worker.local_rank);
  if (exit_code == 0 || !attempt) return listener_.tell(std::move(ended));
  ended.message = default_failure_message(exit_code, worker.pid);
  ended.lines = attempt->recent_lines(worker.local_rank);
  std::string path = attempt->files(worker.local_rank).error_file;
  if (by_hook) listener_.hook_recorded(path);
  spawn(loop_, "read last words", with_last_words(std::move(ended), std::move(path)));
}

/// Fills in what the worker's error file says of its end. The disk may be slow: nothing here waits for it.
Task<> WorkerEnds::with_last_words(WorkerEnded ended, std::string path) {
  const LastWords words = co_await output_.read_last_words(path);
  if (!words.problem.empty()) listener_.record(event::ErrorFileRefused{path, words.problem});
  if (words.error) {
    ended.error_file = path;
    const std::string traceback = completed(words.error->traceback, ended.lines);
    if (!traceback.empty()) ended.message = traceback;
    ended.lines = reported_lines(traceback);
    ended.time_us = std::min(words.error->time_us, ended.time_us);  // nobody writes after its death
    at(ended.local_rank).time_us = ended.time_us;
  }
  co_await cause_.look();  // somebody may have failed before, who lives yet
  listener_.tell(std::move(ended));
}

}  // namespace torchup

#pragma once

#include <signal.h>

#include <future>
#include <system_error>
#include <thread>
#include <utility>

namespace torchup {

/// Runs `work`, which blocks, on a thread of its own, with all signals blocked: those are for the thread that waits for
/// them. Nobody waits for the thread, not even the end of this process; so `work` must hold what it uses. A future that
/// is thrown away does not wait either.
///
/// The future is not valid() where the system gives no thread: then `work` is not run.
template <class Work>
[[nodiscard]] auto in_background(Work work) -> std::future<decltype(work())> {
  std::packaged_task<decltype(work())()> task{std::move(work)};
  auto result = task.get_future();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread{std::move(task)}.detach();
  } catch (const std::system_error&) {
    result = {};
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return result;
}

}  // namespace torchup

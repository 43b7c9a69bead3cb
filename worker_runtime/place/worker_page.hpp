#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace torchup {

/// The worker's side of the page that it shares with its agent (layout: rendezvous/base/worker_page.hpp).
class WorkerPage {
 public:
  /// Maps the page that the environment names, sets the descriptor close-on-exec and takes the variable out of the
  /// environment, so that no child writes to our page. Nothing when there is none, or when anything about it is not as
  /// it must be: another file, not sealed, meant for another process. Training goes on without it then.
  static std::unique_ptr<WorkerPage> open();
  ~WorkerPage();
  WorkerPage(const WorkerPage&) = delete;
  WorkerPage& operator=(const WorkerPage&) = delete;

  /// A step has ended: a dozen writes to memory.
  void beat(std::int64_t step);
  /// The agent asks the job to stop.
  bool drain_requested() const;

  // Of the thread that answers `look`.

  /// From here on this thread of the process does: the agent asks, and wants progress.
  void begin_answering(pid_t thread);
  /// The sum of the groups' counts by now. One that has changed is progress.
  void count_collectives(std::uint64_t sum);
  /// Puts an answer, of worker_answer_bytes at most, where the agent reads it. False: an older agent has no place.
  [[nodiscard]] bool put_answer(std::string_view answer);
  /// Nobody answers any more: the program is about to end.
  void end_answering();

 private:
  WorkerPage(std::byte* memory, std::size_t bytes);

  std::byte* memory_;
  const std::size_t bytes_;
  std::uint64_t beats_ = 0;
  std::int64_t last_beat_ns_ = 0;
};

/// While it lives, this process waits for other ranks. Put around what blocks in a collective; nested ones count once.
/// It is how a slow rank is told from those that wait for it.
class WaitingForOthers {
 public:
  WaitingForOthers();
  ~WaitingForOthers();
  WaitingForOthers(const WaitingForOthers&) = delete;
  WaitingForOthers& operator=(const WaitingForOthers&) = delete;
};

/// While it lives, this process saves its state, however long that takes: nobody calls it hung, nor those that wait for
/// it. Nested ones count once.
class SavingState {
 public:
  SavingState();
  ~SavingState();
  SavingState(const SavingState&) = delete;
  SavingState& operator=(const SavingState&) = delete;
};

}  // namespace torchup

#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/base/worker_channel.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// Answers to `look` on their way from the loop to the thread that takes looks, and the word that it is to end. There
/// are never more than workers that were asked. A worker that owes an answer is not asked again until it has given it:
/// questions that nobody reads would fill its channel, which ends then.
class LookMail {
 public:
  LookMail();

  // The loop's part.

  /// What comes too late, twice, or has another number is dropped.
  void put(LocalRank local_rank, const WorkerLooked& answer);
  /// No look is waited for any more.
  void close();

  // The thread's part.

  /// The number of a question that is about to be said to this worker; nothing: it owes an answer.
  [[nodiscard]] std::optional<std::uint64_t> expect(LocalRank local_rank, pid_t pid);
  /// What comes from here on is too late.
  void forget();
  struct Answer {
    LocalRank local_rank{0};
    std::size_t length = 0;
  };
  /// Those that have come; waits for the first until then. Empty: none, or closed.
  [[nodiscard]] std::vector<Answer> take(TimePoint until);
  /// Waits until then. False: closed.
  [[nodiscard]] bool pause(TimePoint until);
  [[nodiscard]] bool is_closed() const;
  /// Readable when it is closed.
  [[nodiscard]] int closing() const { return closing_.get(); }

 private:
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool closed_ = false;
  UniqueFd closing_;
  std::uint64_t questions_ = 0;
  struct Question {
    pid_t pid = 0;
    std::uint64_t number = 0;
    bool wanted = false;  ///< its answer is waited for
  };
  std::map<LocalRank, Question> owed_;
  std::vector<Answer> arrived_;
};

}  // namespace torchup

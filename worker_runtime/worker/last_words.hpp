#pragma once

#include <cstdint>
#include <string>

namespace torchup {

/// Who writes the last words, as they stand in the error file.
struct Speaker {
  int rank = 0;
  int local_rank = 0;
  int restart_count = 0;
  std::string host;
  std::string error_file;  ///< where they go; empty: only to stderr
};

/// From now on a process that dies of an exception nobody catches, of a signal that means a bug (SEGV, BUS, FPE, ILL,
/// ABRT), or of QUIT, with which one asks a job that hangs where it is, leaves torchelastic's error file: the message,
/// a native backtrace of the place (for an exception: of the throw), rank, host and step.
///
/// After an exception the process exits with 1, without running destructors, which might wait for peers that are still
/// training. After a signal it dies of that signal. A signal for which the program has a handler of its own is left
/// alone. The file is torchrun's: {"message": {"message", "extraInfo": {"py_callstack", "timestamp", …}}}.
void speak_last_words(const Speaker& speaker);

/// The step that the last words name; cheap enough to be called in every step.
void set_last_words_step(std::int64_t step);

/// Something to do before a process ends by an exception nobody catches (tell those who wait for it). Not called for
/// signals. The order is last in, first out; `cancel_at_failure` takes it back. The error file is written by then, and
/// all actions together have 5 s.
using FailureAction = void (*)(void* context, const char* message);
void at_failure(FailureAction action, void* context);
void cancel_at_failure(void* context);

}  // namespace torchup

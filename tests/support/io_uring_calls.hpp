#pragma once

#include <cstddef>

/// A test program's calls about io_uring: they reach the kernel as they are, or with another end. Whoever compiles
/// io_uring_calls.cpp has all its calls by syscall() go through there.
namespace torchup::test {

struct IoUringCalls {
  int setup_error = 0;         ///< io_uring_setup fails with it; 0: it does not
  unsigned taken_max = 0;      ///< messages that one io_uring_enter takes; 0: as many as it is given
  int second_error = 0;        ///< after one that has not taken all, the next fails with it
  int enter_error = 0;         ///< each fails with it
  bool takes_nothing = false;  ///< and says that it has taken all
  std::size_t entered = 0;     ///< io_uring_enter: so often
  bool took_less = false;      ///< the last one, than it was given
};
extern IoUringCalls io_uring_calls;

/// As they are to be for the life of this.
class ChangedIoUring {
 public:
  explicit ChangedIoUring(IoUringCalls calls) { io_uring_calls = calls; }
  ChangedIoUring(const ChangedIoUring&) = delete;
  ChangedIoUring& operator=(const ChangedIoUring&) = delete;
  ~ChangedIoUring() { io_uring_calls = {}; }
};

/// Ends this test as skipped where the kernel has none for us.
void need_io_uring();

}  // namespace torchup::test

#include "rendezvous/net/io/writer_thread.hpp"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <system_error>
#include <utility>

#include "rendezvous/net/io/bounded_queue.hpp"

namespace torchup {
namespace {

/// A thread inherits the signals that its maker blocks.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

struct WriterThread::State {
  struct Piece {
    std::function<void()> work;
    std::size_t bytes;
  };
  BoundedQueue<Piece> queue;

  void run() {
    for (;;) {
      auto pieces = queue.take();
      if (pieces.empty()) return;
      for (Piece& piece : pieces) {
        piece.work();
        piece.work = {};
        queue.done(piece.bytes);
      }
    }
  }
};

WriterThread::WriterThread() : state_{std::make_shared<State>()} {}

WriterThread::~WriterThread() {
  state_->queue.close();
  if (!thread_.joinable()) return;
  if (state_->queue.bytes() == 0)
    thread_.join();
  else
    thread_.detach();
}

bool WriterThread::start() {
  if (thread_.joinable()) return true;
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread{[state = state_] { state->run(); }};
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

void WriterThread::put(std::function<void()> work, std::size_t bytes) {
  if (!start()) return work();
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  state_->queue.put({std::move(work), size}, size);
}

std::size_t WriterThread::queued_bytes() const { return state_->queue.bytes(); }

void WriterThread::when_at_most(std::size_t level, std::function<void()> notice) {
  state_->queue.when_at_most(level, std::move(notice));
}

}  // namespace torchup

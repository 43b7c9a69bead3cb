#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace torchup {

/// A thread for blocking writes: no signal is delivered to it, so that the loop gets all of them.
template <class Body>
std::thread start_writer_thread(Body body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread{std::move(body)};
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace torchup

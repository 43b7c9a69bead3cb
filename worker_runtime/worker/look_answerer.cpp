#include "worker_runtime/worker/look_answerer.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <system_error>
#include <utility>
#include <variant>

#include "rendezvous/base/worker_channel.hpp"
#include "rendezvous/base/worker_page.hpp"
#include "worker_runtime/group/group_answer.hpp"
#include "worker_runtime/place/agent_words.hpp"

namespace torchup {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds count_interval{1};

/// A program that calls exit destroys LibTorch's recorder, among others, under a thread that asks it.
std::atomic<LookAnswerer*> stopped_at_exit{nullptr};

void stop_at_exit() {
  static const bool registered = std::atexit([] {
                                   if (LookAnswerer* const running = stopped_at_exit) running->stop();
                                 }) == 0;
  static_cast<void>(registered);
}

/// The program's signals are for its own threads. What a thread does wrong itself is not blocked.
sigset_t signals_of_others() {
  sigset_t signals;
  ::sigfillset(&signals);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::sigdelset(&signals, own);
  return signals;
}

}  // namespace

LookAnswerer::LookAnswerer(WorkerPage& page, AgentChannel* channel)
    : page_{page}, channel_{channel}, wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)}, process_{::getpid()} {
  if (!wake_)
    throw std::system_error{errno, std::generic_category(), "no descriptor for the thread that answers the agent"};
  when_groups_begin([this] { start(); });
}

LookAnswerer::~LookAnswerer() { stop(); }

void LookAnswerer::start() {
  stopped_at_exit = this;
  stop_at_exit();
  const sigset_t blocked = signals_of_others();
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  try {
    thread_ = std::thread{[this] { run(); }};
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "torchup: no thread that tells how far this worker is in its collectives: %s\n", error.what());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void LookAnswerer::stop() {
  if (::getpid() != process_) {
    if (thread_.joinable()) thread_.detach();
    return;
  }
  when_groups_begin({});
  stopped_at_exit = nullptr;
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock{mutex_};
    stopping_ = true;
  }
  wake();
  thread_.join();
}

void LookAnswerer::ask(std::uint64_t number) {
  {
    const std::lock_guard lock{mutex_};
    question_ = number;
  }
  wake();
}

void LookAnswerer::lend_channel(bool lent) {
  {
    const std::lock_guard lock{mutex_};
    lent_ = lent;
  }
  wake();
}

void LookAnswerer::wake() const {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);  // can only fail where it is readable already
}

void LookAnswerer::run() {
  page_.begin_answering(::gettid());
  try {
    for (auto due = Clock::now();;) {
      if (Clock::now() >= due) {
        page_.count_collectives(collectives_begun());
        due = Clock::now() + count_interval;
      }
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - Clock::now());
      wait(static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
      const auto number = take_question();
      if (number) answer(*number);
      const std::lock_guard lock{mutex_};
      if (stopping_) break;
    }
    page_.count_collectives(collectives_begun());  // who ends has got on
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torchup: the agent hears no more of this worker's collectives: %s\n", error.what());
  }
  page_.end_answering();
}

void LookAnswerer::wait(int limit_ms) {
  std::array<pollfd, 2> waiting{{{wake_.get(), POLLIN, 0}, {-1, POLLIN, 0}}};
  {
    const std::lock_guard lock{mutex_};
    if (channel_ != nullptr && channel_->is_open() && !lent_) waiting[1].fd = channel_->fd();
  }
  ::poll(waiting.data(), waiting.size(), limit_ms);
  std::uint64_t count = 0;
  (void)!::read(wake_.get(), &count, sizeof count);
}

std::optional<std::uint64_t> LookAnswerer::take_question() {
  const std::lock_guard lock{mutex_};
  while (channel_ != nullptr && !lent_) {
    const auto word = next_word(*channel_);
    if (!word) break;
    // Of what else is said nothing concerns a worker that is not in Elastic::run.
    if (const auto* const look = std::get_if<LookWanted>(&*word)) question_ = look->number;
  }
  return std::exchange(question_, std::nullopt);
}

void LookAnswerer::answer(std::uint64_t number) {
  const std::string text = group_answer(worker_answer_bytes);
  if (channel_ == nullptr || !page_.put_answer(text)) return;
  if (const auto packet = to_packet(WorkerLooked{number, text.size()})) channel_->say(*packet);
}

}  // namespace torchup

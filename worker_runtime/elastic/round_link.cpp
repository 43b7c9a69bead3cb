#include "worker_runtime/elastic/round_link.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>
#include <variant>

#include "worker_runtime/elastic/round_talk.hpp"
#include "worker_runtime/place/agent_words.hpp"
#include "worker_runtime/store/cancellation.hpp"

namespace torchup {
namespace {

using std::chrono::milliseconds;

// Between two times at which what blocks is ended: whoever blocks has mostly gone after the first.
constexpr milliseconds first_pause{2};
constexpr milliseconds longest_pause{100};

void say(AgentChannel& channel, const WorkerWord& word) {
  if (const auto packet = to_packet(word)) channel.say(*packet);  // our own words fit
}

}  // namespace

RoundLink::RoundLink(AgentChannel* channel, std::function<void()> end_what_blocks,
                     std::function<void(std::uint64_t)> look_wanted)
    : channel_{channel}, end_what_blocks_{std::move(end_what_blocks)}, look_wanted_{std::move(look_wanted)},
      wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)}, talk_{std::make_unique<RoundTalk>()} {
  if (!wake_ || store_calls_cancelled() < 0)
    throw std::system_error{errno, std::generic_category(), "Elastic: no descriptor for what ends a round early"};
  if (is_open())
    thread_ = std::thread{[this] { watch(); }};
  else
    talk_->end();
}

RoundLink::~RoundLink() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock{mutex_};
    ending_ = true;
  }
  wake();
  thread_.join();
}

void RoundLink::wake() const {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);  // can only fail where it is readable already
}

void RoundLink::stay() {
  const std::lock_guard lock{mutex_};
  if (talk_->is_open()) say(*channel_, talk_->stay());
}

void RoundLink::leave() {
  const std::lock_guard lock{mutex_};
  const WorkerWord word = talk_->leave();
  is_over_ = false;
  if (talk_->is_open()) say(*channel_, word);
}

void RoundLink::enter_round() {
  const std::lock_guard lock{blocking_mutex_};
  in_round_ = true;
  wake();  // it may be over already
}

void RoundLink::leave_round() {
  const std::lock_guard lock{blocking_mutex_};
  in_round_ = false;
}

std::string RoundLink::over() const {
  const std::lock_guard lock{mutex_};
  return talk_->over().value_or("");
}

bool RoundLink::is_consequence(const std::string& text) {
  std::unique_lock lock{mutex_};
  if (const auto word = talk_->raise(text)) say(*channel_, *word);
  changed_.wait(lock, [&] { return talk_->blame().has_value(); });
  return talk_->blame() == RoundTalk::Blame::consequence;
}

std::optional<std::map<std::string, std::string>> RoundLink::park(std::int64_t step) {
  std::unique_lock lock{mutex_};
  say(*channel_, talk_->park(step));
  std::optional<RoundTalk::Variables> place;
  changed_.wait(lock, [&] {
    place = talk_->take_place();
    return place || !talk_->is_open();
  });
  return place;
}

void RoundLink::listen() {
  while (const auto word = next_word(*channel_)) {
    if (const auto* const look = std::get_if<LookWanted>(&*word)) {
      look_wanted_(look->number);
      continue;
    }
    const std::lock_guard lock{mutex_};
    const auto answer = talk_->hear(*word);
    is_over_ = talk_->over().has_value();
    if (answer) say(*channel_, *answer);
    changed_.notify_all();
  }
  if (channel_->is_open()) return;
  const std::lock_guard lock{mutex_};
  talk_->end();
  changed_.notify_all();
}

void RoundLink::watch() {
  for (milliseconds pause = first_pause;;) {
    bool blocking = false;
    if (is_over_) {
      const std::lock_guard lock{blocking_mutex_};
      blocking = in_round_;
      if (blocking) end_what_blocks_();
    }
    pause = blocking ? std::min(2 * pause, longest_pause) : first_pause;
    std::array<pollfd, 2> waiting{{{wake_.get(), POLLIN, 0}, {is_open() ? channel_->fd() : -1, POLLIN, 0}}};
    ::poll(waiting.data(), waiting.size(), blocking ? static_cast<int>(pause.count()) : -1);
    std::uint64_t count = 0;
    (void)!::read(wake_.get(), &count, sizeof count);
    {
      const std::lock_guard lock{mutex_};
      if (ending_) return;
    }
    if (is_open()) listen();
  }
}

}  // namespace torchup

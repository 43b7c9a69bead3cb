#include "launcher/os/output/console.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "launcher/os/output/terminal.hpp"

namespace torchup {
namespace {

/// How exactly half lines and interruptions come in time.
constexpr Duration turn_interval = std::chrono::milliseconds{50};

}  // namespace

Console::Console(asio::io_context& loop, std::string name, int fd, Hooks hooks)
    : loop_{loop}, post_{loop}, name_{std::move(name)}, fd_{fd}, hooks_{std::move(hooks)},
      writer_{fd,
              [this, post = post_](const std::string& reason, std::uint64_t lost) {
                post([this, reason, lost] {
                  told_ = lost + dropped_;
                  reason_ = reason;
                  hooks_.tell(event::ConsoleLost{name_, reason, told_});
                });
              }},
      turn_timer_{loop}, status_timer_{loop} {}

void Console::flush() {
  if (batch_.empty()) return expect_turn();
  if (screen_ != nullptr && !screen_->made_way(batch_, [this] { flush(); })) return;
  if (is_terminal()) {
    if (writer_.queued_bytes() > terminal_bytes_max) {
      dropped_ += batch_.size();
      dropped_now_ += batch_.size();
      batch_.clear();
      return;
    }
    if (dropped_now_ != 0) {
      batch_.insert(0, fmt::format("torchup: this terminal does not keep up: {} bytes of output are not shown\n",
                                   std::exchange(dropped_now_, 0)));
      told_ = bytes_lost();
      hooks_.tell(event::ConsoleLost{name_, "the terminal does not keep up", told_});
    }
  }
  std::string bytes = std::exchange(batch_, {});
  if (status_) {
    const TimePoint now = std::chrono::steady_clock::now();
    bytes = status_->line.before(std::move(bytes), now);
    expect_status(now);
  }
  writer_.write(std::move(bytes));
  if (!is_terminal() && !full_ && writer_.queued_bytes() > queue_bytes_max) {
    full_ = true;
    writer_.when_at_most(queue_bytes_max / 2, [this, post = post_] {
      post([this] {
        full_ = false;
        turns_.stood_still(std::chrono::steady_clock::now());
        hooks_.has_room();
        expect_turn();
      });
    });
  }
  expect_turn();
}

void Console::expect_turn() {
  if (turn_expected_ || full_) return;
  const auto due = turns_.deadline();
  if (!due) return;
  turn_expected_ = true;
  turn_timer_.expires_at(std::min(*due, std::chrono::steady_clock::now() + turn_interval));
  turn_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    turn_expected_ = false;
    // Who has written meanwhile was not silent, only not yet read.
    if (!hooks_.read_more() && !full_) turns_.tick(std::chrono::steady_clock::now(), batch_);
    flush();
    hooks_.has_room();
  });
}

void Console::show_status(pid_t launcher, std::function<std::string(TimePoint)> text) {
  const TimePoint now = std::chrono::steady_clock::now();
  status_.emplace(Status{StatusLine{colours_wanted(), now}, launcher, std::move(text)});
  expect_status(now);
}

void Console::erase_status() {
  if (status_) writer_.write(status_->line.erase());
}

void Console::end_status() {
  erase_status();
  status_.reset();
  status_timer_.cancel();
}

/// True: these bytes, of another stream that is seen here, may be written now. Else `then` is called when they may. A
/// screen that stands still holds up no more than a queue.
bool Console::made_way(std::string_view bytes, std::function<void()> then) {
  if (!status_) return true;
  const TimePoint now = std::chrono::steady_clock::now();
  std::string erasure = status_->line.make_way(bytes, now);
  expect_status(now);
  if (!erasure.empty()) {
    erasing_ = true;
    writer_.write(std::move(erasure));
    writer_.when_at_most(0, [this, post = post_, then = std::move(then)] {
      post([this, then] {
        erasing_ = false;
        then();
      });
    });
  }
  return !erasing_ || bytes.size() > queue_bytes_max;
}

void Console::expect_status(TimePoint not_before) {
  const auto due = status_->line.deadline();
  if (status_->expected || !due) return;
  status_->expected = true;
  status_timer_.expires_at(std::max(*due, not_before));
  status_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || !status_) return;
    status_->expected = false;
    const TimePoint now = std::chrono::steady_clock::now();
    if (const auto still = status_->line.deadline(); still && *still <= now) draw_status(now);
    expect_status(now + status_interval);
  });
}

/// Not where others' bytes are on their way still, nor on a terminal that is somebody else's now.
void Console::draw_status(TimePoint now) {
  if (writer_.queued_bytes() != 0 || !may_draw(status_->launcher, fd_)) return;
  const std::string text = status_->text(now);
  writer_.write(status_->line.draw(cut_to_columns(text, terminal_columns(fd_)), now));
}

Task<bool> Console::written(std::optional<Duration> limit) {
  const auto waiting =
      std::make_shared<LoopWait<bool>>(loop_, limit ? std::chrono::steady_clock::now() + *limit : TimePoint::max());
  waiting_ = waiting;
  writer_.when_at_most(0, [post = post_, waiter = std::weak_ptr{waiting}] {
    post([waiter] {
      if (const auto still_there = waiter.lock()) still_there->end(true);
    });
  });
  co_await waiting->timer.async_wait();
  waiting_.reset();
  co_return waiting->answer.value_or(false);
}

void Console::hurry() {
  if (waiting_) waiting_->timer.cancel();
}

std::uint64_t Console::tell_losses(bool given_up) {
  const std::uint64_t lost = bytes_lost() + (given_up ? writer_.queued_bytes() : 0);
  if (lost > told_) {
    told_ = lost;
    hooks_.tell(event::ConsoleLost{name_, given_up ? "nobody reads it" : reason_, lost});
  }
  return lost;
}

}  // namespace torchup

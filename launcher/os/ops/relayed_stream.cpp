#include "launcher/os/ops/relayed_stream.hpp"

#include <fmt/format.h>

#include <utility>

#include "launcher/core/ops/relayed.hpp"
#include "rendezvous/core/text/percent.hpp"

namespace torchup {
namespace {

constexpr Duration page_interval = std::chrono::seconds{1};
/// Between two questions for events.
constexpr Duration event_interval = std::chrono::milliseconds{100};
/// How long the coordinator waits until there is one.
constexpr int event_wait_s = 1;

std::string one_line(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

RelayedStream::RelayedStream(asio::io_context& loop, Asker ask, OpsCall call, const std::string& first)
    : ask_{std::move(ask)}, call_{std::move(call)}, all_jobs_{call_.route == OpsRoute::jobs_stream},
      page_at_{std::chrono::steady_clock::now()}, pause_{loop} {
  frames_.push_back(stream_frame("snapshot", one_line(first)));
  if (!all_jobs_) seen_ = call_.behind.value_or(seq_of(first).value_or(0));
}

FrameSource::Next RelayedStream::next() {
  if (!frames_.empty()) {
    auto frame = std::make_shared<const std::string>(std::move(frames_.front()));
    frames_.pop_front();
    return {std::move(frame), false};
  }
  if (ended_) return {{}, true};
  if (!std::exchange(asking_, true)) go_on();
  return {};
}

void RelayedStream::go_on() {
  pause_.expires_after(all_jobs_ ? page_interval : event_interval);
  pause_.async_wait([self = weak_from_this()](boost::system::error_code error) {
    const auto stream = self.lock();
    if (error || !stream || stream->ended_) return;
    const bool due = std::chrono::steady_clock::now() >= stream->page_at_ + page_interval;
    if (stream->all_jobs_ || due) return stream->ask_page();
    stream->ask_events();
  });
}

OpsCall RelayedStream::question(OpsRoute route, std::string target) const {
  return {.route = route, .caller = call_.caller, .target = std::move(target), .run_id = call_.run_id};
}

void RelayedStream::ask_page() {
  page_at_ = std::chrono::steady_clock::now();
  const OpsCall call = all_jobs_ ? question(OpsRoute::jobs, "/v1/jobs")
                                 : question(OpsRoute::job, "/v1/jobs/" + percent_encoded(call_.run_id));
  ask_(call, [self = weak_from_this()](const OpsAnswer& answer) {
    if (const auto stream = self.lock()) stream->take_page(answer);
  });
}

void RelayedStream::ask_events() {
  const OpsCall call = question(OpsRoute::events, fmt::format("/v1/jobs/{}/events?since={}&wait_s={}",
                                                              percent_encoded(call_.run_id), seen_, event_wait_s));
  ask_(call, [self = weak_from_this()](const OpsAnswer& answer) {
    if (const auto stream = self.lock()) stream->take_events(answer);
  });
}

void RelayedStream::take_page(const OpsAnswer& answer) {
  asking_ = false;
  if (answer.status != 200) return end();
  tell(stream_frame(all_jobs_ ? "change" : "snapshot", one_line(answer.body)));
}

void RelayedStream::take_events(const OpsAnswer& answer) {
  asking_ = false;
  auto events = answer.status == 200 ? relayed_events(answer.body, seen_) : std::nullopt;
  if (!events) return end();
  seen_ = events->next;
  tell(std::move(events->frames));
}

void RelayedStream::tell(std::string frame) {
  if (!frame.empty() && !ended_) frames_.push_back(std::move(frame));
  if (wake_) wake_();
}

void RelayedStream::end() {
  ended_ = true;
  if (wake_) wake_();
}

void RelayedStream::end_with(std::string_view event) {
  tell(stream_frame("event", event));
  end();
}

}  // namespace torchup

#include "launcher/os/fan_out/front_output.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "launcher/core/text/text.hpp"

namespace torchup {
namespace {

/// Events that wait for the disk: then the hosts wait too.
constexpr std::size_t events_bytes_max = std::size_t{256} << 10;
/// Of one event, which no agent writes longer.
constexpr std::size_t event_bytes_max = std::size_t{4} << 20;
/// How long files may take at the end.
constexpr Duration disk_limit_at_end = std::chrono::seconds{2};

}  // namespace

FrontOutput::FrontOutput(asio::io_context& loop, std::string events_file, bool labelled, Handlers handlers)
    : loop_{loop}, labelled_{labelled}, handlers_{std::move(handlers)}, disk_{loop}, out_{loop, "stdout", STDOUT_FILENO,
                                                                                          hooks()} {
  if (!same_file(STDOUT_FILENO, STDERR_FILENO)) {
    separate_err_ = std::make_unique<Console>(loop, "stderr", STDERR_FILENO, hooks());
  }
  if (events_file.empty()) return;
  events_ = LogFile::appended(disk_, std::move(events_file),
                              [this](const LogFile::Failure& failure) { tell_loss(failure.path, failure.reason); });
}

FrontOutput::~FrontOutput() = default;

Console::Hooks FrontOutput::hooks() {
  return {[this](const EventBody& event) {
            if (const auto* lost = std::get_if<event::ConsoleLost>(&event)) tell_loss(lost->stream, lost->reason);
          },
          [this] { confirm_all(); }, [] { return false; }};
}

void FrontOutput::tell_loss(const std::string& what, const std::string& reason) {
  print(fmt::format("torchup: {}: {}\n", what, reason));
}

void FrontOutput::open(HostLink link, std::string_view name) {
  LineRules rules;
  rules.form = labelled_ ? LineRules::Form::prefixed : LineRules::Form::whole_lines;
  if (labelled_) rules.prefix = fmt::format("{}: ", name);
  rules.terminal = out_.is_terminal();
  Host host;
  host.out = out_.turns().add(rules);
  rules.terminal = err().is_terminal();
  host.before = err().turns().add(rules);
  host.said = err().turns().add(rules);
  host.err = err().turns().add(rules);
  hosts_.emplace(link, std::move(host));
}

bool FrontOutput::take(HostLink link, LinkChannel channel, std::string_view bytes) {
  const auto found = hosts_.find(link);
  if (found == hosts_.end()) return true;
  Host& host = found->second;
  if (host.unconfirmed + bytes.size() > link_window_bytes) return false;
  host.unconfirmed += bytes.size();
  if (channel == LinkChannel::out) feed(out_, host.out, bytes);
  if (channel == LinkChannel::err) feed(err(), host.err, bytes);
  if (channel == LinkChannel::events) add_events(host, bytes);
  flush_later();
  return true;
}

void FrontOutput::take_before(HostLink link, std::string_view bytes) {
  const auto found = hosts_.find(link);
  if (found != hosts_.end() && found->second.before) feed_aside(*found->second.before, bytes);
}

void FrontOutput::take_said(HostLink link, std::string_view bytes) {
  if (const auto found = hosts_.find(link); found != hosts_.end()) feed_aside(found->second.said, bytes);
}

void FrontOutput::feed_aside(ConsoleTurns::Source source, std::string_view bytes) {
  if (err().queued_bytes() > terminal_bytes_max) return;  // nobody reads, and nobody holds who says it
  feed(err(), source, bytes);
  flush_later();
}

void FrontOutput::end_before(HostLink link) {
  const auto found = hosts_.find(link);
  if (found == hosts_.end() || !found->second.before) return;
  std::string duplicates;
  err().turns().end(*std::exchange(found->second.before, {}), err().batch(), duplicates);
  flush_later();
}

void FrontOutput::close(HostLink link) {
  end_before(link);
  const auto found = hosts_.find(link);
  if (found == hosts_.end()) return;
  std::string duplicates;
  out_.turns().end(found->second.out, out_.batch(), duplicates);
  for (const ConsoleTurns::Source each : {found->second.said, found->second.err}) {
    err().turns().end(each, err().batch(), duplicates);
  }
  hosts_.erase(found);
  flush_later();
}

void FrontOutput::print(const std::string& lines) {
  err().turns().own(printable_lines(lines), err().batch());
  err().flush();
}

void FrontOutput::feed(Console& console, ConsoleTurns::Source source, std::string_view bytes) {
  std::string duplicates;
  console.turns().feed(source, bytes, std::chrono::steady_clock::now(), console.batch(), duplicates);
}

void FrontOutput::add_events(Host& host, std::string_view bytes) {
  host.events += bytes;
  const auto end = host.events.rfind('\n');
  if (end == std::string::npos) {
    if (host.events.size() > event_bytes_max) host.events.clear();
    return;
  }
  std::string lines = host.events.substr(0, end + 1);
  host.events.erase(0, end + 1);
  if (events_) events_->write(std::move(lines));
}

/// Once for everything that comes in one turn of the loop.
void FrontOutput::flush_later() {
  if (std::exchange(flush_due_, true)) return;
  asio::post(loop_, [this] {
    flush_due_ = false;
    flush();
  });
}

void FrontOutput::flush() {
  out_.flush();
  if (separate_err_) separate_err_->flush();
  if (!disk_full_ && disk_.queued_bytes() > events_bytes_max) {
    disk_full_ = true;
    disk_.when_at_most(events_bytes_max / 2, [this] {
      disk_full_ = false;
      confirm_all();
    });
  }
  confirm_all();
}

bool FrontOutput::may_confirm(const Host& host) {
  if (disk_full_ || out_.is_full() || err().is_full()) return false;
  return out_.turns().may_feed(host.out) && err().turns().may_feed(host.err);
}

void FrontOutput::confirm_all() {
  bool held = false;
  for (auto& [link, host] : hosts_) {
    if (host.unconfirmed > 0 && may_confirm(host)) {
      handlers_.acknowledge(link, std::exchange(host.unconfirmed, 0));
    }
    held = held || host.unconfirmed > 0;
  }
  held = held && !disk_full_;  // a disk that does not answer is waited for as long as an agent
  if (std::exchange(held_, held) != held) handlers_.held(held);
}

Task<> FrontOutput::finish(std::optional<Duration> limit) {
  flush();
  static_cast<void>(co_await disk_.idle(disk_limit_at_end));
  if (events_) events_->report_losses();
  for (Console* console : {&out_, separate_err_.get()}) {
    if (console == nullptr) continue;
    const bool patient = !limit && !console->is_terminal();
    static_cast<void>(
        co_await console->written(patient ? std::nullopt : std::optional{limit.value_or(disk_limit_at_end)}));
  }
}

void FrontOutput::hurry() {
  out_.hurry();
  if (separate_err_) separate_err_->hurry();
}

}  // namespace torchup

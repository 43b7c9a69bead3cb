#include "rendezvous/core/text/log_limit.hpp"

#include <fmt/format.h>

#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

/// Names of messages that no line can have: a line's own begin with its job or are its text.
const std::string everything{"\0all", 4}, the_rest{"\0other", 6};

/// What tells messages apart: the run id and the kind, or the text where nobody named a kind.
std::string name_of(const LogLine& line) {
  const std::string& kind = line.like.empty() ? line.text : line.like;
  return fmt::format("{}\n{}", line.job, kind.substr(0, printed_bytes_max));
}

}  // namespace

LogLimit::Message& LogLimit::message_of(const LogLine& line, TimePoint now) {
  std::string name = name_of(line);
  auto found = messages_.find(name);
  if (found != messages_.end()) return found->second;
  if (messages_.size() >= limits_.messages_max) name = the_rest;
  const auto [place, made] = messages_.try_emplace(name);
  if (made) {
    place->second.begun = now;
    windows_.emplace_back(now, std::move(name));
  }
  return place->second;
}

std::vector<LogLine> LogLimit::step(LogLine line, TimePoint now) {
  std::vector<LogLine> out = due(now);
  const auto [all, first] = messages_.try_emplace(everything);
  if (first) {
    all->second.begun = now;
    windows_.emplace_back(now, everything);
  }
  Message& message = message_of(line, now);
  const std::size_t most = line.job.empty() ? limits_.lines_max : limits_.job_lines_max;
  const bool source_told = !line.source.empty() && message.sources.contains(line.source);
  const bool told = !source_told && message.told < most && all->second.told < limits_.all_lines_max;
  if (!told) {
    ++message.kept_back;
    message.last = std::move(line);
    return out;
  }
  ++message.told;
  ++all->second.told;
  if (!line.source.empty()) message.sources.insert(line.source);
  out.push_back(std::move(line));
  return out;
}

std::vector<LogLine> LogLimit::due(TimePoint now) { return close_windows(now - limits_.window, now); }

std::vector<LogLine> LogLimit::rest(TimePoint now) { return close_windows(TimePoint::max(), now); }

std::optional<TimePoint> LogLimit::deadline() const {
  if (windows_.empty()) return std::nullopt;
  return windows_.front().first + limits_.window;
}

std::vector<LogLine> LogLimit::close_windows(TimePoint begun_until, TimePoint now) {
  std::vector<LogLine> out;
  while (!windows_.empty() && windows_.front().first <= begun_until) {
    const auto closed = messages_.extract(windows_.front().second);
    windows_.pop_front();
    Message& message = closed.mapped();
    if (message.kept_back == 0) continue;
    LogLine line = std::move(message.last);
    line.text = fmt::format("… {} more like this in the last {}, the last of them: {}", message.kept_back,
                            seconds(now - message.begun), line.text);
    line.source.clear();
    out.push_back(std::move(line));
  }
  return out;
}

}  // namespace torchup

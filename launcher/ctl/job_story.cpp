#include "launcher/ctl/job_story.hpp"

#include <algorithm>
#include <thread>

#include "launcher/ctl/values.hpp"

namespace torchup {
namespace {

constexpr Duration launcher_patience = std::chrono::seconds{1};
constexpr Duration daemon_patience = std::chrono::minutes{1};
constexpr Duration pause_between = std::chrono::milliseconds{200};
/// What is told behind the end comes at once.
constexpr Duration quiet_at_the_end = std::chrono::seconds{1};

std::optional<int> code_in(const json& object, const char* name = "exit_code") {
  const auto code = integer_in(object, name);
  return code && *code >= 0 && *code <= 255 ? std::optional{static_cast<int>(*code)} : std::nullopt;
}

}  // namespace

JobStory::JobStory(Target target, StoryEnd end) : target_{std::move(target)} {
  const bool of_own_launcher = std::holds_alternative<SocketFile>(target_.door.at) && integer_in(target_.row, "pid");
  awaits_launcher_ = end == StoryEnd::launcher && of_own_launcher;
  begin();
}

std::optional<int> JobStory::exit_code() const {
  if (own_code_) return own_code_;
  return verdict_ ? verdict_ : nodes_word_;
}

void JobStory::begin() {
  stream_.emplace(target_.door, target_.path("/stream"), last_id_);
  trouble_ = stream_->trouble();
  if (trouble_) stream_.reset();
}

void JobStory::begin_again(TimePoint until) {
  const TimePoint now = std::chrono::steady_clock::now();
  if (!gone_since_) gone_since_ = now;
  const bool of_launcher = integer_in(target_.row, "pid").has_value();
  if (ended_ || now - *gone_since_ > (of_launcher ? launcher_patience : daemon_patience)) {
    over_ = true;
    return;
  }
  std::this_thread::sleep_until(std::min(until, now + pause_between));
  begin();
  if (stream_) gone_since_.reset();
}

void JobStory::note(const StreamEvent& event) {
  if (!event.id.empty()) last_id_ = event.id;
  const auto data = parse_json(event.data);
  if (!data || !data->is_object()) return;
  if (event.name == "event") {
    if (text_in(*data, "event") != "job_ended") return;
    if (const auto code = code_in(*data)) nodes_word_ = code;
    if (awaits_launcher_) own_code_ = code_in(*data, "launcher_exit_code");
    return;
  }
  if (event.name != "snapshot" && event.name != "change") return;
  // A job of torchrun's agents ends without a verdict: nobody says with which code.
  ended_ = ended_ || !text_in(*data, "ended").empty() || text_in(*data, "phase") == "ended";
  const json* const verdict = member(*data, "verdict");
  if (verdict && verdict->is_object()) verdict_ = code_in(*verdict);
}

std::optional<StreamEvent> JobStory::next(TimePoint until) {
  while (!over_) {
    if (!stream_) begin_again(until);
    const TimePoint now = std::chrono::steady_clock::now();
    if (stream_) {
      const TimePoint limit = is_settled() ? std::min(until, now + quiet_at_the_end) : until;
      if (auto event = stream_->next(limit)) {
        note(*event);
        quiet_since_.reset();
        return event;
      }
      if (stream_->ended()) stream_.reset();
    }
    if (is_settled() && !quiet_since_) quiet_since_ = now;
    if (quiet_since_ && std::chrono::steady_clock::now() - *quiet_since_ >= quiet_at_the_end) over_ = true;
    if (std::chrono::steady_clock::now() >= until) return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace torchup

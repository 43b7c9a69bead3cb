#include "launcher/ctl/stream_events.hpp"

#include <algorithm>
#include <utility>

namespace torchup {

void StreamEvents::add(std::string_view bytes) {
  if (too_long_) return;
  bytes_ += bytes;
}

std::optional<StreamEvent> StreamEvents::next() {
  std::size_t begin = 0;
  std::optional<StreamEvent> found;
  while (!found && !too_long_) {
    const std::size_t end = bytes_.find('\n', std::max(begin, seen_));
    if (end == std::string::npos) {
      seen_ = bytes_.size();
      break;
    }
    std::string_view line = std::string_view{bytes_}.substr(begin, end - begin);
    begin = end + 1;
    seen_ = begin;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) {
      take_line(line);
      continue;
    }
    StreamEvent whole = std::exchange(event_, {});
    if (std::exchange(has_data_, false)) found = std::move(whole);
  }
  bytes_.erase(0, begin);
  seen_ -= begin;
  too_long_ = too_long_ || bytes_.size() > stream_event_bytes_max;
  return found;
}

void StreamEvents::take_line(std::string_view line) {
  const std::size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon);
  std::string_view value = colon == std::string_view::npos ? std::string_view{} : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (name == "event") event_.name = value;
  if (name == "id") event_.id = value;
  if (name != "data") return;
  if (has_data_) event_.data += '\n';
  event_.data += value;
  has_data_ = true;
  too_long_ = event_.data.size() > stream_event_bytes_max;
}

}  // namespace torchup

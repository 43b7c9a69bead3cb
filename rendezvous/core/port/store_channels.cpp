#include "rendezvous/core/port/store_channels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/endian/conversion.hpp>
#include <limits>
#include <utility>

namespace torchup {
namespace {

constexpr std::size_t length_bytes = 4;
constexpr std::size_t head_bytes = 5;  // kind and channel
/// Credit is given for so much at once.
constexpr std::size_t credit_step = channel_window_bytes / 4;

void append_number(std::string& out, std::uint32_t value) {
  std::array<unsigned char, 4> octets{};
  boost::endian::store_little_u32(octets.data(), value);
  out.append(octets.begin(), octets.end());
}

std::uint32_t read_number(std::string_view bytes) {
  return boost::endian::load_little_u32(reinterpret_cast<const unsigned char*>(bytes.data()));
}

bool fits(ChannelFrameKind kind, std::size_t bytes) {
  switch (kind) {
    case ChannelFrameKind::open:
    case ChannelFrameKind::close:
      return bytes == 0;
    case ChannelFrameKind::data:
      return bytes >= 1 && bytes <= channel_data_bytes_max;
    case ChannelFrameKind::credit:
      return bytes == 4;
  }
  return false;
}

}  // namespace

void append_channel_frame(std::string& out, const ChannelFrame& frame) {
  const bool credit = frame.kind == ChannelFrameKind::credit;
  append_number(out, static_cast<std::uint32_t>(head_bytes + (credit ? 4 : frame.bytes.size())));
  out += static_cast<char>(frame.kind);
  append_number(out, frame.channel.value());
  if (credit) append_number(out, frame.credit);
  out += frame.bytes;
}

Result<std::optional<ChannelFrame>> take_channel_frame(std::string_view& input) {
  if (input.size() < length_bytes) return std::optional<ChannelFrame>{};
  const std::size_t length = read_number(input);
  if (length < head_bytes || length > head_bytes + channel_data_bytes_max) {
    return fail(errc::bad_frame, fmt::format("a frame of {} bytes", length));
  }
  if (input.size() < length_bytes + head_bytes) return std::optional<ChannelFrame>{};
  const auto kind = static_cast<ChannelFrameKind>(input[length_bytes]);
  if (!fits(kind, length - head_bytes)) {
    return fail(errc::bad_frame,
                fmt::format("a frame of kind {} with {} bytes", static_cast<int>(kind), length - head_bytes));
  }
  if (input.size() < length_bytes + length) return std::optional<ChannelFrame>{};
  ChannelFrame frame{.kind = kind, .channel = ChannelId{read_number(input.substr(length_bytes + 1))}};
  if (frame.channel.value() == 0) return fail(errc::bad_frame, "a frame of channel 0");
  const std::string_view bytes = input.substr(length_bytes + head_bytes, length - head_bytes);
  if (kind == ChannelFrameKind::credit) {
    frame.credit = read_number(bytes);
  } else {
    frame.bytes = bytes;
  }
  input.remove_prefix(length_bytes + length);
  return std::optional{frame};
}

std::vector<channels::Action> StoreChannels::step(const channels::Event& event) {
  if (broken_) return {};
  std::visit([this](const auto& happened) { on(happened); }, event);
  if (!output_.empty()) actions_.push_back(channels::Send{std::exchange(output_, {})});
  return std::exchange(actions_, {});
}

std::size_t StoreChannels::room(ChannelId channel) const {
  const auto found = all_.find(channel.value());
  return found == all_.end() ? 0 : found->second.may_say;
}

std::optional<ChannelId> StoreChannels::next() const {
  if (broken_ || all_.size() >= channels_max || last_ == std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
  return ChannelId{last_ + 1};
}

void StoreChannels::on(const channels::Came& event) {
  if (side_ != Side::opens || next() != event.channel) return;
  last_ = event.channel.value();
  all_.try_emplace(last_);
  append_channel_frame(output_, {.kind = ChannelFrameKind::open, .channel = event.channel});
}

void StoreChannels::on(const channels::Said& event) {
  const auto found = all_.find(event.channel.value());
  if (found == all_.end()) return;
  std::string_view rest = std::string_view{event.bytes}.substr(0, found->second.may_say);
  found->second.may_say -= rest.size();
  while (!rest.empty()) {
    const std::string_view piece = rest.substr(0, channel_data_bytes_max);
    append_channel_frame(output_, {.kind = ChannelFrameKind::data, .channel = event.channel, .bytes = piece});
    rest.remove_prefix(piece.size());
  }
}

void StoreChannels::on(const channels::Took& event) {
  const auto found = all_.find(event.channel.value());
  if (found == all_.end()) return;
  Channel& channel = found->second;
  channel.taken += event.bytes;
  if (channel.taken < credit_step) return;
  // No more than was used: who says that it took more than it was given makes no credit out of it.
  const std::size_t given = std::min(std::exchange(channel.taken, 0), channel_window_bytes - channel.may_hear);
  channel.may_hear += given;
  append_channel_frame(
      output_,
      {.kind = ChannelFrameKind::credit, .channel = event.channel, .credit = static_cast<std::uint32_t>(given)});
}

void StoreChannels::on(const channels::Left& event) {
  if (all_.erase(event.channel.value()) == 0) return;
  append_channel_frame(output_, {.kind = ChannelFrameKind::close, .channel = event.channel});
}

void StoreChannels::on(const channels::Heard& event) {
  const bool begun = !input_.empty();
  if (begun) input_ += event.bytes;
  std::string_view rest = begun ? std::string_view{input_} : event.bytes;
  for (;;) {
    const auto frame = take_channel_frame(rest);
    if (!frame) {
      break_off(frame.error().message());
      return;
    }
    if (!frame->has_value()) break;
    if (!hear(**frame)) return;
  }
  std::string{rest}.swap(input_);
}

bool StoreChannels::hear(const ChannelFrame& frame) {
  const std::uint32_t number = frame.channel.value();
  if (frame.kind == ChannelFrameKind::open) {
    if (side_ == Side::opens) return break_off("the store's side opens a channel");
    if (number != last_ + 1) return break_off(fmt::format("channel {} is opened after {}", number, last_));
    if (all_.size() >= channels_max) return break_off(fmt::format("channels_max: {} are open", all_.size()));
    last_ = number;
    all_.try_emplace(number);
    actions_.push_back(channels::Begin{frame.channel});
    return true;
  }
  if (number > last_) return break_off(fmt::format("it speaks of channel {}, which is not open yet", number));
  const auto found = all_.find(number);
  if (found == all_.end()) return true;  // it was on its way when we said that it has gone
  Channel& channel = found->second;
  if (frame.kind == ChannelFrameKind::close) {
    all_.erase(found);
    actions_.push_back(channels::End{frame.channel});
  } else if (frame.kind == ChannelFrameKind::data) {
    if (frame.bytes.size() > channel.may_hear)
      return break_off(fmt::format("more than the credit of channel {}", number));
    channel.may_hear -= frame.bytes.size();
    actions_.push_back(channels::Deliver{frame.channel, std::string{frame.bytes}});
  } else {
    if (frame.credit > channel_window_bytes - channel.may_say) {
      return break_off(fmt::format("more credit for channel {} than was used", number));
    }
    const bool had_none = channel.may_say == 0;
    channel.may_say += frame.credit;
    if (had_none && channel.may_say > 0) actions_.push_back(channels::Resume{frame.channel});
  }
  return true;
}

bool StoreChannels::break_off(std::string why) {
  broken_ = true;
  output_.clear();
  std::string{}.swap(input_);
  for (const auto& [number, channel] : all_) actions_.push_back(channels::End{ChannelId{number}});
  all_.clear();
  actions_.push_back(channels::Broken{std::move(why)});
  return false;
}

}  // namespace torchup

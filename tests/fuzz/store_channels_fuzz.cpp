// Bytes of a store proxy's link: neither side crashes or holds more than it may, it makes no difference in which pieces
// they come, and each frame that was read is written as the same.
#include <variant>

#include "rendezvous/core/port/store_channels.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

namespace {

/// All that one side does about them.
std::vector<channels::Action> done_about(std::string_view bytes, StoreChannels::Side side, fuzz::PieceSize size) {
  StoreChannels link{side};
  for (std::uint32_t i = 1; side == StoreChannels::Side::opens && i <= 3; ++i) {
    static_cast<void>(link.step(channels::Came{ChannelId{i}}));
  }
  std::vector<channels::Action> done;
  for (std::size_t given = 0; given < bytes.size();) {
    const std::string_view piece = bytes.substr(given, size.next());
    given += piece.size();
    for (channels::Action& action : link.step(channels::Heard{piece})) done.push_back(std::move(action));
    fuzz::require(link.count() <= channels_max);
  }
  return done;
}

void write_what_was_read(std::string_view bytes) {
  for (;;) {
    const std::string_view before = bytes;
    const auto frame = take_channel_frame(bytes);
    if (!frame || !frame->has_value()) return;
    std::string written;
    append_channel_frame(written, **frame);
    fuzz::require(written == before.substr(0, before.size() - bytes.size()));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes{reinterpret_cast<const char*>(data), size};
  write_what_was_read(bytes);
  for (const auto side : {StoreChannels::Side::opens, StoreChannels::Side::serves}) {
    const auto seed = static_cast<std::uint8_t>(size == 0 ? 0 : data[size - 1]);
    fuzz::require(done_about(bytes, side, fuzz::PieceSize{seed}) == done_about(bytes, side, fuzz::PieceSize::whole()));
  }
  return 0;
}

// Bytes of both ends of a fan-out's link: the readers never crash, read the same whether the bytes come at once or in
// pieces, and what was read is written and read again as the same.
#include <variant>

#include "rendezvous/core/link/link_codec.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

namespace {

Result<std::optional<FrontMessage>> take(std::string_view& input, FrontMessage*) { return take_front_message(input); }
Result<std::optional<FarMessage>> take(std::string_view& input, FarMessage*) { return take_far_message(input); }

/// Takes all whole messages off `control`. False: it is another language.
template <class Message>
bool take_messages(std::string& control, std::string& all) {
  std::string_view rest = control;
  for (;;) {
    const auto message = take(rest, static_cast<Message*>(nullptr));
    if (!message) {
      all += "!" + message.error().message();
      return false;
    }
    if (!message->has_value()) break;
    const std::string written = encode(**message);
    std::string_view again = written;
    const auto same = take(again, static_cast<Message*>(nullptr));
    fuzz::require(same && same->has_value() && **same == **message && again.empty());
    all += written;
  }
  control.erase(0, control.size() - rest.size());
  return true;
}

template <class Message>
std::string heard_of(std::string_view bytes, fuzz::PieceSize size) {
  std::string all, held, control;
  std::size_t given = 0;
  while (given < bytes.size()) {
    const std::string_view piece = bytes.substr(given, size.next());
    given += piece.size();
    held += piece;
    std::string_view rest = held;
    for (;;) {
      const auto frame = take_link_frame(rest);
      if (!frame) return all + "!" + frame.error().message();
      if (!frame->has_value()) break;
      fuzz::require((*frame)->bytes.size() <= link_frame_bytes_max);
      if ((*frame)->channel != LinkChannel::control) {
        append_link_frames(all, (*frame)->channel, (*frame)->bytes);
        continue;
      }
      control += (*frame)->bytes;
      if (!take_messages<Message>(control, all)) return all;
    }
    held.erase(0, held.size() - rest.size());
  }
  return all;
}

template <class Message>
void check(std::string_view bytes, std::uint8_t seed) {
  fuzz::require(heard_of<Message>(bytes, fuzz::PieceSize::whole()) == heard_of<Message>(bytes, fuzz::PieceSize{seed}));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes{reinterpret_cast<const char*>(data) + 2, size - 2};
  data[0] % 2 == 0 ? check<FrontMessage>(bytes, data[1]) : check<FarMessage>(bytes, data[1]);
  return 0;
}

// Bytes of an agent and of a coordinator: the readers never crash, read the same whether the bytes come at once or in
// pieces, and what was read is written and read again as the same.
#include <variant>

#include "rendezvous/core/link/agent_codec.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

namespace {

Result<std::optional<AgentFrame>> take(std::string_view& input, AgentFrame*) { return take_agent_frame(input); }
Result<std::optional<CoordinatorFrame>> take(std::string_view& input, CoordinatorFrame*) {
  return take_coordinator_frame(input);
}

/// Every frame of `bytes`, cut into pieces by `size`, as we write it; then "!" and the reason when one is refused.
template <class Frame>
std::string frames_of(std::string_view bytes, fuzz::PieceSize size) {
  std::string all, held;
  std::size_t given = 0;
  while (given < bytes.size()) {
    const std::string_view piece = bytes.substr(given, size.next());
    given += piece.size();
    held += piece;
    std::string_view rest = held;
    while (true) {
      const auto frame = take(rest, static_cast<Frame*>(nullptr));
      if (!frame) return all + "!" + frame.error().message();
      if (!frame->has_value()) break;
      const std::string written = encode(**frame);
      fuzz::require(written.size() <= frame_bytes_max);
      std::string_view again = written;
      const auto same = take(again, static_cast<Frame*>(nullptr));
      fuzz::require(same && same->has_value() && **same == **frame && again.empty());
      all += written;
    }
    held.erase(0, held.size() - rest.size());
  }
  return all;
}

template <class Frame>
void check(std::string_view bytes, std::uint8_t seed) {
  fuzz::require(frames_of<Frame>(bytes, fuzz::PieceSize::whole()) == frames_of<Frame>(bytes, fuzz::PieceSize{seed}));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes{reinterpret_cast<const char*>(data) + 2, size - 2};
  data[0] % 2 == 0 ? check<AgentFrame>(bytes, data[1]) : check<CoordinatorFrame>(bytes, data[1]);
  return 0;
}

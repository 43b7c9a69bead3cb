// Bytes of a client: the reader never crashes, holds no more than it was sent, and gives the same requests whether the
// bytes come at once or in pieces.
#include <cstdint>
#include <cstdlib>

#include "rendezvous/core/store/store_codec.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

namespace {

std::string describe(const Request& request) {
  std::string text;
  put_byte(text, static_cast<std::uint8_t>(request.query));
  put_bytes(text, request.key);
  for (const auto key : request.keys) put_bytes(text, key);
  for (const Value& value : request.values) put_bytes(text, value.view());
  put_number(text, request.number);
  if (request.query == Query::ping) put_nonce(text, request.nonce);
  return text;
}

/// Every request of `bytes`, cut into pieces by `size`; then "!" and the reason when the stream is malformed.
std::string requests_of(std::string_view bytes, fuzz::PieceSize size) {
  FieldLimits limits;
  limits.message_bytes_max = 1 << 14;
  RequestReader reader{limits};
  Request request;
  std::string all;
  std::size_t given = 0;
  while (given < bytes.size()) {
    std::string_view piece = bytes.substr(given, size.next());
    given += piece.size();
    const auto direct = reader.direct_space();
    const std::size_t taken = std::min(direct.size(), piece.size());
    std::copy_n(piece.begin(), taken, direct.begin());
    reader.filled(taken);
    piece.remove_prefix(taken);
    for (;;) {
      const auto status = reader.read(piece, request);
      if (status == RequestReader::Status::malformed) return all + "!" + reader.error();
      if (status == RequestReader::Status::incomplete) break;
      all += describe(request);
    }
    fuzz::require(piece.empty());
    // Beside what was received, a large value may claim its whole length at once.
    fuzz::require(reader.held_bytes() <= 64 * given + limits.message_bytes_max + 1024);
  }
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string validate{"\x00\xce\xf7\x85\x3c", 5};
  const std::string bytes =
      (data[0] & 1 ? validate : "") + std::string{reinterpret_cast<const char*>(data) + 2, size - 2};
  fuzz::require(requests_of(bytes, fuzz::PieceSize::whole()) == requests_of(bytes, fuzz::PieceSize{data[1]}));
  return 0;
}

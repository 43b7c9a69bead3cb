// Bytes of a server: the client's reader never crashes, and reads the same whether they come at once or in pieces.
#include "rendezvous/core/store/store_codec.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

namespace {

constexpr Query queries[] = {Query::get,       Query::add,       Query::check,    Query::multi_get, Query::ping,
                             Query::queue_pop, Query::list_keys, Query::wait_get, Query::wait_pop};

std::string replies_of(std::string_view bytes, Query query, std::size_t count, fuzz::PieceSize size) {
  FieldLimits limits;
  limits.value_bytes_max = 1 << 14;
  limits.message_bytes_max = 1 << 14;
  FieldReader reader{limits};
  std::string all;
  std::string_view piece;
  std::size_t given = 0;
  for (int replies = 0; replies < 100; ++replies) {
    reader.begin(reply_layout(query), count);
    for (;;) {
      const auto status = reader.read(piece);
      if (status == FieldReader::Status::malformed) return all + "!" + reader.error();
      if (status == FieldReader::Status::complete) break;
      fuzz::require(piece.empty());
      if (given >= bytes.size()) return all;
      piece = bytes.substr(given, size.next());
      given += piece.size();
    }
    put_byte(all, reader.byte());
    put_number(all, reader.number());
    for (std::size_t i = 0; i < reader.key_count(); ++i) put_bytes(all, reader.key(i));
    for (const Value& value : reader.values()) put_bytes(all, value.view());
  }
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const std::string_view bytes{reinterpret_cast<const char*>(data) + 3, size - 3};
  const Query query = queries[data[0] % std::size(queries)];
  fuzz::require(replies_of(bytes, query, data[2] % 8, fuzz::PieceSize::whole()) ==
                replies_of(bytes, query, data[2] % 8, fuzz::PieceSize{data[1]}));
  return 0;
}

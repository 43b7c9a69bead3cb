#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/core/store/store.hpp"

/// Bytes to requests and replies of PyTorch's TCPStore, and back. Integers are little-endian; a text is its length
/// (u64) and its bytes; a list is its count (u64) and its elements.
///
/// A layout is a text with one letter per field: b byte, n nonce (u32), i i64, k key, v value, (…) a counted list, […]
/// a list whose count both sides know, ? ends the message unless the number before it is positive, ! unless the byte
/// before it is zero.
namespace torchup {

/// What follows the code byte of a request; null for a code that nobody knows. VALIDATE is "n", its magic.
[[nodiscard]] const char* request_layout(Query query);
/// What the server answers; empty for a request without reply.
[[nodiscard]] const char* reply_layout(Query query);

/// The five bytes every connection begins with are this, in front the code 0.
inline constexpr std::uint32_t validate_magic = 0x3C85F7CE;

/// Upstream's limits, inclusive. A length beyond them is refused before anything is allocated for it.
struct FieldLimits {
  std::uint64_t key_bytes_max = 8192;
  std::uint64_t value_bytes_max = 8 * 1024 * 1024;
  std::uint64_t count_max = 128 * 1024;
  std::uint64_t message_bytes_max = std::uint64_t{256} << 20;  ///< all fields of one message
};

/// Reads the fields of one message after the other from a stream that may be cut at any byte.
///
/// A message that arrives whole is read where it lies. Of one that is cut, the bytes so far are kept, but not those of
/// a value of `direct_min` bytes or more: it gets a block of its own, into which the rest may be received directly. A
/// reader between two messages holds next to no memory.
class FieldReader {
 public:
  static constexpr std::size_t direct_min = 4096;
  enum class Status { complete, incomplete, malformed };

  explicit FieldReader(FieldLimits limits) : limits_{limits} {}

  /// Begins a message. `count` is the number of elements of a […] list.
  void begin(const char* layout, std::size_t count = 0);
  /// True from `begin` until the message is complete.
  [[nodiscard]] bool open() const { return field_ != nullptr; }
  /// Takes the message's bytes off the front of `input`: all of it unless the message is complete.
  Status read(std::string_view& input);
  /// Frees what the last message held; its fields are gone. `begin` does so too.
  void clear();

  /// Where the missing bytes of a large value go; empty when none is being read. Tell `filled` how many came.
  [[nodiscard]] std::span<char> direct_space();
  void filled(std::size_t bytes) { direct_filled_ += bytes; }

  /// Memory that the current message holds.
  [[nodiscard]] std::size_t held_bytes() const {
    return kept_.capacity() + values_bytes_ + sizeof(Span) * spans_.capacity() + sizeof(Value) * values_.capacity();
  }
  /// Why the stream is malformed.
  [[nodiscard]] const std::string& error() const { return error_; }

  // The fields of a complete message. Views hold until the next call of `begin` or `clear`, and as long as the input
  // that the message was read from.

  [[nodiscard]] std::size_t key_count() const { return spans_.size(); }
  [[nodiscard]] std::string_view key(std::size_t i) const { return message_.substr(spans_[i].offset, spans_[i].size); }
  [[nodiscard]] std::vector<Value>& values() { return values_; }
  [[nodiscard]] std::int64_t number() const { return number_; }
  [[nodiscard]] std::uint32_t nonce() const { return nonce_; }
  [[nodiscard]] std::uint8_t byte() const { return byte_; }

 private:
  struct Span {
    std::size_t offset, size;  ///< offset from the message's first byte, large values not counted
  };

  Status fields(std::string_view bytes);
  Status text(std::string_view bytes, std::uint64_t most, const char* what, std::string_view& out);
  Status value(std::string_view bytes);
  Status list(std::string_view bytes);
  bool take_direct(std::string_view& input);
  bool has(std::string_view bytes, std::uint64_t size);
  Status refuse(std::string reason);

  FieldLimits limits_;
  const char* field_ = nullptr;  ///< next field of the layout; null between messages
  const char* list_begin_ = nullptr;
  std::uint64_t list_left_ = 0;  ///< elements of the list not yet read, known in front for […]
  bool have_length_ = false;     ///< of the text that stands at cursor_
  std::uint64_t length_ = 0;
  std::uint64_t message_bytes_ = 0;
  std::size_t cursor_ = 0;  ///< how many of the message's bytes are read
  std::size_t need_ = 0;    ///< bytes from cursor_ on without which nothing more can be read
  std::string kept_;        ///< the message so far, when it came in pieces
  std::string_view message_;
  std::vector<Span> spans_;
  std::vector<Value> values_;
  std::size_t values_bytes_ = 0;
  std::shared_ptr<char[]> direct_;  ///< the block of a large value that is being read
  std::size_t direct_filled_ = 0;
  std::int64_t number_ = 0;
  std::uint32_t nonce_ = 0;
  std::uint8_t byte_ = 0;
  std::string error_;
};

/// The server's side of a connection: VALIDATE, then requests.
class RequestReader {
 public:
  using Status = FieldReader::Status;

  /// `validated`: for a stream whose VALIDATE another reader has seen.
  explicit RequestReader(FieldLimits limits, bool validated = false) : fields_{limits}, validated_{validated} {}

  /// Reads one request off the front of `input`. After `complete` call again with what is left, until `incomplete`:
  /// then all of `input` has been taken. One `request` serves any number of readers; its views hold until the next
  /// call.
  Status read(std::string_view& input, Request& request);

  /// True once VALIDATE was right.
  [[nodiscard]] bool validated() const { return validated_; }
  /// A request has begun and is not complete.
  [[nodiscard]] bool in_request() const { return fields_.open(); }
  [[nodiscard]] std::span<char> direct_space() { return fields_.direct_space(); }
  void filled(std::size_t bytes) { fields_.filled(bytes); }
  [[nodiscard]] std::size_t held_bytes() const { return fields_.held_bytes(); }
  /// Why the stream is malformed.
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  FieldReader fields_;
  Query query_ = Query::validate;
  bool validated_;
  std::string error_;
};

// Writing: each appends to `out`.

void put_byte(std::string& out, std::uint8_t value);
void put_nonce(std::string& out, std::uint32_t value);
void put_number(std::string& out, std::int64_t value);
void put_bytes(std::string& out, std::string_view value);

/// The request's code and fields, as the server reads them.
void put_request(std::string& out, const Request& request);

}  // namespace torchup

#include "rendezvous/core/store/store_codec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace torchup {

static_assert(std::endian::native == std::endian::little,
              "the wire is little-endian, and so is every platform that PyTorch runs on");

namespace {

template <class T>
T load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

}  // namespace

const char* request_layout(Query query) {
  switch (query) {
    case Query::validate:
    case Query::ping:
      return "n";
    case Query::set:
    case Query::append:
    case Query::queue_push:
      return "kv";
    case Query::compare_set:
      return "kvv";
    case Query::get:
    case Query::delete_key:
    case Query::queue_pop:
    case Query::queue_len:
    case Query::wait_pop:
      return "k";
    case Query::add:
    case Query::barrier:
      return "ki";
    case Query::check:
    case Query::wait:
    case Query::multi_get:
    case Query::wait_get:
      return "(k)";
    case Query::multi_set:
      return "(kv)";
    case Query::get_num_keys:
    case Query::cancel_wait:
    case Query::list_keys:
      return "";
  }
  return nullptr;
}

const char* reply_layout(Query query) {
  switch (query) {
    case Query::validate:
    case Query::set:
    case Query::append:
    case Query::queue_push:
    case Query::multi_set:
      return "";
    case Query::ping:
      return "n";
    case Query::get:
    case Query::compare_set:
      return "v";
    case Query::add:
    case Query::get_num_keys:
    case Query::delete_key:
    case Query::queue_len:
      return "i";
    case Query::check:
    case Query::wait:
    case Query::cancel_wait:
    case Query::barrier:
      return "b";
    case Query::multi_get:
      return "[v]";
    case Query::queue_pop:
      return "i?v";
    case Query::list_keys:
      return "(k)";
    case Query::wait_get:
      return "b![v]";
    case Query::wait_pop:
      return "b!i?v";
  }
  return nullptr;
}

// FieldReader

void FieldReader::clear() {
  constexpr std::size_t worth_keeping = 16;
  if (spans_.capacity() > worth_keeping) std::vector<Span>{}.swap(spans_);
  if (values_.capacity() > worth_keeping) std::vector<Value>{}.swap(values_);
  spans_.clear();
  values_.clear();
  if (!kept_.empty()) std::string{}.swap(kept_);
  values_bytes_ = 0;
}

void FieldReader::begin(const char* layout, std::size_t count) {
  clear();
  field_ = layout;
  list_left_ = count;
  have_length_ = false;
  message_bytes_ = cursor_ = need_ = 0;
}

FieldReader::Status FieldReader::read(std::string_view& input) {
  if (kept_.empty() && !direct_) {
    const Status status = fields(input);
    if (status == Status::complete) {
      message_ = input.substr(0, cursor_);
      input.remove_prefix(cursor_);
    }
    if (status != Status::incomplete) return status;
    kept_.assign(input.substr(0, cursor_));
    input.remove_prefix(cursor_);
  }
  for (;;) {
    if (direct_) {
      if (!take_direct(input)) return Status::incomplete;
    } else {
      const std::size_t missing = need_ - (kept_.size() - cursor_);
      const std::size_t taken = std::min(missing, input.size());
      kept_.append(input.substr(0, taken));
      input.remove_prefix(taken);
      if (taken < missing) return Status::incomplete;
    }
    const Status status = fields(kept_);
    if (status == Status::complete) message_ = kept_;
    if (status != Status::incomplete) return status;
  }
}

/// True when `size` bytes stand at the cursor. Otherwise they are what the message waits for.
bool FieldReader::has(std::string_view bytes, std::uint64_t size) {
  need_ = size;
  return bytes.size() - cursor_ >= size;
}

FieldReader::Status FieldReader::refuse(std::string reason) {
  error_ = std::move(reason);
  field_ = nullptr;
  return Status::malformed;
}

/// Reads fields from the cursor on until the message ends or `bytes` does. What is read stays read.
FieldReader::Status FieldReader::fields(std::string_view bytes) {
  for (;;) {
    switch (*field_) {
      case '\0':
        field_ = nullptr;
        return Status::complete;
      case 'b':
        if (!has(bytes, 1)) return Status::incomplete;
        byte_ = load<std::uint8_t>(bytes.data() + cursor_);
        cursor_ += 1;
        ++field_;
        break;
      case 'n':
        if (!has(bytes, sizeof nonce_)) return Status::incomplete;
        nonce_ = load<std::uint32_t>(bytes.data() + cursor_);
        cursor_ += sizeof nonce_;
        ++field_;
        break;
      case 'i':
        if (!has(bytes, sizeof number_)) return Status::incomplete;
        number_ = load<std::int64_t>(bytes.data() + cursor_);
        cursor_ += sizeof number_;
        ++field_;
        break;
      case 'k': {
        std::string_view key;
        const Status status = text(bytes, limits_.key_bytes_max, "key_bytes_max", key);
        if (status != Status::complete) return status;
        spans_.push_back({static_cast<std::size_t>(key.data() - bytes.data()), key.size()});
        break;
      }
      case 'v':
        if (const Status status = value(bytes); status != Status::complete) return status;
        break;
      case '(':
      case '[':
        if (const Status status = list(bytes); status != Status::complete) return status;
        break;
      case ')':
      case ']':
        field_ = --list_left_ > 0 ? list_begin_ : field_ + 1;
        break;
      case '?':
        field_ += number_ > 0 ? 1 : std::strlen(field_);
        break;
      case '!':
        field_ += byte_ == 0 ? 1 : std::strlen(field_);
        break;
      default:
        return refuse("unknown layout");
    }
  }
}

/// Reads a length and the text behind it.
FieldReader::Status FieldReader::text(std::string_view bytes, std::uint64_t most, const char* what,
                                      std::string_view& out) {
  if (!have_length_) {
    if (!has(bytes, sizeof length_)) return Status::incomplete;
    length_ = load<std::uint64_t>(bytes.data() + cursor_);
    if (length_ > most) return refuse(fmt::format("{}: a length of {}", what, length_));
    message_bytes_ += sizeof length_ + length_;
    if (message_bytes_ > limits_.message_bytes_max)
      return refuse(fmt::format("request_bytes_max: {} bytes in one message", message_bytes_));
    cursor_ += sizeof length_;
    have_length_ = true;
  }
  if (!has(bytes, length_)) return Status::incomplete;
  out = bytes.substr(cursor_, length_);
  cursor_ += length_;
  have_length_ = false;
  ++field_;
  return Status::complete;
}

FieldReader::Status FieldReader::value(std::string_view bytes) {
  if (direct_) {  // and it is full: read() does not come here before
    values_.emplace_back(std::move(direct_), length_);
    direct_.reset();
    have_length_ = false;
    ++field_;
    return Status::complete;
  }
  std::string_view whole;
  const Status status = text(bytes, limits_.value_bytes_max, "value_bytes_max", whole);
  if (status == Status::complete) {
    values_.emplace_back(whole);
    values_bytes_ += whole.size();
  } else if (status == Status::incomplete && have_length_ && length_ >= direct_min) {
    direct_ = std::make_shared_for_overwrite<char[]>(length_);
    direct_filled_ = 0;
    values_bytes_ += length_;
  }
  return status;
}

FieldReader::Status FieldReader::list(std::string_view bytes) {
  if (*field_ == '(') {
    if (!has(bytes, sizeof list_left_)) return Status::incomplete;
    list_left_ = load<std::uint64_t>(bytes.data() + cursor_);
    cursor_ += sizeof list_left_;
    if (list_left_ > limits_.count_max) return refuse(fmt::format("count_max: a list of {}", list_left_));
  }
  const char* const end = std::strchr(field_, *field_ == '(' ? ')' : ']');
  list_begin_ = field_ + 1;
  field_ = list_left_ > 0 ? list_begin_ : end + 1;
  return Status::complete;
}

std::span<char> FieldReader::direct_space() {
  if (!direct_) return {};
  return {direct_.get() + direct_filled_, static_cast<std::size_t>(length_) - direct_filled_};
}

/// Fills the large value from `input`; true when it is full.
bool FieldReader::take_direct(std::string_view& input) {
  const auto space = direct_space();
  const std::size_t taken = std::min(space.size(), input.size());
  if (taken > 0) std::memcpy(space.data(), input.data(), taken);
  input.remove_prefix(taken);
  direct_filled_ += taken;
  return taken == space.size();
}

// RequestReader

RequestReader::Status RequestReader::read(std::string_view& input, Request& request) {
  if (!fields_.open()) {
    if (input.empty()) {
      fields_.clear();
      return Status::incomplete;
    }
    query_ = static_cast<Query>(static_cast<unsigned char>(input.front()));
    const char* const layout = (query_ == Query::validate) == validated_ ? nullptr : request_layout(query_);
    if (!layout) {
      error_ = validated_ ? fmt::format("unknown query {}", static_cast<int>(query_)) : "not a TCPStore client";
      return Status::malformed;
    }
    input.remove_prefix(1);
    fields_.begin(layout);
  }
  const Status status = fields_.read(input);
  if (status == Status::malformed) error_ = fields_.error();
  if (status != Status::complete) return status;
  if (!validated_) {
    validated_ = fields_.nonce() == validate_magic;
    if (validated_) return read(input, request);
    error_ = "VALIDATE with a wrong magic number";
    return Status::malformed;
  }

  request.query = query_;
  request.key = fields_.key_count() > 0 ? fields_.key(0) : std::string_view{};
  request.keys.clear();
  if (request_layout(query_)[0] == '(')
    for (std::size_t i = 0; i < fields_.key_count(); ++i) request.keys.push_back(fields_.key(i));
  request.values.clear();
  for (Value& value : fields_.values()) request.values.push_back(std::move(value));
  request.number = fields_.number();
  request.nonce = fields_.nonce();
  return Status::complete;
}

// Writing

void put_byte(std::string& out, std::uint8_t value) { put(out, value); }
void put_nonce(std::string& out, std::uint32_t value) { put(out, value); }
void put_number(std::string& out, std::int64_t value) { put(out, value); }
void put_bytes(std::string& out, std::string_view value) {
  put(out, std::uint64_t{value.size()});
  out.append(value);
}

void put_request(std::string& out, const Request& request) {
  put(out, request.query);
  std::size_t key = 0, value = 0;
  for (const char* field = request_layout(request.query); *field; ++field) {
    switch (*field) {
      case 'n':
        put(out, request.query == Query::validate ? validate_magic : request.nonce);
        break;
      case 'i':
        put(out, request.number);
        break;
      case 'k':
        put_bytes(out, request.key);
        break;
      case 'v':
        put_bytes(out, request.values.at(value++).view());
        break;
      case '(': {
        put(out, std::uint64_t{request.keys.size()});
        const bool pairs = field[2] == 'v';
        for (; key < request.keys.size(); ++key) {
          put_bytes(out, request.keys[key]);
          if (pairs) put_bytes(out, request.values.at(key).view());
        }
        return;
      }
      default:
        break;
    }
  }
}

}  // namespace torchup

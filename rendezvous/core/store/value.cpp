#include "rendezvous/core/store/value.hpp"

#include <algorithm>
#include <cstring>

namespace torchup {

Value::Value(std::string_view bytes) : size_{bytes.size()} {
  if (bytes.size() <= inline_bytes_max) {
    if (!bytes.empty()) std::memcpy(inline_.data(), bytes.data(), bytes.size());
    return;
  }
  auto block = std::make_shared_for_overwrite<char[]>(bytes.size());
  std::memcpy(block.get(), bytes.data(), bytes.size());
  shared_ = std::move(block);
}

Value::Value(std::shared_ptr<const char[]> bytes, std::size_t size) : size_{size}, shared_{std::move(bytes)} {}

std::size_t GrowingValue::capacity_with(std::size_t tail) const {
  const std::size_t size = value_.size() + tail;
  return block_ && size <= capacity_ ? capacity_ : std::max(size, 2 * value_.size());
}

std::size_t GrowingValue::held_bytes_with(std::size_t tail) const {
  if (tail == 0) return held_bytes();
  const std::size_t size = value_.size() + tail;
  return Value::held_bytes(size <= Value::inline_bytes_max ? size : capacity_with(tail));
}

void GrowingValue::append(std::string_view tail) {
  if (tail.empty()) return;
  const std::string_view old = value_.view();
  const std::size_t size = old.size() + tail.size();
  if (size <= Value::inline_bytes_max) {
    std::array<char, Value::inline_bytes_max> joined{};
    std::copy(old.begin(), old.end(), joined.begin());
    std::copy(tail.begin(), tail.end(), joined.begin() + static_cast<std::ptrdiff_t>(old.size()));
    value_ = Value{std::string_view{joined.data(), size}};
    return;
  }
  if (!block_ || size > capacity_) {
    capacity_ = capacity_with(tail.size());
    auto larger = std::make_shared_for_overwrite<char[]>(capacity_);
    if (!old.empty()) std::memcpy(larger.get(), old.data(), old.size());
    block_ = std::move(larger);
  }
  std::memcpy(block_.get() + old.size(), tail.data(), tail.size());
  value_ = Value{block_, size};
}

}  // namespace torchup

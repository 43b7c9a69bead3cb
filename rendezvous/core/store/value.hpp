#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string_view>

namespace torchup {

/// Bytes that never change and are shared, not copied, between the store, queues and replies that are being sent.
///
/// Up to `inline_bytes_max` bytes (a counter's decimal text) live in the object itself and cost no allocation.
class Value {
 public:
  static constexpr std::size_t inline_bytes_max = 24;

  Value() = default;
  /// Copies `bytes`.
  explicit Value(std::string_view bytes);
  /// Takes over `size` bytes that the caller has filled and will not change again.
  Value(std::shared_ptr<const char[]> bytes, std::size_t size);

  /// Valid as long as this object is neither changed nor destroyed.
  [[nodiscard]] std::string_view view() const { return {shared_ ? shared_.get() : inline_.data(), size_}; }
  [[nodiscard]] std::size_t size() const { return size_; }
  /// Memory that a value of so many bytes takes up beside this object.
  [[nodiscard]] static std::size_t held_bytes(std::size_t size) {
    constexpr std::size_t block_bytes = 48;  // what counts its owners, and the allocator's own
    return size <= inline_bytes_max ? 0 : size + block_bytes;
  }
  /// The shared bytes, which outlive this object as long as the pointer is held; null for an inline value.
  [[nodiscard]] const std::shared_ptr<const char[]>& storage() const { return shared_; }

  friend bool operator==(const Value& a, const Value& b) { return a.view() == b.view(); }

 private:
  std::size_t size_ = 0;
  std::array<char, inline_bytes_max> inline_{};
  std::shared_ptr<const char[]> shared_;
};

/// A value that grows at its end. The bytes that `value()` handed out earlier stay as they were: growth writes behind
/// them or moves to a block twice as large, so n appends cost O(total size).
class GrowingValue {
 public:
  GrowingValue() = default;
  GrowingValue(Value value) : value_{std::move(value)}, capacity_{value_.size()} {}  // NOLINT: a Value is one

  [[nodiscard]] const Value& value() const { return value_; }
  void append(std::string_view tail);
  /// Memory beside this object, with the room behind the value.
  [[nodiscard]] std::size_t held_bytes() const { return Value::held_bytes(block_ ? capacity_ : value_.size()); }
  /// The same after an append of so many bytes.
  [[nodiscard]] std::size_t held_bytes_with(std::size_t tail) const;

 private:
  [[nodiscard]] std::size_t capacity_with(std::size_t tail) const;

  Value value_;
  std::shared_ptr<char[]> block_;  ///< the storage of value_ while it has room behind it
  std::size_t capacity_ = 0;
};

}  // namespace torchup

#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rendezvous/core/store/value.hpp"

namespace torchup {

/// Values that are on their way to clients. One that goes to a thousand of them takes up memory once, and none while it
/// still lies in the store.
class SharedValues {
 public:
  struct Block {
    std::size_t bytes;  ///< an appended value fills its block further
    std::size_t uses;   ///< by queues
    bool in_store;

    /// What one use of it costs.
    [[nodiscard]] std::size_t bytes_of_one_use() const { return in_store ? 0 : (bytes + uses - 1) / uses; }
  };

  /// Valid as long as it is used.
  Block& add(const Value& value, bool in_store);
  void drop(const Value& value);
  /// The store does not hold it any more.
  void released(const Value& value);

  /// Of all of them, whether they still lie in the store or not.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// Of those that queues alone hold.
  [[nodiscard]] std::size_t bytes_held_by_queues_alone() const { return bytes_alone_; }

 private:
  void resize(Block& block, std::size_t bytes);

  std::unordered_map<const char*, Block> blocks_;
  std::size_t bytes_ = 0, bytes_alone_ = 0;
};

/// Bytes on their way out of one connection. Small ones are gathered; a value of `share_min` bytes and more is sent
/// from where it lies, however many connections it goes to.
class ReplyQueue {
 public:
  static constexpr std::size_t share_min = 1024;

  /// Where to append bytes.
  [[nodiscard]] std::string& buffer() { return bytes_; }
  void share(const Value& value, bool in_store, SharedValues& all);

  [[nodiscard]] bool empty() const { return size() == 0; }
  [[nodiscard]] std::size_t size() const { return bytes_.size() - bytes_sent_ + shared_left_; }
  /// Memory that this queue takes up, without that of values.
  [[nodiscard]] std::size_t own_bytes() const { return bytes_.size() + shared_.capacity() * sizeof(Shared); }
  /// The same with its part of the values that the store does not hold. Looks at each.
  [[nodiscard]] std::size_t held_bytes() const;
  /// What is to be sent, where that is one piece; else nothing.
  [[nodiscard]] std::string_view only_piece() const {
    return shared_left_ == 0 ? std::string_view{bytes_}.substr(bytes_sent_) : std::string_view{};
  }
  /// Fills `pieces` with what to send next and returns how many it used.
  [[nodiscard]] std::size_t front(std::span<iovec> pieces) const;
  /// So many bytes of the front have been sent.
  void pop(std::size_t count, SharedValues& all);
  void clear(SharedValues& all);

 private:
  struct Shared {
    std::size_t position;  ///< in bytes_, where the value belongs
    Value value;
    const SharedValues::Block* block;
  };

  void drop_sent();

  std::string bytes_;
  std::size_t bytes_sent_ = 0;
  std::vector<Shared> shared_;
  std::size_t first_ = 0;       ///< of shared_, the first not sent
  std::size_t first_sent_ = 0;  ///< bytes of it that are
  std::size_t shared_left_ = 0;
};

}  // namespace torchup

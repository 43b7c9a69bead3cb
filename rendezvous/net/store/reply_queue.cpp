#include "rendezvous/net/store/reply_queue.hpp"

#include <algorithm>

namespace torchup {
namespace {

iovec piece(std::string_view bytes) { return {const_cast<char*>(bytes.data()), bytes.size()}; }

}  // namespace

void SharedValues::add(const Value& value) {
  const auto [place, first] = blocks_.try_emplace(value.view().data(), Block{value});
  ++place->second.uses;
  if (first) bytes_ += value.size();
}

void SharedValues::drop(const Value& value) {
  const auto place = blocks_.find(value.view().data());
  if (--place->second.uses > 0) return;
  bytes_ -= place->second.value.size();
  blocks_.erase(place);
}

std::size_t SharedValues::bytes_held_by_queues_alone() const {
  std::size_t bytes = 0;
  for (const auto& [data, block] : blocks_) {
    if (block.value.storage().use_count() <= block.uses + 1) bytes += block.value.size();
  }
  return bytes;
}

void ReplyQueue::share(const Value& value, SharedValues& all) {
  shared_.push_back({bytes_.size(), value});
  all.add(value);
  shared_left_ += value.size();
}

std::size_t ReplyQueue::bytes_held_alone() const {
  constexpr long uses_by_one_queue = 2;  // its own, and that of SharedValues
  std::size_t bytes = own_bytes();
  for (std::size_t i = first_; i < shared_.size(); ++i) {
    if (shared_[i].value.storage().use_count() <= uses_by_one_queue) bytes += shared_[i].value.size();
  }
  return bytes;
}

std::size_t ReplyQueue::front(std::span<iovec> pieces) const {
  std::size_t used = 0, at = bytes_sent_, next = first_, skip = first_sent_;
  while (used < pieces.size()) {
    const std::size_t stop = next < shared_.size() ? shared_[next].position : bytes_.size();
    if (stop > at) {
      pieces[used++] = piece(std::string_view{bytes_}.substr(at, stop - at));
      at = stop;
    } else if (next < shared_.size()) {
      pieces[used++] = piece(shared_[next++].value.view().substr(skip));
      skip = 0;
    } else {
      break;
    }
  }
  return used;
}

void ReplyQueue::pop(std::size_t count, SharedValues& all) {
  while (count > 0) {
    const std::size_t stop = first_ < shared_.size() ? shared_[first_].position : bytes_.size();
    const std::size_t plain = std::min(count, stop - bytes_sent_);
    bytes_sent_ += plain;
    count -= plain;
    if (first_ == shared_.size()) break;
    const std::size_t of_value = std::min(count, shared_[first_].value.size() - first_sent_);
    first_sent_ += of_value;
    shared_left_ -= of_value;
    count -= of_value;
    if (first_sent_ < shared_[first_].value.size()) break;
    all.drop(shared_[first_].value);
    shared_[first_].value = Value{};
    ++first_;
    first_sent_ = 0;
  }
  if (!empty()) return drop_sent();
  constexpr std::size_t worth_keeping = 512;
  if (bytes_.capacity() > worth_keeping) std::string{}.swap(bytes_);
  bytes_.clear();
  shared_ = {};
  bytes_sent_ = first_ = first_sent_ = 0;
}

void ReplyQueue::clear(SharedValues& all) {
  for (std::size_t i = first_; i < shared_.size(); ++i) all.drop(shared_[i].value);
  *this = ReplyQueue{};
}

/// Keeps a queue that never runs empty from growing.
void ReplyQueue::drop_sent() {
  constexpr std::size_t worth_dropping = 64 * 1024;
  if (bytes_sent_ < worth_dropping || 2 * bytes_sent_ < bytes_.size()) return;
  bytes_.erase(0, bytes_sent_);
  shared_.erase(shared_.begin(), shared_.begin() + static_cast<std::ptrdiff_t>(first_));
  for (Shared& shared : shared_) shared.position -= bytes_sent_;
  bytes_sent_ = first_ = 0;
}

}  // namespace torchup

#include "rendezvous/net/store/reply_queue.hpp"

#include <algorithm>

namespace torchup {
namespace {

iovec piece(std::string_view bytes) { return {const_cast<char*>(bytes.data()), bytes.size()}; }

}  // namespace

SharedValues::Block& SharedValues::add(const Value& value, bool in_store) {
  const auto [place, first] = blocks_.try_emplace(value.view().data(), Block{0, 0, in_store});
  Block& block = place->second;
  ++block.uses;
  resize(block, std::max(block.bytes, value.size()));
  return block;
}

void SharedValues::drop(const Value& value) {
  const auto place = blocks_.find(value.view().data());
  if (--place->second.uses > 0) return;
  resize(place->second, 0);
  blocks_.erase(place);
}

void SharedValues::released(const Value& value) {
  const auto place = blocks_.find(value.view().data());
  if (place == blocks_.end() || !place->second.in_store) return;
  resize(place->second, value.size());
  place->second.in_store = false;
  bytes_alone_ += place->second.bytes;
}

void SharedValues::resize(Block& block, std::size_t bytes) {
  bytes_ += bytes - block.bytes;
  if (!block.in_store) bytes_alone_ += bytes - block.bytes;
  block.bytes = bytes;
}

void ReplyQueue::share(const Value& value, bool in_store, SharedValues& all) {
  shared_.push_back({bytes_.size(), value, &all.add(value, in_store)});
  shared_left_ += value.size();
}

std::size_t ReplyQueue::held_bytes() const {
  std::size_t bytes = own_bytes();
  for (std::size_t i = first_; i < shared_.size(); ++i) bytes += shared_[i].block->bytes_of_one_use();
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
  std::vector<Shared>{}.swap(shared_);  // `= {}` would keep the room
  bytes_sent_ = first_ = first_sent_ = 0;
}

void ReplyQueue::clear(SharedValues& all) {
  for (std::size_t i = first_; i < shared_.size(); ++i) all.drop(shared_[i].value);
  std::string{}.swap(bytes_);
  *this = ReplyQueue{};
}

/// Keeps a queue that never runs empty from growing, and one that was long from keeping what it does not need.
void ReplyQueue::drop_sent() {
  constexpr std::size_t worth_dropping = 64 * 1024;
  if (bytes_sent_ < worth_dropping || 2 * bytes_sent_ < bytes_.size()) return;
  std::string{bytes_, bytes_sent_}.swap(bytes_);  // which an assignment of a few bytes would not give up
  shared_.erase(shared_.begin(), shared_.begin() + static_cast<std::ptrdiff_t>(first_));
  for (Shared& shared : shared_) shared.position -= bytes_sent_;
  bytes_sent_ = first_ = 0;
}

}  // namespace torchup

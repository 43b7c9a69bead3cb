#include "rendezvous/net/reply_queue.hpp"

#include <algorithm>

namespace torchup {
namespace {

iovec piece(std::string_view bytes) { return {const_cast<char*>(bytes.data()), bytes.size()}; }

}  // namespace

void ReplyQueue::share(const Value& value) {
  shared_.push_back({bytes_.size(), value});
  shared_left_ += value.size();
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

void ReplyQueue::pop(std::size_t count) {
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

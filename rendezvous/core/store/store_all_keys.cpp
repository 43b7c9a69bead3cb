// The store: what looks at all of its keys, which may be many, and so goes part by part.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "rendezvous/core/store/store.hpp"
#include "rendezvous/core/store/store_codec.hpp"

namespace torchup {

bool Store::prepare_list(ClientId client, std::size_t keys) {
  if (list_ && list_->client != client) return false;
  const auto too_long = [&](std::size_t bytes) {
    refuse(client, fmt::format("listed_bytes_max: the list of all keys has {} bytes", bytes));
    return true;
  };
  if (listed_bytes_ > limits_.listed_bytes_max) return too_long(listed_bytes_);
  if (!list_) {
    list_.emplace(List{.client = client, .encoded = {}});
    list_->encoded.reserve(listed_bytes_);
    put_number(list_->encoded, 0);
  }
  for (std::size_t looked_at = 0; list_->next < Entries::part_count && looked_at < keys; ++list_->next) {
    const auto& part = entries_.part(list_->next);
    for (const auto& [key, value] : part) put_bytes(list_->encoded, key);
    list_->count += part.size();
    looked_at += part.size() + 1;
    if (list_->encoded.size() > limits_.listed_bytes_max) return too_long(list_->encoded.size());
  }
  return list_->next == Entries::part_count;
}

void Store::list_keys(ClientId client) {
  if (has_list(client)) {
    std::string count, encoded = std::move(list_->encoded);
    put_number(count, static_cast<std::int64_t>(list_->count));
    encoded.replace(0, count.size(), count);
    list_.reset();
    return outlet_.fields(client, std::move(encoded));
  }
  forget_list(client);
  if (listed_bytes_ > limits_.listed_bytes_max)
    return refuse(client, fmt::format("listed_bytes_max: the list of all keys has {} bytes", listed_bytes_));
  outlet_.number(client, static_cast<std::int64_t>(entries_.size()));
  for (std::size_t i = 0; i < Entries::part_count; ++i)
    for (const auto& [key, value] : entries_.part(i)) outlet_.bytes(client, std::string_view{key});
}

std::size_t Store::erase_if(const std::function<bool(std::string_view key)>& condition) {
  const std::size_t before = entries_.size() + queues_.size();
  std::size_t next = 0;
  erase_some(condition, std::numeric_limits<std::size_t>::max(), next);
  return before - entries_.size() - queues_.size();
}

bool Store::erase_some(const std::function<bool(std::string_view key)>& condition, std::size_t keys,
                       std::size_t& next) {
  constexpr std::size_t last = Entries::part_count + Queues::part_count;
  std::size_t left = keys, elements_left = keys;
  const auto chosen_of = [&](const auto& part) {
    std::vector<std::string> chosen;
    for (const auto& [key, value] : part)
      if (condition(key)) chosen.push_back(key);
    left -= std::min(left, part.size() + 1);
    return chosen;
  };
  for (; next < Entries::part_count && left > 0; ++next)
    for (const std::string& key : chosen_of(entries_.part(next))) erase(key);
  for (; next >= Entries::part_count && next < last && left > 0; ++next) {
    for (const std::string& key : chosen_of(queues_.part(next - Entries::part_count)))
      if (!erase_queue(key, elements_left)) return false;
  }
  return next == last;
}

/// Takes so many elements out of the queue and counts them; false when some are left.
bool Store::erase_queue(std::string_view key, std::size_t& most) {
  auto& elements = queues_.find(key)->second;
  for (; !elements.empty() && most > 0; --most) {
    bytes_ -= cost_of_element(elements.front().size());
    elements.pop_front();
  }
  if (!elements.empty()) return false;
  drop_queue(key);
  return true;
}

}  // namespace torchup

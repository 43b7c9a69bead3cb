#include "rendezvous/core/store/store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace torchup {
namespace {

/// What a key costs beside its bytes and its value's block: the map's node with the value, the allocator.
constexpr std::size_t entry_bytes = 160;

/// What a queue's element costs beside its bytes.
constexpr std::size_t element_bytes = 128;

/// And a queue, whose first element already takes a block for many.
constexpr std::size_t queue_bytes = 640;

std::size_t cost(std::string_view key, std::size_t held_by_value) { return key.size() + held_by_value + entry_bytes; }
std::size_t cost_of_queue(std::string_view key) { return key.size() + queue_bytes; }

}  // namespace

std::size_t Store::cost_of_element(std::size_t bytes) { return bytes + element_bytes; }

namespace {

/// The number at the front of `text`, read as C's strtoll does it: white space, a sign, digits, then anything.
std::optional<std::int64_t> leading_number(std::string_view text) {
  const auto start = text.find_first_not_of(" \t\n\v\f\r");
  if (start == std::string_view::npos) return std::nullopt;
  text.remove_prefix(start);
  if (text.front() == '+') {
    text.remove_prefix(1);
    if (!text.empty() && text.front() == '-') return std::nullopt;
  }
  std::int64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc{}) return std::nullopt;
  return number;
}

std::int64_t wrapping_sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

Value decimal(std::int64_t number) {
  std::array<char, std::numeric_limits<std::int64_t>::digits10 + 2> text{};
  const auto [end, code] = std::to_chars(text.data(), text.data() + text.size(), number);
  return Value{std::string_view{text.data(), static_cast<std::size_t>(end - text.data())}};
}

}  // namespace

void Store::apply(ClientId client, Request& request) {
  switch (request.query) {
    case Query::validate:
      return;
    case Query::set:
      store(client, request.key, std::move(request.values.at(0)));
      return;
    case Query::compare_set:
      return compare_set(client, request);
    case Query::get: {
      const Value* value = request.key == extension_key ? &identity_ : find(request.key);
      return value ? outlet_.bytes(client, *value) : outlet_.bytes(client, std::string_view{});
    }
    case Query::add:
      if (const auto sum = advance(client, request.key, request.number, true)) outlet_.number(client, *sum);
      return;
    case Query::check:
      return check(client, request);
    case Query::wait:
    case Query::wait_get:
      return wait(client, request);
    case Query::wait_pop:
      if (!present(request.key)) return register_wait(client, request.query, &request.key, 1);
      if (!waits_.empty()) forget_wait(client);
      outlet_.byte(client, stop_waiting);
      return pop(client, request.key);
    case Query::get_num_keys:
      return outlet_.number(client, static_cast<std::int64_t>(entries_.size()));
    case Query::delete_key:
      return outlet_.number(client, erase(request.key) ? 1 : 0);
    case Query::append:
      return append(client, request);
    case Query::multi_get:
      for (const auto key : request.keys) {
        const Value* value = find(key);
        value ? outlet_.bytes(client, *value) : outlet_.bytes(client, std::string_view{});
      }
      return;
    case Query::multi_set:
      return multi_set(client, request);
    case Query::cancel_wait:
      forget_wait(client);
      return outlet_.byte(client, wait_canceled);
    case Query::ping:
      return outlet_.nonce(client, request.nonce);
    case Query::queue_push:
      return push(client, request);
    case Query::queue_pop:
      return pop(client, request.key);
    case Query::queue_len: {
      const auto* queue = queues_.find(request.key);
      return outlet_.number(client, queue ? static_cast<std::int64_t>(queue->second.size()) : 0);
    }
    case Query::list_keys:
      return list_keys(client);
    case Query::barrier:
      return barrier(client, request);
  }
  refuse(client, "unknown query");
}

void Store::disconnect(ClientId client) {
  if (!waits_.empty()) forget_wait(client);
  forget_list(client);
}

const Value* Store::find(std::string_view key) const {
  const auto* entry = entries_.find(key);
  return entry ? &entry->second.value() : nullptr;
}

bool Store::present(std::string_view key) const { return entries_.contains(key) || queues_.contains(key); }

// Writing.

namespace {
constexpr ClientId nobody{std::numeric_limits<std::uint32_t>::max()};
}

bool Store::room_for(ClientId client, std::size_t new_keys, std::size_t new_bytes) {
  if (new_keys > 0 && entries_.size() + queues_.size() + new_keys > limits_.keys_max) {
    refuse(client, fmt::format("keys_max: the store holds {} keys", entries_.size() + queues_.size()));
    return false;
  }
  if (bytes_ + new_bytes > limits_.bytes_max) {
    refuse(client, fmt::format("bytes_max: the store holds {} bytes", bytes_));
    return false;
  }
  return true;
}

void Store::refuse(ClientId client, std::string reason) {
  if (client == nobody) return;
  disconnect(client);
  outlet_.close(client, std::move(reason));
}

bool Store::set(std::string_view key, Value value) { return store(nobody, key, std::move(value)); }

std::optional<std::int64_t> Store::add(std::string_view key, std::int64_t delta) {
  return advance(nobody, key, delta, true);
}

/// Stores `value` and wakes. False when the client was refused.
bool Store::store(ClientId client, std::string_view key, Value value) {
  if (auto* const entry = entries_.find(key)) {
    const std::size_t before = entry->second.held_bytes(), after = Value::held_bytes(value.size());
    if (after > before && !room_for(client, 0, after - before)) return false;
    replace(entry->second, std::move(value));
    wrote(key, false);
    return true;
  }
  if (key == extension_key) {
    refuse(client, "this key is reserved");
    return false;
  }
  if (!room_for(client, 1, cost(key, Value::held_bytes(value.size())))) return false;
  const bool is_new = !queues_.contains(key);
  put_new(key, std::move(value));
  wrote(key, is_new);
  return true;
}

void Store::put_new(std::string_view key, Value value) {
  bytes_ += cost(key, Value::held_bytes(value.size()));
  entries_.emplace(key, std::move(value));
  listed_bytes_ += sizeof(std::uint64_t) + key.size();
}

void Store::replace(GrowingValue& place, Value value) {
  bytes_ = bytes_ - place.held_bytes() + Value::held_bytes(value.size());
  release(place.value());
  place = std::move(value);
}

void Store::release(const Value& value) {
  if (value.storage()) outlet_.released(value);
}

/// A plain value was written: everybody whose wait is satisfied now goes on, and a barrier of that key is released.
void Store::wrote(std::string_view key, bool is_new) {
  if (waits_.empty()) return;
  if (is_new) appeared(key);
  wake_satisfied(key);
  release_barrier(key);
}

/// Adds to the number that `key` holds and stores the sum. Empty when the client was refused.
std::optional<std::int64_t> Store::advance(ClientId client, std::string_view key, std::int64_t delta, bool wakes) {
  if (auto* const entry = entries_.find(key)) {
    const auto number = leading_number(entry->second.value().view());
    if (!number) {
      refuse(client, "ADD or BARRIER on a key that holds no number");
      return std::nullopt;
    }
    const std::int64_t sum = wrapping_sum(*number, delta);
    replace(entry->second, decimal(sum));
    if (wakes) wrote(key, false);
    return sum;
  }
  if (wakes) return store(client, key, decimal(delta)) ? std::optional{delta} : std::nullopt;

  // The first arrival at a barrier: its key is there from now on, but nobody is woken.
  Value text = decimal(delta);
  if (key == extension_key) {
    refuse(client, "this key is reserved");
    return std::nullopt;
  }
  if (!room_for(client, 1, cost(key, Value::held_bytes(text.size())))) return std::nullopt;
  const bool is_new = !queues_.contains(key);
  put_new(key, std::move(text));
  if (is_new && !waits_.empty()) appeared(key);
  return delta;
}

void Store::compare_set(ClientId client, Request& request) {
  const Value& expected = request.values.at(0);
  Value desired = std::move(request.values.at(1));
  const Value* stored = find(request.key);
  if (stored && !(*stored == expected)) return outlet_.bytes(client, *stored);
  if (!stored && expected.size() > 0) return outlet_.given(client, expected);
  const Value reply = desired;
  if (store(client, request.key, std::move(desired))) outlet_.bytes(client, reply);
}

void Store::append(ClientId client, Request& request) {
  auto* const entry = entries_.find(request.key);
  Value& tail = request.values.at(0);
  if (!entry) {
    store(client, request.key, std::move(tail));
    return;
  }
  const std::size_t growth = entry->second.held_bytes_with(tail.size()) - entry->second.held_bytes();
  if (!room_for(client, 0, growth)) return;
  const std::size_t size = entry->second.value().size() + tail.size();
  if (size > limits_.value_bytes_max) {
    return refuse(client, fmt::format("value_bytes_max: APPEND would make {} bytes of a value", size));
  }
  const Value before = entry->second.value();
  entry->second.append(tail.view());
  if (entry->second.value().storage() != before.storage()) release(before);
  bytes_ += growth;
  wrote(request.key, false);
}

/// All of it or nothing. A key that is named twice counts twice, which matters at a limit alone.
void Store::multi_set(ClientId client, Request& request) {
  std::size_t new_keys = 0, new_bytes = 0;
  for (std::size_t i = 0; i < request.keys.size(); ++i) {
    const std::size_t bytes = Value::held_bytes(request.values.at(i).size());
    const auto* const stored = entries_.find(request.keys[i]);
    if (!stored && request.keys[i] == extension_key) return refuse(client, "this key is reserved");
    new_keys += stored ? 0 : 1;
    new_bytes += stored ? bytes - std::min(bytes, stored->second.held_bytes()) : cost(request.keys[i], bytes);
  }
  if (!room_for(client, new_keys, new_bytes)) return;
  for (std::size_t i = 0; i < request.keys.size(); ++i)
    if (!store(client, request.keys[i], std::move(request.values.at(i)))) return;
}

bool Store::erase(std::string_view key) {
  const auto* const entry = entries_.find(key);
  if (!entry) return false;
  bytes_ -= cost(key, entry->second.held_bytes());
  listed_bytes_ -= sizeof(std::uint64_t) + key.size();
  release(entry->second.value());
  entries_.erase(key);
  if (!waits_.empty() && !queues_.contains(key)) vanished(key);
  return true;
}

// Queues.

void Store::push(ClientId client, Request& request) {
  if (request.key == extension_key) return refuse(client, "this key is reserved");
  Value element = std::move(request.values.at(0));
  auto* queue = queues_.find(request.key);
  const bool first = !queue;
  const std::size_t bytes = cost_of_element(element.size()) + (first ? cost_of_queue(request.key) : 0);
  if (!room_for(client, first ? 1 : 0, bytes)) return;
  bytes_ += bytes;
  if (first) queue = &queues_.emplace(request.key, std::deque<Value>{});
  queue->second.push_back(std::move(element));
  if (waits_.empty()) return;
  if (first && !entries_.contains(request.key)) appeared(request.key);
  wake_one(request.key);
}

/// Answers the queue's length before the pop, and its head if there is one.
void Store::pop(ClientId client, std::string_view key) {
  auto* const queue = queues_.find(key);
  if (!queue) return outlet_.number(client, 0);
  outlet_.number(client, static_cast<std::int64_t>(queue->second.size()));
  const Value head = std::move(queue->second.front());
  queue->second.pop_front();
  bytes_ -= cost_of_element(head.size());
  outlet_.given(client, head);
  if (!queue->second.empty()) return;
  drop_queue(key);
}

/// An empty one.
void Store::drop_queue(std::string_view key) {
  bytes_ -= cost_of_queue(key);
  queues_.erase(key);
  if (!waits_.empty() && !entries_.contains(key)) vanished(key);
}

}  // namespace torchup

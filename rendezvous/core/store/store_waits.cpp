// The store: its waits. Each counts the keys it names that are absent; keys tell it when they appear and vanish. So a
// write walks along the line of its key only where that key has appeared, or somebody has all that he waits for.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "rendezvous/core/store/store.hpp"

namespace torchup {
namespace {

/// What a wait costs for each key that it names.
std::size_t cost_of_wait(std::string_view key) { return key.size() + 128; }

}  // namespace

void Store::check(ClientId client, const Request& request) {
  for (const auto key : request.keys)
    if (!present(key) && !(key == extension_key && request.keys.size() == 1)) return outlet_.byte(client, not_ready);
  outlet_.byte(client, ready);
}

void Store::wait(ClientId client, const Request& request) {
  for (const auto key : request.keys)
    if (!present(key)) return register_wait(client, request.query, request.keys.data(), request.keys.size());
  if (!waits_.empty()) forget_wait(client);
  outlet_.byte(client, stop_waiting);
  if (request.query != Query::wait_get) return;
  for (const auto key : request.keys) {
    const Value* value = find(key);
    value ? outlet_.bytes(client, *value) : outlet_.bytes(client, std::string_view{});
  }
}

void Store::barrier(ClientId client, const Request& request) {
  const auto arrived = advance(client, request.key, 1, false);
  if (!arrived) return;
  if (*arrived < request.number) return register_wait(client, request.query, &request.key, 1);
  if (!waits_.empty()) forget_wait(client);
  wrote(request.key, false);
  outlet_.byte(client, stop_waiting);
}

void Store::register_wait(ClientId client, Query query, const std::string_view* keys, std::size_t count) {
  forget_wait(client);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) bytes += cost_of_wait(keys[i]);
  if (waits_bytes_ + bytes > limits_.waits_bytes_max)
    return refuse(client, fmt::format("waits_bytes_max: open waits take up {} bytes", waits_bytes_));
  auto& map = query == Query::barrier ? barriers_ : awaited_;
  Wait& wait = waits_.emplace(client.value(), Wait{client, query}).first->second;
  wait.registrations.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto* found = map.find(keys[i]);
    if (!found) found = &map.emplace(keys[i], Line{});
    Line& line = found->second;
    waits_bytes_ += cost_of_wait(keys[i]);
    if (!line.empty() && line.back() == &wait) {  // named before
      wait.registrations.push_back({found, line.end()});
      continue;
    }
    line.push_back(&wait);
    wait.registrations.push_back({found, std::prev(line.end())});
    if (query != Query::barrier && !present(keys[i])) ++wait.missing;
  }
}

void Store::appeared(std::string_view key) {
  if (const auto* const found = awaited_.find(key))
    for (Wait* wait : found->second) satisfied_ += --wait->missing == 0;
}

void Store::vanished(std::string_view key) {
  if (const auto* const found = awaited_.find(key))
    for (Wait* wait : found->second) satisfied_ -= wait->missing++ == 0;
}

/// Answers all in the line of `key` that miss nothing any more, oldest first.
void Store::wake_satisfied(std::string_view key) {
  if (satisfied_ == 0) return;
  const auto* const found = awaited_.find(key);
  if (!found) return;
  std::vector<ClientId> woken;
  for (const Wait* wait : found->second)
    if (wait->missing == 0) woken.push_back(wait->client);
  for (const ClientId client : woken) {
    // An earlier one may have popped the queue's last element.
    const auto wait = waits_.find(client.value());
    if (wait != waits_.end() && wait->second.missing == 0) answer(wait->second);
  }
}

/// A push is for one: the first in the line who takes the element with his answer. Where nobody does, the first is
/// told, who may take it or not.
void Store::wake_one(std::string_view key) {
  if (satisfied_ == 0) return;
  const auto* const found = awaited_.find(key);
  if (!found) return;
  Wait* first = nullptr;
  for (Wait* wait : found->second) {
    if (wait->missing > 0) continue;
    if (wait->query == Query::wait_pop) return answer(*wait);
    if (!first) first = wait;
  }
  if (first) answer(*first);
}

void Store::release_barrier(std::string_view key) {
  const auto* const found = barriers_.find(key);
  if (!found) return;
  std::vector<ClientId> woken;
  for (const Wait* wait : found->second) woken.push_back(wait->client);
  for (const ClientId client : woken) answer(waits_.find(client.value())->second);
}

/// Ends `wait` with its answer.
void Store::answer(Wait& wait) {
  const ClientId client = wait.client;
  outlet_.byte(client, stop_waiting);
  if (wait.query == Query::wait_get) {
    for (const Registration& registration : wait.registrations) {
      const Value* value = find(registration.line->first);
      value ? outlet_.bytes(client, *value) : outlet_.bytes(client, std::string_view{});
    }
  }
  const bool pops = wait.query == Query::wait_pop;
  const std::string key = pops ? wait.registrations.front().line->first : std::string{};
  forget_wait(client);
  if (pops) pop(client, key);
}

/// Takes the client out of all lines; false when it was in none.
bool Store::forget_wait(ClientId client) {
  const auto found = waits_.find(client.value());
  if (found == waits_.end()) return false;
  auto& map = found->second.query == Query::barrier ? barriers_ : awaited_;
  if (found->second.query != Query::barrier && found->second.missing == 0) --satisfied_;
  // From the last to the first: a line lasts as long as its first mention.
  auto& registrations = found->second.registrations;
  for (auto registration = registrations.rbegin(); registration != registrations.rend(); ++registration) {
    Line& line = registration->line->second;
    waits_bytes_ -= cost_of_wait(registration->line->first);
    if (registration->place == line.end()) continue;
    line.erase(registration->place);
    if (line.empty()) map.erase(registration->line->first);
  }
  waits_.erase(found);
  return true;
}

}  // namespace torchup

#include "rendezvous/core/ops/event_ring.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "rendezvous/core/ops/withheld.hpp"
#include "rendezvous/core/text/json_text.hpp"

namespace torchup {
namespace {

/// Whether an escape in it spells a small letter or "_", as in a member's name.
bool spells_letters(std::string_view event) {
  constexpr std::array<std::string_view, 3> escapes{"\\u005", "\\u006", "\\u007"};
  return std::any_of(escapes.begin(), escapes.end(),
                     [&](std::string_view escape) { return event.find(escape) != std::string_view::npos; });
}

/// What a stranger's event says of what is ours to say is left out: of two members of a name readers take the last.
std::string without(std::string_view event, std::initializer_list<const char*> names) {
  const bool may_have_them = spells_letters(event) || std::any_of(names.begin(), names.end(), [&](const char* name) {
                               return event.find(fmt::format("\"{}\"", name)) != std::string_view::npos;
                             });
  if (!may_have_them) return std::string{event};
  auto members = nlohmann::ordered_json::parse(event, nullptr, false);
  if (!members.is_object()) return "{}";
  for (const char* const name : names) members.erase(std::string{name});
  return members.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// `first` before the first member.
std::string with_in_front(std::string_view first, std::string_view event) {
  event.remove_prefix(1);
  return fmt::format("{{{}{}{}", first, event == "}" ? "" : ",", event);
}

}  // namespace

std::string numbered_event(std::uint64_t seq, std::string_view event) {
  return with_in_front(fmt::format("\"seq\":{}", seq), without(event, {"seq"}));
}

std::string event_line(std::string_view run_id, std::uint64_t seq, std::string_view event) {
  std::string first{"\"run_id\":"};
  put_json(first, run_id);
  first += fmt::format(",\"seq\":{}", seq);
  return with_in_front(first, without(event, {"run_id", "seq"})) + "\n";
}

std::size_t EventRings::Event::bytes() const { return sizeof(Event) + whole.capacity() + withheld.capacity(); }

std::uint64_t EventRings::add(const std::string& run_id, std::string_view event) {
  Ring& ring = rings_.try_emplace(run_id, new_ring()).first->second;
  Event kept{numbered_event(++ring.last, event), {}};
  std::string part = withheld(kept.whole);
  if (part != kept.whole) kept.withheld = std::move(part);
  ring.bytes += kept.bytes();
  bytes_ += kept.bytes();
  ring.events.push_back(std::move(kept));
  if (ring.events.size() > limits_.events_max) drop_oldest(ring);
  while (bytes_ > limits_.bytes_max) {
    const auto fullest = std::max_element(rings_.begin(), rings_.end(), [](const auto& left, const auto& right) {
      return left.second.bytes < right.second.bytes;
    });
    drop_oldest(fullest->second);
  }
  return ring.last;
}

void EventRings::keep_only(const std::set<std::string>& run_ids) {
  std::erase_if(rings_, [&](const auto& entry) {
    const bool goes = !run_ids.contains(entry.first);
    if (!goes) return false;
    bytes_ -= entry.second.bytes;
    limits_.above = std::max(limits_.above, entry.second.last);  // the run id may be used again
    return true;
  });
}

std::uint64_t EventRings::last(const std::string& run_id) const {
  const auto ring = rings_.find(run_id);
  return ring == rings_.end() ? limits_.above : ring->second.last;
}

EventRings::Seen EventRings::read(const std::string& run_id, std::uint64_t since, Right right, std::size_t bytes_max,
                                  const See& see) const {
  const auto found = rings_.find(run_id);
  const Ring none = new_ring();
  const Ring& ring = found == rings_.end() ? none : found->second;
  Seen seen{.next = since == 0 ? ring.above : since};
  if (seen.next > ring.last || seen.next < ring.above) {
    seen.gap = true;
    seen.next = ring.above;
  }
  if (seen.next + 1 < ring.first()) {
    seen.gap = true;
    seen.lost = ring.first() - seen.next - 1;
    seen.next = ring.first() - 1;
  }
  std::size_t shown = 0;
  for (std::size_t at = seen.next + 1 - ring.first(); at < ring.events.size(); ++at) {
    const Event& event = ring.events[at];
    const std::string& text = right == Right::control || event.withheld.empty() ? event.whole : event.withheld;
    if (shown > 0 && shown + text.size() > bytes_max) break;
    shown += text.size();
    see(++seen.next, text);
  }
  return seen;
}

void EventRings::drop_oldest(Ring& ring) {
  const std::size_t bytes = ring.events.front().bytes();
  ring.bytes -= bytes;
  bytes_ -= bytes;
  ring.events.pop_front();
}

bool is_event(std::string_view text) {
  return text.starts_with('{') && text.ends_with('}') && text.find_first_of("\r\n") == std::string_view::npos &&
         nlohmann::json::accept(text);
}

}  // namespace torchup

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "rendezvous/core/ops/ops_route.hpp"

namespace torchup {

/// The newest events of jobs, kept for those who ask for them, and numbered: in the interface each has `seq`, one more
/// than the event of its job before it. Pure.
class EventRings {
 public:
  struct Limits {
    std::size_t events_max = 4096;                   ///< of one job
    std::size_t bytes_max = std::size_t{64} << 20U;  ///< of all; the job that holds most loses its oldest
    /// Numbers begin behind this one: a process that had the jobs before may have numbered other events below it.
    std::uint64_t above = 0;
  };

  explicit EventRings(Limits limits) : limits_{limits} {}

  /// `event`: a JSON object in one line, without blanks around it (is_event asks that of a stranger). Gives its number.
  std::uint64_t add(const std::string& run_id, std::string_view event);
  /// Forgets all other jobs, but for the numbers that were given: none of them is given again.
  void keep_only(const std::set<std::string>& run_ids);

  /// Number of the newest event; the one that numbers begin behind, where there is none.
  [[nodiscard]] std::uint64_t last(const std::string& run_id) const;

  /// Called for one event, with its number and its text: a JSON object without line end that has `seq`.
  using See = std::function<void(std::uint64_t seq, std::string_view text)>;
  struct Seen {
    std::uint64_t next = 0;  ///< the last number that was seen: what is asked for goes on behind it
    /// How many are missing that this process had, between what was asked for and the first that is there.
    std::uint64_t lost = 0;
    bool gap = false;  ///< some are missing, or `since` is neither 0 nor ever was a number of an event here
  };
  /// Shows the events behind `since`, as somebody with that right sees them, in their order, until they have
  /// `bytes_max` bytes; one at least, where there is one.
  Seen read(const std::string& run_id, std::uint64_t since, Right right, std::size_t bytes_max, const See& see) const;

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  struct Event {
    std::string whole;
    std::string withheld;  ///< empty: the same
    [[nodiscard]] std::size_t bytes() const;
  };
  struct Ring {
    std::uint64_t above = 0;  ///< its numbers begin behind this one
    std::uint64_t last = 0;
    std::deque<Event> events = {};  ///< the last of them has the number `last`
    std::size_t bytes = 0;
    [[nodiscard]] std::uint64_t first() const { return last - events.size() + 1; }
  };
  [[nodiscard]] Ring new_ring() const { return {.above = limits_.above, .last = limits_.above}; }
  void drop_oldest(Ring& ring);

  Limits limits_;
  std::map<std::string, Ring, std::less<>> rings_;
  std::size_t bytes_ = 0;
};

/// Whether a stranger's text can be an event: a JSON object in one line, whatever readers take for a line's end.
[[nodiscard]] bool is_event(std::string_view text);

/// The event with its number as `seq` in front, whatever it says itself of that.
[[nodiscard]] std::string numbered_event(std::uint64_t seq, std::string_view event);

/// The event as a line of a file that has those of several jobs: with `run_id` and `seq` in front, and its end.
[[nodiscard]] std::string event_line(std::string_view run_id, std::uint64_t seq, std::string_view event);

}  // namespace torchup

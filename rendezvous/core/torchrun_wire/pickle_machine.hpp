#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// A machine that obeys the operations of a pickle and can build nothing but plain values, and five classes of
/// torchrun's state and Python's datetime. It calls nothing.
///
/// Whoever wrote the pickle, the machine's memory and time are bounded by its limits: all values lie in one arena and
/// name each other by number. A container that was put into another takes no more items, so no value contains itself,
/// and nothing is walked or destroyed recursively.
namespace torchup::pickle {

inline constexpr std::size_t operations_max = 1'000'000;
inline constexpr int levels_max = 64;  ///< of containers within each other

enum class Kind : std::uint8_t {
  none,
  boolean,
  number,
  text,
  bytes,
  tuple,
  dict,
  set,
  state_class,
  node_class,
  datetime_class,
  timezone_class,
  timedelta_class,
  state,
  node,
  datetime,
  timezone,
  timedelta,
};

/// The number of a value in its arena.
using Index = std::uint32_t;
inline constexpr Index no_index = 0xffffffff;

struct Value {
  Kind kind = Kind::none;
  bool aware = false;   ///< of a datetime: it carries its zone
  bool within = false;  ///< part of another value: a container takes no more items
  std::uint8_t level = 0;
  std::uint32_t size = 0;            ///< bytes of a text; items of a container, two for each entry of a dict
  Index first = no_index, last = 0;  ///< a container's items among the links; where an object's attributes begin
  std::int64_t number = 0;           ///< boolean, number; a datetime's microseconds since 1970; where a text begins
};

/// Attributes of torchrun's classes, in the order in which the machine keeps them.
inline constexpr std::array<std::string_view, 8> state_attributes{
    "round", "complete", "deadline", "closed", "participants", "wait_list", "redundancy_list", "last_heartbeats"};
inline constexpr std::array<std::string_view, 3> node_attributes{"addr", "pid", "local_id"};

class Machine {
 public:
  /// `input` outlives the machine.
  explicit Machine(std::string_view input) : input_{input} {}

  /// Obeys the whole pickle. False: `refusal` says why not, and where.
  [[nodiscard]] bool run();
  [[nodiscard]] std::string refusal() const;

  /// What the pickle is, after a `run` that succeeded.
  [[nodiscard]] Index result() const { return stack_.back(); }
  [[nodiscard]] const Value& value(Index index) const { return values_[index]; }
  /// Of a text or bytes.
  [[nodiscard]] std::string_view text(const Value& value) const {
    return input_.substr(static_cast<std::size_t>(value.number), value.size);
  }
  /// The values of an object's attributes, in the order of state_attributes or node_attributes; empty: it has none yet,
  /// or is no such object.
  [[nodiscard]] std::span<const Index> attributes(const Value& object) const;
  /// Calls `use(Index)` for each item of a container until it returns false; returns whether it never did.
  bool for_items(const Value& container, const auto& use) const {
    Index at = container.first;
    for (std::uint32_t left = container.size; left > 0; --left, at = links_[at].next) {
      if (!use(links_[at].item)) return false;
    }
    return true;
  }

 private:
  struct Link {
    Index item, next;
  };
  static constexpr Index mark_index = no_index;

  bool obey(unsigned char code);
  bool refuse(std::string why);

  bool take(std::uint64_t size, std::string_view& bytes);
  bool take_number(std::size_t size, std::uint64_t& number);
  bool push(Value value);
  bool push_number(std::size_t size, bool sign);
  bool push_long();
  bool push_text(Kind kind, std::size_t length_bytes);
  bool pop(Index& index);
  bool pop(Index& below, Index& above);

  bool append(Value& container, Index item);
  bool tuple(std::size_t count);
  bool extend(Kind kind, std::size_t keep, std::size_t from);
  bool set_one();
  bool extend_to_mark(Kind kind);
  bool global();
  bool make_object();
  bool give_attributes();
  bool call();
  bool remember();
  bool recall(std::size_t index_bytes);

  std::string_view input_;
  std::size_t at_ = 0;  ///< of what is read next
  std::size_t operations_ = 0;
  std::vector<Value> values_;
  std::vector<Link> links_;
  std::vector<Index> attributes_;
  std::vector<Index> stack_;
  std::vector<Index> memo_;
  std::string why_;
};

}  // namespace torchup::pickle

#include "rendezvous/core/torchrun_wire/pickle_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/endian/conversion.hpp>
#include <chrono>
#include <optional>
#include <utility>

#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/core/torchrun_wire/pickle_opcodes.hpp"

namespace torchup::pickle {
namespace {

/// Microseconds since 1970 of the ten bytes that Python's datetime is made of.
/// Times that differ by no more than a Duration holds: whoever compares them counts in nanoseconds.
constexpr unsigned year_min = 1970, year_max = 2200;

std::optional<std::int64_t> time_of(std::string_view bytes) {
  if (bytes.size() != 10) return {};
  const auto at = [&](std::size_t i) { return static_cast<unsigned>(static_cast<unsigned char>(bytes[i])); };
  const unsigned year = at(0) * 256 + at(1);
  const std::chrono::year_month_day date{std::chrono::year{static_cast<int>(year)},
                                         std::chrono::month{at(2) & 0x7f},  // the top bit tells a repeated hour
                                         std::chrono::day{at(3)}};
  const unsigned microseconds = at(7) * 65536 + at(8) * 256 + at(9);
  if (year < year_min || year > year_max || !date.ok() || at(4) > 23 || at(5) > 59 || at(6) > 59 ||
      microseconds > 999999) {
    return {};
  }
  const std::chrono::sys_time<std::chrono::microseconds> time =
      std::chrono::sys_days{date} + std::chrono::hours{at(4)} + std::chrono::minutes{at(5)} +
      std::chrono::seconds{at(6)} + std::chrono::microseconds{microseconds};
  return time.time_since_epoch().count();
}

}  // namespace

bool Machine::run() {
  std::uint64_t first = 0;
  if (!take_number(1, first)) return false;
  if (first != protocol) return refuse("it does not begin as a pickle of protocol 4 or 5");
  std::uint64_t version = 0;
  if (!take_number(1, version)) return false;
  if (version != 4 && version != 5) return refuse(fmt::format("protocol {}", version));
  while (true) {
    std::uint64_t code = 0;
    if (!take_number(1, code)) return false;
    if (code == stop) break;
    if (++operations_ > operations_max) return refuse(fmt::format("more than {} operations", operations_max));
    if (!obey(static_cast<unsigned char>(code))) return false;
  }
  if (stack_.size() != 1 || stack_.back() == mark_index || at_ != input_.size()) {
    return refuse("it does not end where it should");
  }
  return true;
}

std::string Machine::refusal() const { return fmt::format("{} (at byte {})", why_, at_); }

std::span<const Index> Machine::attributes(const Value& object) const {
  const bool is_object = object.kind == Kind::state || object.kind == Kind::node;  // a container's `first` is a link
  if (!is_object || object.first == no_index) return {};
  return std::span{attributes_}.subspan(object.first, object.size);
}

bool Machine::obey(unsigned char code) {
  switch (code) {
    case frame: {
      std::uint64_t length = 0;
      return take_number(8, length);
    }
    case mark:
      stack_.push_back(mark_index);
      return true;
    case none:
      return push({});
    case new_true:
      return push({.kind = Kind::boolean, .number = 1});
    case new_false:
      return push({.kind = Kind::boolean, .number = 0});
    case int1:
      return push_number(1, false);
    case int2:
      return push_number(2, false);
    case int4:
      return push_number(4, true);
    case long1:
      return push_long();
    case short_text:
      return push_text(Kind::text, 1);
    case long_text:
      return push_text(Kind::text, 4);
    case short_bytes:
      return push_text(Kind::bytes, 1);
    case empty_tuple:
      return tuple(0);
    case tuple1:
      return tuple(1);
    case tuple2:
      return tuple(2);
    case tuple3:
      return tuple(3);
    case empty_dict:
      return push({.kind = Kind::dict, .level = 1});
    case empty_set:
      return push({.kind = Kind::set, .level = 1});
    case set_item:
      return set_one();
    case set_items:
      return extend_to_mark(Kind::dict);
    case add_items:
      return extend_to_mark(Kind::set);
    case stack_global:
      return global();
    case new_object:
      return make_object();
    case build:
      return give_attributes();
    case reduce:
      return call();
    case memoize:
      return remember();
    case memo_get1:
      return recall(1);
    case memo_get4:
      return recall(4);
    default:
      return refuse(fmt::format("operation {}", code));
  }
}

bool Machine::refuse(std::string why) {
  why_ = std::move(why);
  return false;
}

// ---- the input

bool Machine::take(std::uint64_t size, std::string_view& bytes) {
  if (size > input_.size() - at_) return refuse("it is cut");
  bytes = input_.substr(at_, static_cast<std::size_t>(size));
  at_ += bytes.size();
  return true;
}

bool Machine::take_number(std::size_t size, std::uint64_t& number) {
  std::string_view bytes;
  if (!take(size, bytes)) return false;
  std::array<unsigned char, 8> octets{};
  std::copy(bytes.begin(), bytes.end(), octets.begin());
  number = boost::endian::load_little_u64(octets.data());
  return true;
}

// ---- the stack

bool Machine::push(Value value) {
  stack_.push_back(static_cast<Index>(values_.size()));
  values_.push_back(value);
  return true;
}

bool Machine::push_number(std::size_t size, bool sign) {
  std::uint64_t number = 0;
  if (!take_number(size, number)) return false;
  return push(
      {.kind = Kind::number, .number = sign ? static_cast<std::int32_t>(number) : static_cast<std::int64_t>(number)});
}

bool Machine::push_long() {
  std::uint64_t size = 0;
  if (!take_number(1, size)) return false;
  if (size > 8) return refuse(fmt::format("a number of {} bytes", size));
  std::uint64_t number = 0;
  if (!take_number(static_cast<std::size_t>(size), number)) return false;
  const auto unused = static_cast<unsigned>(64 - 8 * size);
  // The top bit is the sign.
  return push({.kind = Kind::number, .number = size == 0 ? 0 : static_cast<std::int64_t>(number << unused) >> unused});
}

bool Machine::push_text(Kind kind, std::size_t length_bytes) {
  std::uint64_t length = 0;
  std::string_view bytes;
  if (!take_number(length_bytes, length) || !take(length, bytes)) return false;
  return push({.kind = kind,
               .size = static_cast<std::uint32_t>(length),
               .number = static_cast<std::int64_t>(at_ - bytes.size())});
}

bool Machine::pop(Index& index) {
  if (stack_.empty() || stack_.back() == mark_index) return refuse("its stack is empty");
  index = stack_.back();
  stack_.pop_back();
  return true;
}

bool Machine::pop(Index& below, Index& above) { return pop(above) && pop(below); }

bool Machine::remember() {
  if (stack_.empty() || stack_.back() == mark_index) return refuse("its stack is empty");
  memo_.push_back(stack_.back());
  return true;
}

bool Machine::recall(std::size_t index_bytes) {
  std::uint64_t index = 0;
  if (!take_number(index_bytes, index)) return false;
  if (index >= memo_.size()) return refuse(fmt::format("memo entry {}", index));
  stack_.push_back(memo_[static_cast<std::size_t>(index)]);
  return true;
}

// ---- containers

bool Machine::append(Value& container, Index item) {
  Value& value = values_[item];
  if (&value == &container) return refuse("a container within itself");
  value.within = true;
  const int level = std::max<int>(container.level, value.level + 1);
  if (level > levels_max) return refuse(fmt::format("containers are nested more than {} levels deep", levels_max));
  container.level = static_cast<std::uint8_t>(level);
  const auto link = static_cast<Index>(links_.size());
  links_.push_back({item, no_index});
  (container.size == 0 ? container.first : links_[container.last].next) = link;
  container.last = link;
  ++container.size;
  return true;
}

bool Machine::tuple(std::size_t count) {
  if (stack_.size() < count) return refuse("its stack is empty");
  Value made{.kind = Kind::tuple, .level = 1};
  for (std::size_t i = stack_.size() - count; i < stack_.size(); ++i) {
    if (stack_[i] == mark_index) return refuse("its stack is empty");
    if (!append(made, stack_[i])) return false;
  }
  stack_.resize(stack_.size() - count);
  return push(made);
}

/// Adds what lies on the stack behind `from` to the container below `keep`, and cuts the stack there.
bool Machine::extend(Kind kind, std::size_t keep, std::size_t from) {
  if (keep == 0 || stack_[keep - 1] == mark_index) return refuse("its stack is empty");
  Value& container = values_[stack_[keep - 1]];
  if (container.kind != kind) return refuse("items for what is no container");
  if (container.within) return refuse("items for a container that is part of another");
  if (kind == Kind::dict && (stack_.size() - from) % 2 != 0) return refuse("a key without a value");
  for (std::size_t i = from; i < stack_.size(); ++i) {
    if (!append(container, stack_[i])) return false;
  }
  stack_.resize(keep);
  return true;
}

bool Machine::set_one() {
  const std::size_t size = stack_.size();
  if (size < 2 || stack_[size - 1] == mark_index || stack_[size - 2] == mark_index) return refuse("its stack is empty");
  return extend(Kind::dict, size - 2, size - 2);
}

bool Machine::extend_to_mark(Kind kind) {
  const auto found = std::find(stack_.rbegin(), stack_.rend(), mark_index);
  if (found == stack_.rend()) return refuse("a mark is missing");
  const auto mark_at = static_cast<std::size_t>(stack_.rend() - found) - 1;
  return extend(kind, mark_at, mark_at + 1);
}

// ---- classes

bool Machine::global() {
  Index module = 0, name = 0;
  if (!pop(module, name)) return false;
  if (values_[module].kind != Kind::text || values_[name].kind != Kind::text) return refuse("a class without a name");
  struct Known {
    std::string_view module, name;
    Kind kind;
  };
  constexpr std::array known{
      Known{torchrun_module, "_RendezvousState", Kind::state_class},
      Known{torchrun_module, "_NodeDesc", Kind::node_class}, Known{"datetime", "datetime", Kind::datetime_class},
      Known{"datetime", "timezone", Kind::timezone_class}, Known{"datetime", "timedelta", Kind::timedelta_class}};
  const std::string_view module_text = text(values_[module]), name_text = text(values_[name]);
  for (const Known& entry : known) {
    if (entry.module == module_text && entry.name == name_text) return push({.kind = entry.kind});
  }
  return refuse(fmt::format("the class {}.{}", printable_start(module_text), printable_start(name_text)));
}

bool Machine::make_object() {
  Index class_index = 0, arguments_index = 0;
  if (!pop(class_index, arguments_index)) return false;
  const Value& arguments = values_[arguments_index];
  const Kind made = values_[class_index].kind;
  if (arguments.kind != Kind::tuple || arguments.size != 0) return refuse("an object with arguments");
  if (made != Kind::state_class && made != Kind::node_class) return refuse("an object of another class");
  return push({.kind = made == Kind::state_class ? Kind::state : Kind::node, .level = 1});
}

bool Machine::give_attributes() {
  Index object_index = 0, given_index = 0;
  if (!pop(object_index, given_index)) return false;
  Value& object = values_[object_index];
  Value& given = values_[given_index];
  const bool is_state = object.kind == Kind::state;
  if ((!is_state && object.kind != Kind::node) || given.kind != Kind::dict || object.first != no_index) {
    return refuse("attributes for what has none");
  }
  if (object.within) return refuse("attributes for an object that is part of another value");
  const std::span<const std::string_view> names = is_state ? std::span<const std::string_view>{state_attributes}
                                                           : std::span<const std::string_view>{node_attributes};
  std::array<Index, state_attributes.size()> found{};
  found.fill(no_index);
  std::optional<std::size_t> named;  // the attribute whose value comes next
  const bool good = for_items(given, [&](Index item) {
    if (named) {
      found[*std::exchange(named, {})] = item;
      return true;
    }
    const std::string_view name = values_[item].kind == Kind::text ? text(values_[item]) : std::string_view{"?"};
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) return refuse(fmt::format("the attribute '{}'", printable_start(name)));
    named = static_cast<std::size_t>(at - names.begin());
    return found[*named] == no_index || refuse(fmt::format("the attribute '{}' twice", name));
  });
  if (!good) return false;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (found[i] == no_index) return refuse(fmt::format("no attribute '{}'", names[i]));
  }
  if (given.level == levels_max) {
    return refuse(fmt::format("containers are nested more than {} levels deep", levels_max));
  }
  given.within = true;
  object.level = static_cast<std::uint8_t>(given.level + 1);
  object.first = static_cast<Index>(attributes_.size());
  object.size = static_cast<std::uint32_t>(names.size());
  attributes_.insert(attributes_.end(), found.begin(), found.begin() + static_cast<std::ptrdiff_t>(names.size()));
  stack_.push_back(object_index);
  return true;
}

/// Only what makes a time in UTC, or without a zone.
bool Machine::call() {
  Index callee_index = 0, arguments_index = 0;
  if (!pop(callee_index, arguments_index)) return false;
  const Value& arguments = values_[arguments_index];
  const Kind callee = values_[callee_index].kind;
  if (arguments.kind != Kind::tuple) return refuse("a call without arguments");
  if (arguments.size > 3) return refuse("a call");
  std::array<Value, 3> given{};
  std::size_t count = 0;
  for_items(arguments, [&](Index item) {
    given[count++] = values_[item];
    return true;
  });
  if (callee == Kind::timedelta_class && count == 3) {
    for (const Value& part : given) {
      if (part.kind != Kind::number || part.number != 0) return refuse("a time zone other than UTC");
    }
    return push({.kind = Kind::timedelta});
  }
  if (callee == Kind::timezone_class && count == 1 && given[0].kind == Kind::timedelta) {
    return push({.kind = Kind::timezone});
  }
  const bool aware = count == 2 && given[1].kind == Kind::timezone;
  if (callee == Kind::datetime_class && (count == 1 || aware) && given[0].kind == Kind::bytes) {
    const auto time = time_of(text(given[0]));
    if (!time) return refuse("a time that is none");
    return push({.kind = Kind::datetime, .aware = aware, .number = *time});
  }
  return refuse("a call");
}

}  // namespace torchup::pickle

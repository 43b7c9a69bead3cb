// The pickle of torchrun's state, read by a machine that can build nothing but that state, and written.

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "rendezvous/core/torchrun_state.hpp"

namespace torchup {
namespace {

constexpr std::string_view torchrun_module = "torch.distributed.elastic.rendezvous.dynamic_rendezvous";
constexpr std::string_view base64_letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

enum Opcode : unsigned char {
  mark = '(',
  stop = '.',
  none = 'N',
  new_true = 0x88,
  new_false = 0x89,
  int1 = 'K',
  int2 = 'M',
  int4 = 'J',
  long1 = 0x8a,
  short_text = 0x8c,
  long_text = 'X',
  short_bytes = 'C',
  empty_tuple = ')',
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  empty_dict = '}',
  set_item = 's',
  set_items = 'u',
  empty_set = 0x8f,
  add_items = 0x90,
  stack_global = 0x93,
  new_object = 0x81,
  build = 'b',
  reduce = 'R',
  memoize = 0x94,
  memo_get1 = 'h',
  memo_get4 = 'j',
  protocol = 0x80,
  frame = 0x95,
};

enum class Kind {
  mark,
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

/// Whatever can lie on the machine's stack. Containers and objects are shared: the memo may hold them while they grow.
struct Thing {
  Kind kind = Kind::none;
  std::int64_t number = 0;  ///< boolean, number; of a datetime the microseconds since 1970
  bool aware = false;       ///< of a datetime
  std::string text = {};
  std::shared_ptr<std::vector<Thing>> items = {};  ///< of a dict, key after value; of an object, its attributes so
};

/// What a pickle that is none, or another, leads to; caught where the reading began.
struct Unreadable {
  std::string why;
};

std::optional<UtcTime> time_of(std::string_view bytes) {
  if (bytes.size() != 10) return {};
  const auto at = [&](std::size_t i) { return static_cast<unsigned>(static_cast<unsigned char>(bytes[i])); };
  const std::chrono::year_month_day date{std::chrono::year{static_cast<int>(at(0) * 256 + at(1))},
                                         std::chrono::month{at(2) & 0x7f}, std::chrono::day{at(3)}};
  const unsigned microseconds = at(7) * 65536 + at(8) * 256 + at(9);
  if (!date.ok() || at(4) > 23 || at(5) > 59 || at(6) > 59 || microseconds > 999999) return {};
  return std::chrono::sys_days{date} + std::chrono::hours{at(4)} + std::chrono::minutes{at(5)} +
         std::chrono::seconds{at(6)} + std::chrono::microseconds{microseconds};
}

class Machine {
 public:
  explicit Machine(std::string_view input) : input_{input} {}

  Thing run() {
    if (input_.size() > torchrun_state_bytes_max) refuse("it is too long");
    while (true) {
      const auto code = static_cast<unsigned char>(take(1)[0]);
      if (code == stop) break;
      obey(code);
    }
    if (stack_.size() != 1 || !input_.empty()) refuse("it does not end where it should");
    return pop();
  }

 private:
  [[noreturn]] static void refuse(std::string why) { throw Unreadable{std::move(why)}; }

  void obey(unsigned char code) {
    switch (code) {
      case protocol:
        if (const auto version = unsigned_number(1); version != 4 && version != 5)
          refuse("protocol " + std::to_string(version));
        return;
      case frame:
        take(8);
        return;
      case mark:
        return push({.kind = Kind::mark});
      case none:
        return push({});
      case new_true:
        return push({.kind = Kind::boolean, .number = 1});
      case new_false:
        return push({.kind = Kind::boolean, .number = 0});
      case int1:
        return push({.kind = Kind::number, .number = static_cast<std::int64_t>(unsigned_number(1))});
      case int2:
        return push({.kind = Kind::number, .number = static_cast<std::int64_t>(unsigned_number(2))});
      case int4:
        return push({.kind = Kind::number, .number = static_cast<std::int32_t>(unsigned_number(4))});
      case long1:
        return push({.kind = Kind::number, .number = long_number()});
      case short_text:
        return push({.kind = Kind::text, .text = std::string{take(unsigned_number(1))}});
      case long_text:
        return push({.kind = Kind::text, .text = std::string{take(unsigned_number(4))}});
      case short_bytes:
        return push({.kind = Kind::bytes, .text = std::string{take(unsigned_number(1))}});
      case empty_tuple:
        return tuple(0);
      case tuple1:
        return tuple(1);
      case tuple2:
        return tuple(2);
      case tuple3:
        return tuple(3);
      case empty_dict:
        return push({.kind = Kind::dict, .items = std::make_shared<std::vector<Thing>>()});
      case empty_set:
        return push({.kind = Kind::set, .items = std::make_shared<std::vector<Thing>>()});
      case set_item:
        return extend(Kind::dict, pop_some(2));
      case set_items:
        return extend(Kind::dict, pop_to_mark());
      case add_items:
        return extend(Kind::set, pop_to_mark());
      case stack_global:
        return global();
      case new_object:
        return make_object();
      case build:
        return give_attributes();
      case reduce:
        return call();
      case memoize:
        return memo_.push_back(top());
      case memo_get1:
        return push(remembered(unsigned_number(1)));
      case memo_get4:
        return push(remembered(unsigned_number(4)));
      default:
        refuse("operation " + std::to_string(code));
    }
  }

  std::string_view take(std::uint64_t size) {
    if (size > input_.size()) refuse("it is cut");
    const std::string_view taken = input_.substr(0, size);
    input_.remove_prefix(size);
    return taken;
  }
  std::uint64_t unsigned_number(std::size_t size) {
    const std::string_view bytes = take(size);
    std::uint64_t value = 0;
    for (std::size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return value;
  }
  std::int64_t long_number() {
    const std::uint64_t size = unsigned_number(1);
    if (size > 8) refuse("a number of " + std::to_string(size) + " bytes");
    if (size == 0) return 0;
    const std::uint64_t value = unsigned_number(size);
    const unsigned unused = static_cast<unsigned>(64 - 8 * size);
    return static_cast<std::int64_t>(value << unused) >> unused;  // the top bit is the sign
  }

  void push(Thing thing) { stack_.push_back(std::move(thing)); }
  Thing& top() {
    if (stack_.empty() || stack_.back().kind == Kind::mark) refuse("its stack is empty");
    return stack_.back();
  }
  Thing pop() {
    Thing thing = std::move(top());
    stack_.pop_back();
    return thing;
  }
  std::vector<Thing> pop_some(std::size_t count) {
    std::vector<Thing> things(count);
    for (std::size_t i = count; i-- > 0;) things[i] = pop();
    return things;
  }
  std::vector<Thing> pop_to_mark() {
    std::size_t at = stack_.size();
    while (at > 0 && stack_[at - 1].kind != Kind::mark) --at;
    if (at == 0) refuse("a mark is missing");
    std::vector<Thing> things(std::make_move_iterator(stack_.begin() + static_cast<std::ptrdiff_t>(at)),
                              std::make_move_iterator(stack_.end()));
    stack_.resize(at - 1);
    return things;
  }
  const Thing& remembered(std::uint64_t index) {
    if (index >= memo_.size()) refuse("memo entry " + std::to_string(index));
    return memo_[index];
  }

  void tuple(std::size_t count) {
    auto items = std::make_shared<std::vector<Thing>>(pop_some(count));
    push({.kind = Kind::tuple, .items = std::move(items)});
  }
  void extend(Kind kind, std::vector<Thing> things) {
    Thing& container = top();
    if (container.kind != kind) refuse("items for what is no container");
    if (kind == Kind::dict && things.size() % 2 != 0) refuse("a key without a value");
    for (Thing& thing : things) container.items->push_back(std::move(thing));
  }

  void global() {
    const Thing name = pop();
    const Thing module = pop();
    if (name.kind != Kind::text || module.kind != Kind::text) refuse("a class without a name");
    struct Known {
      std::string_view module, name;
      Kind kind;
    };
    constexpr std::array known{
        Known{torchrun_module, "_RendezvousState", Kind::state_class},
        Known{torchrun_module, "_NodeDesc", Kind::node_class}, Known{"datetime", "datetime", Kind::datetime_class},
        Known{"datetime", "timezone", Kind::timezone_class}, Known{"datetime", "timedelta", Kind::timedelta_class}};
    for (const Known& entry : known) {
      if (entry.module == module.text && entry.name == name.text) return push({.kind = entry.kind});
    }
    refuse("the class " + module.text + "." + name.text);
  }

  void make_object() {
    const Thing arguments = pop();
    const Thing what = pop();
    if (arguments.kind != Kind::tuple || !arguments.items->empty()) refuse("an object with arguments");
    if (what.kind != Kind::state_class && what.kind != Kind::node_class) refuse("an object of another class");
    push({.kind = what.kind == Kind::state_class ? Kind::state : Kind::node,
          .items = std::make_shared<std::vector<Thing>>()});
  }
  void give_attributes() {
    const Thing attributes = pop();
    Thing& object = top();
    const bool takes = object.kind == Kind::state || object.kind == Kind::node;
    if (!takes || attributes.kind != Kind::dict || !object.items->empty()) refuse("attributes for what has none");
    *object.items = *attributes.items;
  }
  void call() {
    const Thing arguments = pop();
    const Thing what = pop();
    if (arguments.kind != Kind::tuple) refuse("a call without arguments");
    const std::vector<Thing>& given = *arguments.items;
    if (what.kind == Kind::timedelta_class && given.size() == 3) {
      for (const Thing& part : given) {
        if (part.kind != Kind::number || part.number != 0) refuse("a time zone other than UTC");
      }
      return push({.kind = Kind::timedelta});
    }
    if (what.kind == Kind::timezone_class && given.size() == 1 && given[0].kind == Kind::timedelta) {
      return push({.kind = Kind::timezone});
    }
    const bool aware = given.size() == 2 && given[1].kind == Kind::timezone;
    if (what.kind == Kind::datetime_class && (given.size() == 1 || aware) && given[0].kind == Kind::bytes) {
      const auto time = time_of(given[0].text);
      if (!time) refuse("a time that is none");
      return push({.kind = Kind::datetime, .number = time->time_since_epoch().count(), .aware = aware});
    }
    refuse("a call");
  }

  std::string_view input_;
  std::vector<Thing> stack_;
  std::vector<Thing> memo_;
};

/// Turns what the machine built into the state.
class Interpreter {
 public:
  TorchrunState state(const Thing& thing) {
    if (thing.kind != Kind::state) throw Unreadable{"it is no state"};
    constexpr std::array<std::string_view, 8> names{"round",        "complete",  "deadline",        "closed",
                                                    "participants", "wait_list", "redundancy_list", "last_heartbeats"};
    const auto values = attributes(thing, names);
    TorchrunState state;
    state.round = number(*values[0]);
    state.complete = boolean(*values[1]);
    if (values[2]->kind != Kind::none) state.deadline = time(*values[2]);
    state.closed = boolean(*values[3]);
    for_pairs(*values[4], [&](const Thing& key, const Thing& value) { state.participants[node(key)] = number(value); });
    for (const Thing& item : items(*values[5], Kind::set)) state.wait_list.insert(node(item));
    for (const Thing& item : items(*values[6], Kind::set)) state.redundancy_list.insert(node(item));
    for_pairs(*values[7],
              [&](const Thing& key, const Thing& value) { state.last_heartbeats[node(key)] = time(value); });
    state.aware_times = aware_.value_or(true);
    return state;
  }

 private:
  template <std::size_t n>
  static std::array<const Thing*, n> attributes(const Thing& object, const std::array<std::string_view, n>& names) {
    std::array<const Thing*, n> values{};
    for (std::size_t i = 0; i + 1 < object.items->size(); i += 2) {
      const Thing& name = (*object.items)[i];
      const auto found = std::find(names.begin(), names.end(), name.text);
      if (name.kind != Kind::text || found == names.end()) throw Unreadable{"the attribute '" + name.text + "'"};
      values[static_cast<std::size_t>(found - names.begin())] = &(*object.items)[i + 1];
    }
    for (std::size_t i = 0; i < n; ++i) {
      if (!values[i]) throw Unreadable{"no attribute '" + std::string{names[i]} + "'"};
    }
    return values;
  }
  static const std::vector<Thing>& items(const Thing& thing, Kind kind) {
    if (thing.kind != kind) throw Unreadable{"an attribute of another type"};
    return *thing.items;
  }
  static void for_pairs(const Thing& thing, const auto& use) {
    const std::vector<Thing>& list = items(thing, Kind::dict);
    for (std::size_t i = 0; i + 1 < list.size(); i += 2) use(list[i], list[i + 1]);
  }
  static std::int64_t number(const Thing& thing) {
    if (thing.kind != Kind::number) throw Unreadable{"a number of another type"};
    return thing.number;
  }
  static bool boolean(const Thing& thing) {
    if (thing.kind != Kind::boolean) throw Unreadable{"a truth value of another type"};
    return thing.number != 0;
  }
  UtcTime time(const Thing& thing) {
    if (thing.kind != Kind::datetime) throw Unreadable{"a time of another type"};
    if (aware_ && *aware_ != thing.aware) throw Unreadable{"times with and without a zone"};
    aware_ = thing.aware;
    return UtcTime{std::chrono::microseconds{thing.number}};
  }
  static TorchrunNode node(const Thing& thing) {
    if (thing.kind != Kind::node) throw Unreadable{"a node of another type"};
    constexpr std::array<std::string_view, 3> names{"addr", "pid", "local_id"};
    const auto values = attributes(thing, names);
    if (values[0]->kind != Kind::text) throw Unreadable{"a node's address of another type"};
    return {values[0]->text, number(*values[1]), number(*values[2])};
  }

  std::optional<bool> aware_;
};

class Writer {
 public:
  explicit Writer(bool aware) : aware_{aware} {}

  std::string write(const TorchrunState& state) {
    out_ = {static_cast<char>(protocol), 4};
    global(torchrun_module, "_RendezvousState");
    code(empty_tuple, new_object, empty_dict, mark);
    text("round");
    number(state.round);
    text("complete");
    boolean(state.complete);
    text("deadline");
    if (state.deadline) {
      time(*state.deadline);
    } else {
      code(none);
    }
    text("closed");
    boolean(state.closed);
    text("participants");
    dict(state.participants, [this](std::int64_t rank) { number(rank); });
    text("wait_list");
    set(state.wait_list);
    text("redundancy_list");
    set(state.redundancy_list);
    text("last_heartbeats");
    dict(state.last_heartbeats, [this](UtcTime at) { time(at); });
    code(set_items, build, stop);
    return std::move(out_);
  }

 private:
  void code(auto... codes) { (out_.push_back(static_cast<char>(codes)), ...); }
  void little_endian(std::uint64_t value, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) out_.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  }

  /// Writes a reference and returns true when `name` was remembered; else it is from now on.
  bool known(const std::string& name) {
    const auto [entry, fresh] = memo_.try_emplace(name, memo_.size());
    if (fresh) return false;
    if (entry->second < 256) {
      code(memo_get1, entry->second);
    } else {
      code(memo_get4);
      little_endian(entry->second, 4);
    }
    return true;
  }
  void text(std::string_view value) {
    if (known("t" + std::string{value})) return;
    if (value.size() < 256) {
      code(short_text, value.size());
    } else {
      code(long_text);
      little_endian(value.size(), 4);
    }
    out_ += value;
    code(memoize);
  }
  /// The memo numbers things in the order in which they are finished, so a name is looked up after its parts.
  void global(std::string_view module, std::string_view name) {
    const std::string key = "c" + std::string{name};
    if (memo_.contains(key)) {
      known(key);
      return;
    }
    text(module);
    text(name);
    code(stack_global);
    remember(key);
  }
  void remember(const std::string& key) {
    memo_.emplace(key, memo_.size());
    code(memoize);
  }
  void number(std::int64_t value) {
    if (value >= 0 && value < 256) {
      code(int1, value);
    } else if (value >= 0 && value < 65536) {
      code(int2);
      little_endian(static_cast<std::uint64_t>(value), 2);
    } else if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max()) {
      code(int4);
      little_endian(static_cast<std::uint64_t>(value), 4);
    } else {
      code(long1, 8);
      little_endian(static_cast<std::uint64_t>(value), 8);
    }
  }
  void boolean(bool value) { code(value ? new_true : new_false); }

  void node(const TorchrunNode& node) {
    const std::string key = "n" + std::to_string(node.pid) + "_" + std::to_string(node.local_id) + "_" + node.addr;
    if (memo_.contains(key)) {
      known(key);
      return;
    }
    global(torchrun_module, "_NodeDesc");
    code(empty_tuple, new_object);
    remember(key);
    code(empty_dict, mark);
    text("addr");
    text(node.addr);
    text("pid");
    number(node.pid);
    text("local_id");
    number(node.local_id);
    code(set_items, build);
  }
  void dict(const auto& entries, const auto& write_value) {
    code(empty_dict);
    if (entries.empty()) return;
    code(mark);
    for (const auto& [key, value] : entries) {
      node(key);
      write_value(value);
    }
    code(set_items);
  }
  void set(const std::set<TorchrunNode>& nodes) {
    code(empty_set);
    if (nodes.empty()) return;
    code(mark);
    for (const TorchrunNode& entry : nodes) node(entry);
    code(add_items);
  }
  void time(UtcTime at) {
    const auto day = std::chrono::floor<std::chrono::days>(at);
    const std::chrono::year_month_day date{day};
    const std::chrono::hh_mm_ss clock{at - day};
    const auto year = static_cast<unsigned>(static_cast<int>(date.year()));
    const auto microseconds = static_cast<unsigned>(clock.subseconds().count());
    global("datetime", "datetime");
    code(short_bytes, 10, year / 256, year % 256, static_cast<unsigned>(date.month()),
         static_cast<unsigned>(date.day()), clock.hours().count(), clock.minutes().count(), clock.seconds().count(),
         microseconds / 65536, microseconds / 256 % 256, microseconds % 256);
    if (aware_) {
      utc();
      code(tuple2, reduce);
    } else {
      code(tuple1, reduce);
    }
  }
  void utc() {
    if (memo_.contains("utc")) {
      known("utc");
      return;
    }
    global("datetime", "timezone");
    global("datetime", "timedelta");
    code(int1, 0, int1, 0, int1, 0, tuple3, reduce, tuple1, reduce);
    remember("utc");
  }

  const bool aware_;
  std::string out_;
  std::map<std::string, std::size_t> memo_;
};

}  // namespace

Result<TorchrunState> read_torchrun_state(std::string_view pickle) {
  try {
    return Interpreter{}.state(Machine{pickle}.run());
  } catch (const Unreadable& unreadable) {
    return fail(errc::bad_frame, "torchrun's rendezvous state cannot be read: " + unreadable.why);
  }
}

std::string write_torchrun_state(const TorchrunState& state) { return Writer{state.aware_times}.write(state); }

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      text += i + k > bytes.size() ? '=' : base64_letters[group >> (18 - 6 * k) & 63];
    }
  }
  return text;
}

Result<std::string> from_base64(std::string_view text) {
  std::string bytes;
  std::uint32_t group = 0;
  int letters = 0;
  int padding = 0;
  for (const char c : text) {
    if (c == '=') {
      ++padding;
      continue;
    }
    const auto value = base64_letters.find(c);
    if (value == std::string_view::npos) continue;
    if (padding > 0) return fail(errc::bad_frame, "base64 goes on after its padding");
    group = group << 6 | static_cast<std::uint32_t>(value);
    if (++letters % 4 == 0) {
      for (const unsigned shift : {16U, 8U, 0U}) bytes.push_back(static_cast<char>(group >> shift & 0xff));
      group = 0;
    }
  }
  const int rest = letters % 4;
  if (rest == 1 || (rest == 2 && padding < 2) || (rest == 3 && padding < 1)) {
    return fail(errc::bad_frame, "base64 with wrong padding");
  }
  if (rest == 2) bytes.push_back(static_cast<char>(group >> 4 & 0xff));
  if (rest == 3) {
    bytes.push_back(static_cast<char>(group >> 10 & 0xff));
    bytes.push_back(static_cast<char>(group >> 2 & 0xff));
  }
  return bytes;
}

}  // namespace torchup

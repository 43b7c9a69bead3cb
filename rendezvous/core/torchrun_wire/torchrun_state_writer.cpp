// torchrun's state as the pickle that Python would write.
#include <fmt/format.h>

#include <array>
#include <boost/endian/conversion.hpp>
#include <limits>

#include "rendezvous/core/torchrun_wire/pickle_opcodes.hpp"
#include "rendezvous/core/torchrun_wire/torchrun_state.hpp"

namespace torchup {
namespace {

using namespace pickle;

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
  template <std::size_t size>
  void little_endian(std::uint64_t value) {
    std::array<unsigned char, size> octets{};
    boost::endian::endian_store<std::uint64_t, size, boost::endian::order::little>(octets.data(), value);
    out_.append(octets.begin(), octets.end());
  }

  /// Writes a reference and returns true when `name` was remembered; else it is from now on.
  bool known(const std::string& name) {
    const auto [entry, fresh] = memo_.try_emplace(name, memo_.size());
    if (fresh) return false;
    if (entry->second < 256) {
      code(memo_get1, entry->second);
    } else {
      code(memo_get4);
      little_endian<4>(entry->second);
    }
    return true;
  }
  void text(std::string_view value) {
    if (known("t" + std::string{value})) return;
    if (value.size() < 256) {
      code(short_text, value.size());
    } else {
      code(long_text);
      little_endian<4>(value.size());
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
      little_endian<2>(static_cast<std::uint64_t>(value));
    } else if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max()) {
      code(int4);
      little_endian<4>(static_cast<std::uint64_t>(value));
    } else {
      code(long1, 8);
      little_endian<8>(static_cast<std::uint64_t>(value));
    }
  }
  void boolean(bool value) { code(value ? new_true : new_false); }

  void node(const TorchrunNode& node) {
    const std::string key = fmt::format("n{}_{}_{}", node.pid, node.local_id, node.addr);
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

std::string write_torchrun_state(const TorchrunState& state) { return Writer{state.aware_times}.write(state); }

}  // namespace torchup

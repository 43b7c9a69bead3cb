// The state that a pickle of torchrun's stands for.
#include <fmt/format.h>

#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/text/base64.hpp"
#include "rendezvous/core/text/names.hpp"
#include "rendezvous/core/torchrun_wire/pickle_machine.hpp"
#include "rendezvous/core/torchrun_wire/torchrun_state.hpp"

namespace torchup {
namespace {

using pickle::Index;
using pickle::Kind;
using pickle::Machine;
using pickle::Value;

/// Each function returns false, and remembers why, when the value is another than the state has there.
class Interpreter {
 public:
  explicit Interpreter(const Machine& machine) : machine_{machine} {}

  [[nodiscard]] bool read(TorchrunState& state) {
    const Value& whole = machine_.value(machine_.result());
    const auto values = machine_.attributes(whole);
    if (whole.kind != Kind::state || values.empty()) return refuse("it is no state");
    // In the order of pickle::state_attributes.
    bool good = number(values[0], state.round, 0, round_max) && boolean(values[1], state.complete);
    if (good && machine_.value(values[2]).kind != Kind::none) good = time(values[2], state.deadline.emplace());
    good = good && boolean(values[3], state.closed);
    good = good && pairs(values[4], [&](TorchrunNode&& node, Index value) {
             return number(value, state.participants[std::move(node)], 0, torchrun_nodes_max - 1);
           });
    good = good && nodes(values[5], state.wait_list) && nodes(values[6], state.redundancy_list);
    good = good && pairs(values[7], [&](TorchrunNode&& node, Index value) {
             return time(value, state.last_heartbeats[std::move(node)]);
           });
    if (!good) return false;
    const std::size_t count = state.participants.size() + state.wait_list.size() + state.redundancy_list.size();
    if (count > torchrun_nodes_max || state.last_heartbeats.size() > torchrun_nodes_max) {
      return refuse(fmt::format("more than {} nodes", torchrun_nodes_max));
    }
    state.aware_times = aware_.value_or(true);
    return true;
  }
  [[nodiscard]] const std::string& refusal() const { return why_; }

 private:
  bool refuse(std::string why) {
    why_ = std::move(why);
    return false;
  }
  bool number(Index index, std::int64_t& number, std::int64_t smallest, std::int64_t largest) {
    const Value& value = machine_.value(index);
    if (value.kind != Kind::number) return refuse("a number of another type");
    if (value.number < smallest || value.number > largest) {
      return refuse(fmt::format("the number {}, not {} to {}", value.number, smallest, largest));
    }
    number = value.number;
    return true;
  }
  bool boolean(Index index, bool& truth) {
    const Value& value = machine_.value(index);
    if (value.kind != Kind::boolean) return refuse("a truth value of another type");
    truth = value.number != 0;
    return true;
  }
  bool time(Index index, UtcTime& time) {
    const Value& value = machine_.value(index);
    if (value.kind != Kind::datetime) return refuse("a time of another type");
    if (aware_ && *aware_ != value.aware) return refuse("times with and without a zone");
    aware_ = value.aware;
    time = UtcTime{std::chrono::microseconds{value.number}};
    return true;
  }
  bool node(Index index, TorchrunNode& node) {
    const Value& value = machine_.value(index);
    const auto values = machine_.attributes(value);
    if (value.kind != Kind::node || values.empty()) return refuse("a node of another type");
    // In the order of pickle::node_attributes.
    const Value& address = machine_.value(values[0]);
    if (address.kind != Kind::text) return refuse("a node's address of another type");
    const std::string_view text = machine_.text(address);
    if (const auto why = why_no_name(text); !why.empty()) return refuse(fmt::format("a node's address: {}", why));
    node.addr = text;
    return number(values[1], node.pid, 0, torchrun_node_number_max) &&
           number(values[2], node.local_id, -torchrun_node_number_max - 1, torchrun_node_number_max);
  }
  bool pairs(Index index, const auto& use) {
    const Value& value = machine_.value(index);
    if (value.kind != Kind::dict) return refuse("a list of nodes of another type");
    std::optional<TorchrunNode> key;
    return machine_.for_items(value, [&](Index item) {
      if (!key) return node(item, key.emplace());
      TorchrunNode node = std::move(*key);
      key.reset();
      return use(std::move(node), item);
    });
  }
  bool nodes(Index index, std::set<TorchrunNode>& set) {
    const Value& value = machine_.value(index);
    if (value.kind != Kind::set) return refuse("a list of nodes of another type");
    return machine_.for_items(value, [&](Index item) {
      TorchrunNode entry;
      if (!node(item, entry)) return false;
      set.insert(std::move(entry));
      return true;
    });
  }

  const Machine& machine_;
  std::optional<bool> aware_;
  std::string why_;
};

}  // namespace

Result<TorchrunState> read_torchrun_state(std::string_view pickle) {
  const auto refused = [](errc code, const std::string& why) {
    return fail(code, "torchrun's rendezvous state cannot be read: " + why);
  };
  if (pickle.size() > torchrun_state_bytes_max) {
    return refused(errc::limit_exceeded,
                   fmt::format("it has {} bytes, where {} are allowed", pickle.size(), torchrun_state_bytes_max));
  }
  Machine machine{pickle};
  if (!machine.run()) return refused(errc::bad_frame, machine.refusal());
  TorchrunState state;
  Interpreter interpreter{machine};
  if (!interpreter.read(state)) return refused(errc::bad_frame, interpreter.refusal());
  return state;
}

Result<TorchrunState> torchrun_state_in(std::string_view text) {
  const auto pickle = from_base64(text);
  if (!pickle) return pickle.error();
  return read_torchrun_state(*pickle);
}

}  // namespace torchup

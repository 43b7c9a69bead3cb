#include "rendezvous/core/torchrun_state.hpp"

#include <catch2/catch.hpp>

namespace torchup {
namespace {

using namespace std::chrono_literals;

std::string bytes_of(std::string_view hex) {
  const auto digit = [](char c) { return static_cast<unsigned>(c <= '9' ? c - '0' : c - 'a' + 10); };
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1]));
  return bytes;
}

// As torch 2.15.0 writes them.
const std::string empty_state = bytes_of(
    "800495cb000000000000008c37746f7263682e64697374726962757465642e656c61737469632e72656e64657a766f75732e6479"
    "6e616d69635f72656e64657a766f7573948c105f52656e64657a766f757353746174659493942981947d94288c05726f756e6494"
    "4b008c08636f6d706c65746594898c08646561646c696e65944e8c06636c6f73656494898c0c7061727469636970616e7473947d"
    "948c09776169745f6c697374948f948c0f726564756e64616e63795f6c697374948f948c0f6c6173745f68656172746265617473"
    "947d9475622e");
const std::string three_nodes = bytes_of(
    "800495da010000000000008c37746f7263682e64697374726962757465642e656c61737469632e72656e64657a766f75732e6479"
    "6e616d69635f72656e64657a766f7573948c105f52656e64657a766f757353746174659493942981947d94288c05726f756e6494"
    "4b018c08636f6d706c65746594888c08646561646c696e65944e8c06636c6f73656494898c0c7061727469636970616e7473947d"
    "942868008c095f4e6f6465446573639493942981947d94288c0461646472948c0831302e302e302e31948c03706964944d92108c"
    "086c6f63616c5f6964944b0075624b00680c2981947d9428680f8c0831302e302e302e329468114dcc1068124b0075624b01758c"
    "09776169745f6c697374948f9428680c2981947d9428680f8c0831302e302e302e339468114b4d68124b007562908c0f72656475"
    "6e64616e63795f6c697374948f948c0f6c6173745f68656172746265617473947d9428680d8c086461746574696d65948c086461"
    "746574696d65949394430a07e9010203040500000694681f8c0874696d657a6f6e65949394681f8c0974696d6564656c74619493"
    "944b004b004b0087945294859452948694529468136821430a07e901020304060f423f94682a8694529468186821430a07e90102"
    "03040700000094682a869452947575622e");

const UtcTime then = std::chrono::sys_days{std::chrono::year{2025} / 1 / 2} + 3h + 4min + 5s + 6us;
const TorchrunNode a{"10.0.0.1", 4242, 0}, b{"10.0.0.2", 4300, 0}, c{"10.0.0.3", 77, 0};

TorchrunState state_of_three() {
  TorchrunState state;
  state.round = 1;
  state.complete = true;
  state.participants = {{a, 0}, {b, 1}};
  state.wait_list = {c};
  state.last_heartbeats = {{a, then}, {b, then + 1s + 999993us}, {c, then + 1s + 999994us}};
  return state;
}

TorchrunState read(const std::string& pickle) {
  const auto state = read_torchrun_state(pickle);
  if (!state) FAIL(state.error().message());
  return *state;
}
std::string refusal(const std::string& pickle) {
  const auto state = read_torchrun_state(pickle);
  return state ? "none" : state.error().message();
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("what torchrun writes is read", "[unit][torchrun]") {
  REQUIRE(read(empty_state) == TorchrunState{});
  REQUIRE(read(three_nodes) == state_of_three());
}

TEST_CASE("what we write is read back", "[unit][torchrun]") {
  REQUIRE(read(write_torchrun_state({})) == TorchrunState{});
  TorchrunState state = state_of_three();
  REQUIRE(read(write_torchrun_state(state)) == state);
  state.aware_times = false;
  state.deadline = then + 30s;
  state.closed = true;
  state.redundancy_list = {{std::string(300, 'x'), 1'000'000, 3}, {"\xc3\xa9", -1, std::int64_t{1} << 40}};
  REQUIRE(read(write_torchrun_state(state)) == state);
  REQUIRE(read(*from_base64(to_base64(write_torchrun_state(state)))) == state);
}

TEST_CASE("a state of many nodes stays as small as Python's", "[unit][torchrun]") {
  TorchrunState state;
  for (int i = 0; i < 1000; ++i) {
    const TorchrunNode node{"a-node-with-a-long-name-" + std::to_string(i) + ".example.org", 100'000 + i, 0};
    (i < 500) ? static_cast<void>(state.participants.emplace(node, i))
              : static_cast<void>(state.wait_list.insert(node));
    state.last_heartbeats.emplace(node, then);
  }
  const std::string text = to_base64(write_torchrun_state(state));
  REQUIRE(text.size() < 160'000);
  REQUIRE(read(*from_base64(text)) == state);
}

TEST_CASE("nothing but the state is made of a pickle", "[unit][torchrun]") {
  // os.system("true"): what a pickle that is believed would run.
  REQUIRE(has(refusal(bytes_of("80048c026f738c0673797374656d938c0474727565") + std::string{"\x85R."}),
              "the class os.system"));
  REQUIRE(has(refusal(bytes_of("80045d2e")), "operation"));  // a list
  REQUIRE(has(refusal(bytes_of("80044b012e")), "it is no state"));
  REQUIRE(has(refusal(bytes_of("800468052e")), "memo entry 5"));
  REQUIRE(has(refusal(bytes_of("8004752e")), "a mark is missing"));
  REQUIRE(has(refusal(bytes_of("80048cff41")), "it is cut"));
  REQUIRE(has(refusal(bytes_of("8003")), "protocol 3"));
  for (std::size_t size = 0; size < empty_state.size(); ++size) REQUIRE(refusal(empty_state.substr(0, size)) != "none");
  std::string unknown = empty_state;
  unknown.replace(unknown.find("closed"), 6, "clozed");
  REQUIRE(has(refusal(unknown), "the attribute 'clozed'"));
}

TEST_CASE("base64 as Python reads it", "[unit][torchrun]") {
  for (const char* text : {"", "f", "fo", "foo", "foob", "fooba", "foobar"})
    REQUIRE(*from_base64(to_base64(text)) == text);
  REQUIRE(to_base64("canimadam") == torchrun_no_state);
  REQUIRE(*from_base64("Zm\n9v") == "foo");
  REQUIRE_FALSE(from_base64("Zm9").has_value());
  REQUIRE_FALSE(from_base64("Z").has_value());
}

TEST_CASE("a round by torchrun's rules", "[unit][torchrun]") {
  const TorchrunTerms terms{
      .min_nodes = 2, .max_nodes = 3, .last_call = 30s, .keep_alive_interval = 5s, .dead_after = 15s};
  TorchrunState state;
  const auto join = [&](const TorchrunNode& node, UtcTime now) { return join_step(state, terms, node, now, {}); };

  REQUIRE(join(b, then) == TorchrunStep::write);
  REQUIRE(join(b, then) == TorchrunStep::wait);
  REQUIRE_FALSE(state.deadline.has_value());
  REQUIRE(join(a, then + 1s) == TorchrunStep::write);
  REQUIRE(state.deadline == then + 31s);

  SECTION("complete when the last call is over, ranks in the order of addresses") {
    REQUIRE(join(a, then + 5s) == TorchrunStep::wait);
    REQUIRE(join(b, then + 5s) == TorchrunStep::write);  // its heartbeat is due
    REQUIRE(state.last_heartbeats[b] == then + 5s);
    state.last_heartbeats = {{a, then + 31s}, {b, then + 31s}};
    REQUIRE(join(a, then + 31s) == TorchrunStep::wait);
    REQUIRE(join(a, then + 31s + 1us) == TorchrunStep::write);
    REQUIRE(state.complete);
    REQUIRE(state.participants == std::map<TorchrunNode, std::int64_t>{{a, 0}, {b, 1}});
    REQUIRE(join(b, then + 32s) == TorchrunStep::done);
    REQUIRE(join(c, then + 33s) == TorchrunStep::write);  // room for it
    REQUIRE(state.wait_list.contains(c));
    // All leave; the last one opens the next round, and all join it.
    REQUIRE(exit_step(state, terms, a) == TorchrunStep::write);
    REQUIRE(state.complete);
    REQUIRE(exit_step(state, terms, b) == TorchrunStep::write);
    REQUIRE_FALSE(state.complete);
    REQUIRE(state.round == 1);
    for (const TorchrunNode& node : {c, a, b}) REQUIRE(join(node, then + 34s) == TorchrunStep::write);
    REQUIRE(state.complete);
    REQUIRE(state.wait_list.empty());
    REQUIRE(state.participants.at(c) == 2);
    const TorchrunNode spare{"z", 1, 0};
    REQUIRE(join(spare, then + 35s) == TorchrunStep::write);
    REQUIRE(state.redundancy_list.contains(spare));
    REQUIRE(join(spare, then + 36s) == TorchrunStep::wait);
  }
  SECTION("a node that is silent goes, exactly so long is not too long") {
    drop_silent(state, terms, then + 15s);
    REQUIRE(state.participants.size() == 2);
    drop_silent(state, terms, then + 15s + 1us);
    REQUIRE(state.participants.size() == 1);
    REQUIRE_FALSE(state.deadline.has_value());
  }
  SECTION("too late") {
    REQUIRE(join_step(state, terms, a, then + 2s, 1s) == TorchrunStep::write);
    REQUIRE_FALSE(state.participants.contains(a));
    REQUIRE(join_step(state, terms, a, then + 2s, 2s) == TorchrunStep::too_late);
  }
  SECTION("closed") {
    state.closed = true;
    REQUIRE(join(a, then + 2s) == TorchrunStep::closed);
  }
}

}  // namespace torchup

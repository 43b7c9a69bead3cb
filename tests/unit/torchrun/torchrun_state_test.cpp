#include "rendezvous/core/torchrun_wire/torchrun_state.hpp"

#include <catch2/catch.hpp>
#include <random>

#include "rendezvous/core/torchrun_wire/pickle_machine.hpp"

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
  state.redundancy_list = {{std::string(256, 'x'), 1'000'000, 3}, {"\xc3\xa9", 0, torchrun_node_number_max}};
  state.round = std::int64_t{1} << 40;
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
  // Each as Python 3.11 answers.
  for (const auto& [text, bytes] : std::vector<std::pair<const char*, const char*>>{{"Zm9v=", "foo"},
                                                                                    {"Zm9v=Zm9v", "foofoo"},
                                                                                    {"Z=m9v", "foo"},
                                                                                    {"Zm=9v=", "foo"},
                                                                                    {"Zg==Zm9v", "f"},
                                                                                    {"Zg=\n=", "f"},
                                                                                    {"====", ""},
                                                                                    {"Zm9=x", "fo"},
                                                                                    {"Zm===", "f"},
                                                                                    {" Z g = = ", "f"}}) {
    INFO(text);
    REQUIRE(*from_base64(text) == bytes);
  }
  for (const char* text : {"Zm9", "Z", "Zm=9", "Zg=", "Zm9vZ", "Z===", "Zm="}) {
    INFO(text);
    REQUIRE_FALSE(from_base64(text).has_value());
  }
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  REQUIRE(*from_base64(to_base64(all)) == all);
}

namespace {

const std::string text_of(std::string_view value) {
  return "\x8c" + std::string(1, static_cast<char>(value.size())) + std::string{value};
}
const std::string module = text_of("torch.distributed.elastic.rendezvous.dynamic_rendezvous");
const std::string node_class = module + text_of("_NodeDesc") + "\x93";
const std::string state_class = module + text_of("_RendezvousState") + "\x93";
const std::string empty_tuple = ")", set_items = "u", build = "b", mark = "(", dict = "}", set = "\x8f",
                  memoize = "\x94", pickle_of = std::string{"\x80\x04", 2};

std::string repeated(const std::string& what, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i) all += what;
  return all;
}
std::string byte_number(int value) { return std::string{"K"} + static_cast<char>(value); }
std::string node_pickle(const std::string& addr, const std::string& pid = byte_number(1)) {
  return node_class + empty_tuple + "\x81" + dict + mark + text_of("addr") + addr + text_of("pid") + pid +
         text_of("local_id") + byte_number(0) + set_items + build;
}
/// The grammar without a memo.
std::string state_pickle(const std::string& participants = dict, const std::string& wait_list = set,
                         const std::string& round = byte_number(0)) {
  return pickle_of + state_class + empty_tuple + "\x81" + dict + mark + text_of("round") + round + text_of("complete") +
         "\x89" + text_of("deadline") + "N" + text_of("closed") + "\x89" + text_of("participants") + participants +
         text_of("wait_list") + wait_list + text_of("redundancy_list") + set + text_of("last_heartbeats") + dict +
         set_items + build + ".";
}

}  // namespace

TEST_CASE("the grammar without a memo is read too", "[unit][torchrun]") {
  REQUIRE(read(state_pickle()) == TorchrunState{});
  TorchrunState state;
  state.participants = {{{"a", 1, 0}, 3}};
  state.wait_list = {{"b", 7, 0}};
  REQUIRE(read(state_pickle(dict + mark + node_pickle(text_of("a")) + byte_number(3) + set_items,
                            set + mark + node_pickle(text_of("b"), byte_number(7)) + "\x90")) == state);
  // One pair without a mark, and a batch of none.
  REQUIRE(read(state_pickle(dict + node_pickle(text_of("a")) + byte_number(3) + "s",
                            set + mark + "\x90" + mark + node_pickle(text_of("b"), byte_number(7)) + "\x90")) == state);
}

TEST_CASE("no pickle costs more than its limits allow", "[unit][torchrun]") {
  SECTION("containers within each other") {
    const auto nested = [](std::size_t levels) { return pickle_of + ")" + repeated("\x85", levels - 1) + "."; };
    REQUIRE(has(refusal(nested(pickle::levels_max)), "it is no state"));
    REQUIRE(has(refusal(nested(pickle::levels_max + 1)), "nested more than 64 levels"));
    REQUIRE(has(refusal(nested(200'000)), "nested more than 64 levels"));
    // Of dicts, sets, and objects as well.
    const auto dicts = [](std::size_t levels) {
      return pickle_of + repeated(dict + "N", levels) + "N" + repeated("s", levels) + ".";
    };
    REQUIRE(has(refusal(dicts(pickle::levels_max)), "it is no state"));
    REQUIRE(has(refusal(dicts(pickle::levels_max + 1)), "nested more than 64 levels"));
    const auto sets = [](std::size_t levels) {
      return pickle_of + repeated(set + mark, levels) + "N" + repeated("\x90", levels) + ".";
    };
    REQUIRE(has(refusal(sets(pickle::levels_max)), "it is no state"));
    REQUIRE(has(refusal(sets(pickle::levels_max + 1)), "nested more than 64 levels"));
  }
  SECTION("operations") {
    const auto many = [](std::size_t operations) { return pickle_of + "N" + repeated(memoize, operations - 1) + "."; };
    REQUIRE(has(refusal(many(pickle::operations_max)), "it is no state"));
    REQUIRE(has(refusal(many(pickle::operations_max + 1)), "more than 1000000 operations"));
  }
  SECTION("bytes") {
    const std::string state = state_pickle();
    const auto padded = [&](std::size_t size) {  // by a text that is put in as an attribute's name twice too often
      const std::size_t length = size - state.size() - 5;
      std::string bytes = state.substr(0, state.size() - 1) + "X";
      for (unsigned i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(length >> (8 * i) & 0xff));
      return bytes + std::string(length, 'x') + ".";
    };
    REQUIRE(has(refusal(padded(torchrun_state_bytes_max)), "it does not end where it should"));
    REQUIRE(has(refusal(padded(torchrun_state_bytes_max + 1)), "8388609 bytes, where 8388608 are allowed"));
  }
  SECTION("a large text that is remembered a million times") {
    const std::string large(3 << 20, 'x');
    std::string bytes = pickle_of + "X" + std::string("\x00\x00\x30\x00", 4) + large;
    REQUIRE(has(refusal(bytes + repeated(memoize, 900'000) + "."), "it is no state"));
    REQUIRE(has(refusal(bytes + memoize + repeated(std::string("h\x00", 2), 900'000) + "."), "does not end"));
    // As the address of many nodes, and as a class that is named in the refusal.
    REQUIRE(has(refusal(state_pickle(dict + mark + node_pickle("X" + std::string("\x00\x00\x30\x00", 4) + large) +
                                     byte_number(0) + set_items)),
                "a node's address: it is longer than 256 bytes"));
    REQUIRE(refusal(bytes + memoize + std::string("h\x00\x93.", 4)).size() < 1000);
  }
  SECTION("nodes") {
    const auto nodes = [](std::int64_t count) {
      TorchrunState state;
      for (std::int64_t i = 0; i < count; ++i) {
        state.participants.emplace(TorchrunNode{"n" + std::to_string(i), 7, 0}, 0);
      }
      return state;
    };
    TorchrunState most = nodes(torchrun_nodes_max);
    REQUIRE(read(write_torchrun_state(most)) == most);
    most.wait_list.insert({"one more", 7, 0});
    REQUIRE(has(refusal(write_torchrun_state(most)), "more than 16384 nodes"));
    TorchrunState beating;
    for (const auto& [node, rank] : most.participants) beating.last_heartbeats.emplace(node, then);
    REQUIRE(read(write_torchrun_state(beating)) == beating);
    beating.last_heartbeats.emplace(TorchrunNode{"one more", 7, 0}, then);
    REQUIRE(has(refusal(write_torchrun_state(beating)), "more than 16384 nodes"));
  }
}

TEST_CASE("no value of a pickle contains itself", "[unit][torchrun]") {
  const std::string first("h\x00", 2), second("h\x01", 2);
  REQUIRE(has(refusal(pickle_of + set + memoize + mark + first + "\x90."), "within itself"));
  REQUIRE(has(refusal(pickle_of + dict + memoize + "N" + first + "s."), "within itself"));
  // By way of another container, of a tuple, and of an object's attributes.
  REQUIRE(
      has(refusal(pickle_of + set + memoize + mark + set + memoize + mark + first + "\x90\x90."), "part of another"));
  REQUIRE(has(refusal(pickle_of + set + memoize + mark + first + "\x85\x90."), "part of another"));
  REQUIRE(has(refusal(pickle_of + node_class + empty_tuple + "\x81" + memoize + dict + mark + text_of("addr") + dict +
                      first + "Ns" + text_of("pid") + "N" + text_of("local_id") + "N" + set_items + build + "."),
              "an object that is part of another value"));
  REQUIRE(
      has(refusal(pickle_of + set + memoize + "\x85" + memoize + first + mark + second + "\x90."), "part of another"));
}

TEST_CASE("numbers and addresses of a state are what they can be", "[unit][torchrun]") {
  const auto participant = [](const std::string& node, const std::string& rank) {
    return state_pickle(dict + mark + node + rank + set_items);
  };
  const std::string minus_one("J\xff\xff\xff\xff", 5), largest("J\xff\xff\xff\x7f", 5),
      beyond("\x8a\x05\x00\x00\x00\x80\x00", 7), last_rank("M\xff\x3f", 3), rank_beyond("M\x00\x40", 3);
  const std::string round_max_pickle("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x40", 10),
      round_beyond("\x8a\x08\x01\x00\x00\x00\x00\x00\x00\x40", 10);
  REQUIRE(read(state_pickle(dict, set, round_max_pickle)).round == std::int64_t{1} << 62);
  REQUIRE(has(refusal(state_pickle(dict, set, round_beyond)), "the number"));
  REQUIRE(has(refusal(state_pickle(dict, set, minus_one)), "the number -1"));
  REQUIRE(read(participant(node_pickle(text_of("a")), last_rank)).participants.begin()->second ==
          torchrun_nodes_max - 1);
  REQUIRE(has(refusal(participant(node_pickle(text_of("a")), rank_beyond)), "the number 16384, not 0 to 16383"));
  REQUIRE(has(refusal(participant(node_pickle(text_of("a")), minus_one)), "the number -1"));
  REQUIRE(read(participant(node_pickle(text_of("a"), largest), byte_number(0))).participants.begin()->first.pid ==
          torchrun_node_number_max);
  REQUIRE(has(refusal(participant(node_pickle(text_of("a"), beyond), byte_number(0))), "the number"));
  REQUIRE(has(refusal(participant(node_pickle(text_of("a\x1b[2J")), byte_number(0))), "control characters"));
  REQUIRE(has(refusal(participant(node_pickle(text_of("\xff")), byte_number(0))), "not UTF-8"));
  REQUIRE(has(refusal(state_pickle().replace(state_pickle().find("closed"), 6, "c\x1b[2Jd")), "c\\x1b[2Jd"));
}

TEST_CASE("times of a state are such that can be counted with", "[unit][torchrun]") {
  const auto fault_in = [](int year) {
    TorchrunState state;
    state.deadline = std::chrono::sys_days{std::chrono::year{year} / 6 / 1};
    return refusal(write_torchrun_state(state));
  };
  REQUIRE(fault_in(1970) == "none");
  REQUIRE(fault_in(2200) == "none");
  for (const int year : {1, 1969, 2201, 9999}) REQUIRE(has(fault_in(year), "a time that is none"));
}

TEST_CASE("attributes are all there, once, and of their types", "[unit][torchrun]") {
  const auto node_of = [](const std::string& attributes) {
    return refusal(state_pickle(dict + mark + node_class + empty_tuple + "\x81" + dict + mark + attributes + set_items +
                                build + byte_number(0) + set_items));
  };
  const std::string addr = text_of("addr") + text_of("a"), pid = text_of("pid") + byte_number(1),
                    local_id = text_of("local_id") + byte_number(0);
  REQUIRE(node_of(addr + pid + local_id) == "none");
  REQUIRE(has(node_of(addr + pid), "no attribute 'local_id'"));
  REQUIRE(has(node_of(addr + pid + local_id + pid), "the attribute 'pid' twice"));
  REQUIRE(has(node_of(addr + pid + local_id + text_of("more") + "N"), "the attribute 'more'"));
  REQUIRE(has(node_of(byte_number(1) + "N" + pid + local_id), "the attribute '?'"));
  REQUIRE(has(node_of(text_of("addr") + "N" + pid + local_id), "a node's address of another type"));
  REQUIRE(has(node_of(addr + text_of("pid") + "N" + local_id), "a number of another type"));
}

TEST_CASE("a pickle of random operations is read or refused, whatever it is", "[unit][torchrun]") {
  const std::string operations =
      "(.N\x88\x89KMJ\x8a\x8cXC)\x85\x86\x87}su\x8f\x90\x93\x81"
      "bR\x94hj\x95\x80";
  std::minstd_rand random{7};
  for (int run = 0; run < 20000; ++run) {
    std::string bytes = run % 2 == 0 ? pickle_of : three_nodes;
    if (run % 2 == 0) {
      for (int i = 0; i < 40; ++i) {
        bytes.push_back(random() % 3 == 0 ? static_cast<char>(random() % 8) : operations[random() % operations.size()]);
      }
      bytes += ".";
    } else {
      for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = operations[random() % operations.size()];
    }
    const auto state = read_torchrun_state(bytes);
    if (!state) continue;
    REQUIRE(read(write_torchrun_state(*state)) == *state);
  }
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

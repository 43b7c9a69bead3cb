#include "rendezvous/core/port/store_channels.hpp"

#include <catch2/catch.hpp>
#include <map>

using namespace torchup;
using namespace torchup::channels;

namespace {

ChannelId id(std::uint32_t number) { return ChannelId{number}; }

/// Both sides, and what has come to the peers of each.
struct Linked {
  StoreChannels workers{StoreChannels::Side::opens}, store{StoreChannels::Side::serves};
  std::map<std::uint32_t, std::string> at_store, at_workers;
  std::vector<Action> of_store, of_workers;  ///< beside what is sent and delivered

  void from_workers(const Event& event) { perform(workers.step(event), store, at_workers, of_workers, true); }
  void from_store(const Event& event) { perform(store.step(event), workers, at_store, of_store, false); }

  void perform(const std::vector<Action>& actions, StoreChannels&, std::map<std::uint32_t, std::string>& at,
               std::vector<Action>& others, bool by_workers) {
    for (const Action& action : actions) {
      if (const auto* send = std::get_if<Send>(&action)) {
        by_workers ? from_store(Heard{send->bytes}) : from_workers(Heard{send->bytes});
      } else if (const auto* deliver = std::get_if<Deliver>(&action)) {
        at[deliver->channel.value()] += deliver->bytes;
      } else {
        others.push_back(action);
      }
    }
  }
};

std::string frame(ChannelFrameKind kind, std::uint32_t channel, std::string_view bytes = {}, std::uint32_t credit = 0) {
  std::string out;
  append_channel_frame(out, {.kind = kind, .channel = id(channel), .bytes = bytes, .credit = credit});
  return out;
}

std::string why_broken(StoreChannels& side, const std::string& bytes) {
  const auto actions = side.step(Heard{bytes});
  const auto* broken = actions.empty() ? nullptr : std::get_if<Broken>(&actions.back());
  return broken ? broken->why : "";
}

}  // namespace

TEST_CASE("frames of channels are these bytes", "[unit][store_channels]") {
  REQUIRE(frame(ChannelFrameKind::open, 1) == std::string("\x05\0\0\0\x01\x01\0\0\0", 9));
  REQUIRE(frame(ChannelFrameKind::data, 258, "ab") == std::string("\x07\0\0\0\x02\x02\x01\0\0ab", 11));
  REQUIRE(frame(ChannelFrameKind::credit, 1, "", 65536) == std::string("\x09\0\0\0\x03\x01\0\0\0\0\0\x01\0", 13));
  REQUIRE(frame(ChannelFrameKind::close, 1) == std::string("\x05\0\0\0\x04\x01\0\0\0", 9));
}

TEST_CASE("what workers say comes to the store and back, each on its own channel", "[unit][store_channels]") {
  Linked link;
  link.from_workers(Came{id(1)});
  link.from_workers(Came{id(2)});
  REQUIRE(link.of_store == std::vector<Action>{Begin{id(1)}, Begin{id(2)}});
  link.from_workers(Said{id(1), "ping"});
  link.from_workers(Said{id(2), "set"});
  link.from_store(Said{id(1), "pong"});
  REQUIRE(link.at_store == std::map<std::uint32_t, std::string>{{1, "ping"}, {2, "set"}});
  REQUIRE(link.at_workers == std::map<std::uint32_t, std::string>{{1, "pong"}});
  SECTION("until a worker goes") {
    link.from_workers(Left{id(1)});
    REQUIRE(link.of_store.back() == Action{End{id(1)}});
    REQUIRE(link.store.count() == 1);
    link.from_store(Said{id(1), "too late"});
    REQUIRE(link.at_workers[1] == "pong");
  }
  SECTION("or the store closes it") {
    link.from_store(Left{id(2)});
    REQUIRE(link.of_workers == std::vector<Action>{End{id(2)}});
    REQUIRE(link.workers.room(id(2)) == 0);
  }
}

TEST_CASE("who goes while the other side speaks is passed over", "[unit][store_channels]") {
  StoreChannels workers{StoreChannels::Side::opens};
  REQUIRE(workers.step(Came{id(1)}).size() == 1);
  REQUIRE(workers.step(Left{id(1)}).size() == 1);
  const std::string late = frame(ChannelFrameKind::data, 1, "x") + frame(ChannelFrameKind::credit, 1, "", 1) +
                           frame(ChannelFrameKind::close, 1);
  REQUIRE(workers.step(Heard{late}).empty());
  REQUIRE(workers.next() == id(2));  // no number is used twice
}

TEST_CASE("a worker that reads nothing holds up no other", "[unit][store_channels]") {
  Linked link;
  link.from_workers(Came{id(1)});
  link.from_workers(Came{id(2)});
  const std::string much(channel_window_bytes, 'x');
  link.from_store(Said{id(1), much + "and more"});
  REQUIRE(link.at_workers[1].size() == channel_window_bytes);
  REQUIRE(link.store.room(id(1)) == 0);
  link.from_store(Said{id(1), "again"});
  REQUIRE(link.at_workers[1].size() == channel_window_bytes);
  REQUIRE(link.store.room(id(2)) == channel_window_bytes);
  link.from_store(Said{id(2), "meanwhile"});
  REQUIRE(link.at_workers[2] == "meanwhile");
  SECTION("and when it has read a quarter it is told more") {
    link.from_workers(Took{id(1), channel_window_bytes / 4 - 1});
    REQUIRE(link.store.room(id(1)) == 0);
    link.from_workers(Took{id(1), 1});
    REQUIRE(link.store.room(id(1)) == channel_window_bytes / 4);
    REQUIRE(link.of_store.back() == Action{Resume{id(1)}});
  }
  SECTION("and no more credit than was used, whatever it says that it took") {
    link.from_workers(Took{id(1), 10 * channel_window_bytes});
    REQUIRE(link.store.room(id(1)) == channel_window_bytes);
    link.from_workers(Took{id(1), 10 * channel_window_bytes});
    REQUIRE(link.store.room(id(1)) == channel_window_bytes);
  }
}

TEST_CASE("what may be cut is cut anywhere", "[unit][store_channels]") {
  StoreChannels store{StoreChannels::Side::serves};
  const std::string all =
      frame(ChannelFrameKind::open, 1) + frame(ChannelFrameKind::data, 1, "hello") + frame(ChannelFrameKind::close, 1);
  std::vector<Action> heard;
  for (const char byte : all) {
    for (Action& action : store.step(Heard{{&byte, 1}})) heard.push_back(std::move(action));
  }
  REQUIRE(heard == std::vector<Action>{Begin{id(1)}, Deliver{id(1), "hello"}, End{id(1)}});
}

TEST_CASE("so many channels are open at once, and one more is refused", "[unit][store_channels]") {
  Linked link;
  for (std::uint32_t i = 1; i <= channels_max; ++i) link.from_workers(Came{id(i)});
  REQUIRE(link.store.count() == channels_max);
  REQUIRE_FALSE(link.workers.next());
  link.from_workers(Came{id(channels_max + 1)});
  REQUIRE(link.workers.count() == channels_max);
  REQUIRE(why_broken(link.store, frame(ChannelFrameKind::open, channels_max + 1)).starts_with("channels_max"));
  REQUIRE(link.store.count() == 0);
}

TEST_CASE("what breaks the rules breaks the link", "[unit][store_channels]") {
  StoreChannels store{StoreChannels::Side::serves}, workers{StoreChannels::Side::opens};
  REQUIRE(store.step(Heard{frame(ChannelFrameKind::open, 1)}).size() == 1);
  REQUIRE(workers.step(Came{id(1)}).size() == 1);
  SECTION("a channel that is none yet") {
    REQUIRE_FALSE(why_broken(store, frame(ChannelFrameKind::data, 2, "x")).empty());
  }
  SECTION("one that is opened again") { REQUIRE_FALSE(why_broken(store, frame(ChannelFrameKind::open, 1)).empty()); }
  SECTION("one that is left out") { REQUIRE_FALSE(why_broken(store, frame(ChannelFrameKind::open, 3)).empty()); }
  SECTION("channel 0") { REQUIRE_FALSE(why_broken(store, frame(ChannelFrameKind::close, 0)).empty()); }
  SECTION("opened by the store") { REQUIRE_FALSE(why_broken(workers, frame(ChannelFrameKind::open, 2)).empty()); }
  SECTION("more credit than was used") {
    REQUIRE_FALSE(why_broken(workers, frame(ChannelFrameKind::credit, 1, "", 1)).empty());
  }
  SECTION("more data than there was credit for") {
    std::string much;
    for (std::size_t i = 0; i < channel_window_bytes / channel_data_bytes_max; ++i) {
      much += frame(ChannelFrameKind::data, 1, std::string(channel_data_bytes_max, 'x'));
    }
    REQUIRE(why_broken(store, much).empty());
    REQUIRE(why_broken(store, frame(ChannelFrameKind::data, 1, "x")).find("credit") != std::string::npos);
  }
  SECTION("an unknown kind") { REQUIRE_FALSE(why_broken(store, std::string("\x05\0\0\0\x09\x01\0\0\0", 9)).empty()); }
  SECTION("data without any") { REQUIRE_FALSE(why_broken(store, std::string("\x05\0\0\0\x02\x01\0\0\0", 9)).empty()); }
  SECTION("a frame that is too long, before it is there") {
    REQUIRE_FALSE(why_broken(store, std::string("\x06\0\x01\0", 4)).empty());
  }
}

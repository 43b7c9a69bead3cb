#include "rendezvous/net/io/link_line.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <vector>

using namespace torchup;
using namespace std::chrono_literals;
namespace asio = boost::asio;

namespace {

/// A line to a scripted host: two pipes.
struct Line {
  Line() {
    std::array<int, 2> in{}, out{};
    REQUIRE(::pipe2(in.data(), O_CLOEXEC) == 0);
    REQUIRE(::pipe2(out.data(), O_CLOEXEC) == 0);
    says = UniqueFd{in[1]};
    hears = UniqueFd{out[0]};
    ::fcntl(hears.get(), F_SETFL, O_NONBLOCK);
    line = std::make_shared<LinkLine>(
        loop, UniqueFd{in[0]}, UniqueFd{out[1]},
        LinkLine::Handlers{[this](std::string_view bytes) { before += bytes; },
                           [this](FarMessage message) { messages.push_back(std::move(message)); },
                           [this](LinkChannel, std::string_view bytes) { output += bytes; },
                           [this](std::string why) { broken = std::move(why); }});
    line->start();
  }
  ~Line() {
    line->close();
    turn();
  }
  void say(std::string_view bytes) {
    REQUIRE(::write(says.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  void say(LinkChannel channel, std::string_view bytes) {
    std::string frames;
    append_link_frames(frames, channel, bytes);
    say(frames);
  }
  void say(const FarMessage& message) { say(LinkChannel::control, encode(message)); }
  /// Everything that can happen now.
  void turn() {
    loop.restart();
    while (loop.poll_one() > 0) continue;
  }
  /// What the line has written, by channel.
  std::string heard(LinkChannel channel) {
    turn();
    std::array<char, 65536> buffer;
    for (ssize_t count = 0; (count = ::read(hears.get(), buffer.data(), buffer.size())) > 0; turn()) {
      unread.append(buffer.data(), static_cast<std::size_t>(count));
    }
    std::string_view rest = unread;
    std::string found;
    while (const auto frame = *take_link_frame(rest)) {
      if (frame->channel == channel) found += frame->bytes;
    }
    unread.erase(0, unread.size() - rest.size());
    return found;
  }
  asio::io_context loop;
  UniqueFd says, hears;
  std::shared_ptr<LinkLine> line;
  std::string before, output, unread;
  std::vector<FarMessage> messages;
  std::optional<std::string> broken;
};

}  // namespace

TEST_CASE("what stands before the greeting is a login shell's", "[net][link]") {
  Line line;
  line.say("Welcome\nunfinished ");
  line.turn();
  line.say("line" + std::string{link_greeting});
  line.say(LinkEnded{3});
  line.turn();
  REQUIRE(line.before == "Welcome\nunfinished line");
  REQUIRE(line.messages == std::vector<FarMessage>{LinkEnded{3}});
}

TEST_CASE("a greeting and its frames may come byte by byte", "[net][link]") {
  Line line;
  std::string bytes = "x" + std::string{link_greeting};
  append_link_frames(bytes, LinkChannel::control, encode(FarMessage{LinkHello{"1", "h", {"10.0.0.1"}}}));
  append_link_frames(bytes, LinkChannel::err, "words");
  for (const char byte : bytes) {
    line.say(std::string_view{&byte, 1});
    line.turn();
  }
  REQUIRE(line.before == "x");
  REQUIRE(line.messages == std::vector<FarMessage>{LinkHello{"1", "h", {"10.0.0.1"}}});
  REQUIRE(line.output == "words");
}

TEST_CASE("the agents' channel is a socket both ways", "[net][link]") {
  Line line;
  line.say(link_greeting);
  const UniqueFd coordinator = *line.line->open_agents();
  line.say(LinkChannel::agents, "torchup\n");
  line.turn();
  std::array<char, 16> heard{};
  REQUIRE(::recv(coordinator.get(), heard.data(), heard.size(), 0) == 8);
  REQUIRE(::send(coordinator.get(), "welcome", 7, 0) == 7);
  REQUIRE(line.heard(LinkChannel::agents) == "welcome");
  SECTION("which ends with the link") {
    line.line->close();
    line.turn();
    REQUIRE(::recv(coordinator.get(), heard.data(), heard.size(), 0) == 0);
  }
  SECTION("and waits for a host that does not read") {
    const std::string much(std::size_t{1} << 20, 'x');
    std::size_t sent = 0;
    for (int turns = 0; turns < 1000 && sent < much.size(); ++turns) {
      const ssize_t count = ::send(coordinator.get(), much.data() + sent, much.size() - sent, MSG_DONTWAIT);
      if (count > 0) sent += static_cast<std::size_t>(count);
      line.turn();
    }
    REQUIRE(sent < much.size());
    std::string got = line.heard(LinkChannel::agents);
    REQUIRE(got.size() == sent);
    REQUIRE_FALSE(line.broken);
  }
}

TEST_CASE("output is acknowledged when it was taken", "[net][link]") {
  Line line;
  line.say(link_greeting);
  line.line->acknowledge(1000);
  REQUIRE(line.heard(LinkChannel::control).empty());  // not worth a message yet
  line.line->acknowledge(link_window_bytes / 8);
  const std::string bytes = line.heard(LinkChannel::control);
  std::string_view input = bytes;
  REQUIRE(**take_front_message(input) == FrontMessage{LinkAck{link_window_bytes / 8 + 1000}});
}

TEST_CASE("a link that ends is told once", "[net][link]") {
  Line line;
  line.say(link_greeting);
  line.say(LinkEnded{0});
  SECTION("with its last words before") {
    line.says.reset();
    line.turn();
    REQUIRE(line.messages.size() == 1);
    REQUIRE(line.broken == "");
  }
  SECTION("but not to who has closed it") {
    line.says.reset();
    line.line->close();
    line.turn();
    REQUIRE_FALSE(line.broken);
  }
}

TEST_CASE("a host that speaks another language is broken", "[net][link]") {
  Line line;
  line.say(link_greeting);
  SECTION("by a frame that is too large") { line.say(std::string_view{"\x01\xff\xff\xff\xff", 5}); }
  SECTION("by a message of ours") { line.say(LinkChannel::control, encode(FrontMessage{LinkPing{}})); }
  line.turn();
  REQUIRE(line.broken.value_or("").starts_with("it speaks another language: "));
}

TEST_CASE("a host that reads nothing is broken before it takes all memory", "[net][link]") {
  Line line;
  const LinkPlan plan{.environment = {std::string(std::size_t{1} << 20, 'x')}};
  for (int times = 0; times < 5; ++times) line.line->send(plan);
  line.turn();
  REQUIRE(line.broken == "it does not read what it is told");
}

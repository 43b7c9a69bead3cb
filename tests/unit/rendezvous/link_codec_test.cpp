#include "rendezvous/core/link/link_codec.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

namespace {

LinkPlan full_plan() {
  return {.version = "1.2.3",
          .name = "gpu7",
          .node = 3,
          .address = "10.0.0.7",
          .directory = "/data/run",
          .environment = {"A=1", "EMPTY=", std::string{"BYTES=\xff\n\x01", 9}},
          .arguments = {"torchup", "--nnodes=4"},
          .program = {"train.py", "", "two words"},
          .workers = 8,
          .run_id = RunId{"run"},
          .token = "secret",
          .own_coordinator = true,
          .wants_events = true,
          .wants_result = true};
}

Result<std::optional<FrontMessage>> take(std::string_view& input, FrontMessage*) { return take_front_message(input); }
Result<std::optional<FarMessage>> take(std::string_view& input, FarMessage*) { return take_far_message(input); }

template <class Message>
void check_all(const std::vector<Message>& messages) {
  REQUIRE(messages.size() == std::variant_size_v<Message>);
  for (const Message& message : messages) {
    INFO("alternative " << message.index());
    const std::string bytes = encode(message);
    std::string_view whole = bytes;
    const auto read = take(whole, static_cast<Message*>(nullptr));
    REQUIRE(read.has_value());
    REQUIRE(**read == message);
    REQUIRE(whole.empty());
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      std::string_view part = std::string_view{bytes}.substr(0, cut);
      const auto nothing = take(part, static_cast<Message*>(nullptr));
      REQUIRE(nothing.has_value());
      REQUIRE_FALSE(nothing->has_value());
      REQUIRE(part.size() == cut);
    }
  }
}

}  // namespace

TEST_CASE("messages of a link are read as they were written", "[unit][link]") {
  check_all<FrontMessage>({full_plan(), LinkSignal{15}, LinkAck{65536}, LinkPing{}});
  check_all<FarMessage>({LinkHello{"1.2.3", "gpu7", {"10.0.0.7", "fd00::7"}}, LinkRefuse{2, "no such directory"},
                         LinkEnded{143}, LinkPing{}});
}

TEST_CASE("a side of a link is not told what it says itself", "[unit][link]") {
  const std::string ended = encode(FarMessage{LinkEnded{0}});
  std::string_view input = ended;
  REQUIRE(take_front_message(input).error().code == make_error_code(errc::bad_frame));
  const std::string ack = encode(FrontMessage{LinkAck{1}});
  input = ack;
  REQUIRE(take_far_message(input).error().code == make_error_code(errc::bad_frame));
}

TEST_CASE("later messages of a link are passed over", "[unit][link]") {
  std::string bytes = encode(FrontMessage{LinkPing{}});
  bytes[4] = 60;
  bytes += encode(FrontMessage{LinkAck{7}});
  std::string_view input = bytes;
  REQUIRE(**take_front_message(input) == FrontMessage{LinkAck{7}});
}

TEST_CASE("a message of a link has an end", "[unit][link]") {
  std::string bytes(5, '\0');
  bytes[0] = 1;
  bytes[2] = 0x20;  // 2 MiB and one byte
  std::string_view input = bytes;
  REQUIRE(take_front_message(input).error().code == make_error_code(errc::limit_exceeded));
}

TEST_CASE("numbers of a link are within their range", "[unit][link]") {
  for (const FrontMessage& wrong : {FrontMessage{LinkSignal{0}}, FrontMessage{LinkSignal{65}}}) {
    const std::string bytes = encode(wrong);
    std::string_view input = bytes;
    REQUIRE(take_front_message(input).has_error());
  }
  const std::string bytes = encode(FarMessage{LinkEnded{256}});
  std::string_view input = bytes;
  REQUIRE(take_far_message(input).has_error());
}

TEST_CASE("what a link carries is cut into frames", "[unit][link]") {
  const std::string bytes(link_frame_bytes_max + 1, 'x');
  std::string out;
  append_link_frames(out, LinkChannel::out, bytes);
  REQUIRE(out.size() == bytes.size() + 2 * link_header_bytes);
  std::string_view input = out;
  REQUIRE((*take_link_frame(input))->bytes.size() == link_frame_bytes_max);
  REQUIRE(**take_link_frame(input) == LinkFrame{LinkChannel::out, "x"});
  REQUIRE_FALSE(take_link_frame(input)->has_value());
  std::string none;
  append_link_frames(none, LinkChannel::err, "");
  REQUIRE(none.empty());
}

TEST_CASE("a frame of a link that is not whole waits", "[unit][link]") {
  std::string out;
  append_link_frames(out, LinkChannel::agents, "abc");
  for (std::size_t cut = 0; cut < out.size(); ++cut) {
    std::string_view part = std::string_view{out}.substr(0, cut);
    REQUIRE_FALSE(take_link_frame(part)->has_value());
    REQUIRE(part.size() == cut);
  }
}

TEST_CASE("a frame of a link is at most as large as it may be", "[unit][link]") {
  const std::string largest{"\x01\x00\x00\x01\x00", 5};
  std::string_view input = largest;
  REQUIRE(take_link_frame(input).has_value());
  const std::string larger{"\x01\x01\x00\x01\x00", 5};
  input = larger;
  REQUIRE(take_link_frame(input).error().code == make_error_code(errc::limit_exceeded));
}

TEST_CASE("channels of a link that are not known are passed over", "[unit][link]") {
  std::string out;
  append_link_frames(out, static_cast<LinkChannel>(77), "later");
  append_link_frames(out, LinkChannel::events, "now");
  std::string_view input = out;
  REQUIRE(**take_link_frame(input) == LinkFrame{LinkChannel::events, "now"});
}

TEST_CASE("a plan is not sent where it would be cut", "[unit][link]") {
  LinkPlan plan = full_plan();
  REQUIRE(check_link_plan(plan).has_value());
  plan.environment.push_back("BIG=" + std::string(link_message_bytes_max, 'x'));
  REQUIRE(check_link_plan(plan).error().context.find("--export") != std::string::npos);
  plan.environment.assign(link_words_max + 1, "A=");
  REQUIRE(check_link_plan(plan).has_error());
}

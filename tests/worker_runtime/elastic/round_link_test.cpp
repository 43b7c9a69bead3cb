// The worker's end of the channel, and the thread that listens there: with real sockets, and the agent's end in our
// hand.
#include "worker_runtime/elastic/round_link.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>

#include "rendezvous/base/worker_channel.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

struct Ends {
  UniqueFd agent, worker;

  explicit Ends(int type = SOCK_SEQPACKET) {
    std::array<int, 2> pair{};
    REQUIRE(::socketpair(AF_UNIX, type, 0, pair.data()) == 0);
    agent.reset(pair[0]);
    worker.reset(pair[1]);
  }
  void say(std::string packet) const {
    REQUIRE(::send(agent.get(), packet.data(), packet.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(packet.size()));
  }
  void say(const AgentWord& word) const { say(*to_packet(word)); }
  [[nodiscard]] std::string hear() const {
    std::array<char, 100> packet{};
    const ssize_t size = ::recv(agent.get(), packet.data(), packet.size(), 0);
    return {packet.data(), static_cast<std::size_t>(size > 0 ? size : 0)};
  }
};

template <class Condition>
void wait_until(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + 60s;
  while (!condition()) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    std::this_thread::sleep_for(1ms);
  }
}

}  // namespace

TEST_CASE("a channel is taken that is what the environment says, and out of it", "[worker_runtime][agent_channel]") {
  Ends ends;
  struct stat status {};
  REQUIRE(::fstat(ends.worker.get(), &status) == 0);
  const WorkerChannelAddress address{ends.worker.get(), status.st_ino, ::getpid()};
  const auto open_as = [](const std::string& text) {
    ::setenv(worker_channel_variable, text.c_str(), 1);
    auto channel = AgentChannel::open();
    REQUIRE(std::getenv(worker_channel_variable) == nullptr);
    return channel;
  };
  std::string text = to_text(address);
  SECTION("as it is") {
    const auto channel = open_as(to_text(address));
    REQUIRE(channel);
    REQUIRE((::fcntl(ends.worker.get(), F_GETFD) & FD_CLOEXEC) != 0);
    (void)ends.worker.release();
    channel->say(*to_packet(WorkerStays{}));
    REQUIRE(ends.hear() == "stay\n");
  }
  SECTION("no channel of this version") { text = "2" + to_text(address).substr(1); }
  SECTION("meant for another process") { text = to_text({address.fd, address.inode, 1}); }
  SECTION("another file by now") { text = to_text({address.fd, address.inode + 1, address.pid}); }
  SECTION("a descriptor that is closed") { text = to_text({10'000, address.inode, address.pid}); }
  if (ends.worker) REQUIRE_FALSE(open_as(text));
}

TEST_CASE("another kind of socket is no channel", "[worker_runtime][agent_channel]") {
  const Ends ends{SOCK_STREAM};
  struct stat status {};
  REQUIRE(::fstat(ends.worker.get(), &status) == 0);
  ::setenv(worker_channel_variable, to_text({ends.worker.get(), status.st_ino, ::getpid()}).c_str(), 1);
  REQUIRE_FALSE(AgentChannel::open());
}

TEST_CASE("without a channel no round is over, and every exception is one's own", "[worker_runtime][round_link]") {
  RoundLink link{nullptr, [] { FAIL("nothing blocks"); }};
  link.stay();
  link.enter_round();
  REQUIRE_FALSE(link.is_open());
  REQUIRE_FALSE(link.is_over());
  REQUIRE_FALSE(link.is_consequence("a fault"));
}

TEST_CASE("the flag stands before what blocks is ended, which goes on until the round is left",
          "[worker_runtime][round_link]") {
  Ends ends;
  AgentChannel channel{std::move(ends.worker)};
  std::atomic<int> times = 0;
  std::atomic<bool> was_over = true;
  RoundLink* the_link = nullptr;
  RoundLink link{&channel, [&] {
                   was_over = was_over && the_link->is_over();
                   ++times;
                 }};
  the_link = &link;
  link.stay();
  REQUIRE(ends.hear() == "stay\n");
  link.enter_round();
  REQUIRE(times == 0);
  ends.say(RoundOver{"a test"});
  wait_until([&] { return times >= 3; });
  REQUIRE(was_over);
  REQUIRE(link.over() == "a test");
  link.leave_round();
  const int ended = times;
  auto place = std::async(std::launch::async, [&] { return link.park(7); });
  REQUIRE(ends.hear() == "parked\nstep=7\n");
  ends.say(NewPlace{{{"RANK", "3"}}});
  REQUIRE(place.get()->at("RANK") == "3");
  REQUIRE_FALSE(link.is_over());
  REQUIRE(times == ended);
  SECTION("a round that is over when it is entered") {
    ends.say(RoundOver{"again"});
    wait_until([&] { return link.is_over(); });
    REQUIRE(times == ended);
    link.enter_round();
    wait_until([&] { return times > ended; });
    link.leave();
    REQUIRE_FALSE(link.is_over());
    REQUIRE(ends.hear() == "leave\n");
  }
}

TEST_CASE("who asks how far the process is is heard too, in a round and between two", "[worker_runtime][round_link]") {
  Ends ends;
  AgentChannel channel{std::move(ends.worker)};
  std::atomic<std::uint64_t> asked = 0;
  RoundLink link{&channel, [] {}, [&](std::uint64_t number) { asked = number; }};
  ends.say(LookWanted{4});
  wait_until([&] { return asked == 4; });
  link.enter_round();
  ends.say(RoundOver{"a test"});
  ends.say(LookWanted{5});
  wait_until([&] { return asked == 5; });
  REQUIRE(link.is_over());
}

TEST_CASE("who waits for a word waits as long as there is an agent to say it", "[worker_runtime][round_link]") {
  Ends ends;
  AgentChannel channel{std::move(ends.worker)};
  RoundLink link{&channel, [] {}};
  const auto what_ends_a_channel = GENERATE(0, 1, 2, 3);
  const auto end_it = [&] {
    if (what_ends_a_channel == 0) ends.agent.reset();
    if (what_ends_a_channel == 1) ends.say(std::string{"no packet"});
    if (what_ends_a_channel == 2) ends.say("abort\n" + std::string(worker_packet_bytes_max, 'a') + "\n");
    if (what_ends_a_channel == 3) ends.say(std::string{"place\nRANK=1\nRANK=2\n"});
  };
  SECTION("for its place") {
    auto place = std::async(std::launch::async, [&] { return link.park(3); });
    REQUIRE(ends.hear() == "parked\nstep=3\n");
    end_it();
    REQUIRE_FALSE(place.get());
  }
  SECTION("for whose fault it is") {
    auto consequence = std::async(std::launch::async, [&] { return link.is_consequence("a fault"); });
    REQUIRE(ends.hear() == "raised\ntext=a fault\n");
    end_it();
    REQUIRE_FALSE(consequence.get());
  }
  REQUIRE_FALSE(link.is_open());
}

TEST_CASE("the agent says whose fault it is, and words that are not known here are passed over",
          "[worker_runtime][round_link]") {
  Ends ends;
  AgentChannel channel{std::move(ends.worker)};
  RoundLink link{&channel, [] {}};
  auto consequence = std::async(std::launch::async, [&] { return link.is_consequence("two\nlines"); });
  REQUIRE(ends.hear() == "raised\ntext=two lines\n");
  ends.say(std::string{"dance\nstep=1\n"});
  SECTION("its own") {
    ends.say(OwnFault{});
    REQUIRE_FALSE(consequence.get());
  }
  SECTION("another's") {
    ends.say(RoundOver{"rank 1"});
    REQUIRE(consequence.get());
  }
}

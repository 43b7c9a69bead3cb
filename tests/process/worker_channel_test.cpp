// Our end of a worker's channel, and a peer that says what it likes.
#include "launcher/os/worker/worker_channel.hpp"

#include <sys/socket.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

class ChannelScene {
 public:
  ChannelScene() {
    auto made = make_channel_pair();
    REQUIRE(made.has_value());
    struct stat status {};
    REQUIRE(::fstat(made->theirs.get(), &status) == 0);
    CHECK(status.st_ino == made->inode);
    peer = std::move(made->theirs);
    WorkerChannel::Listener listener;
    listener.heard = [this](WorkerWord word) { heard.push_back(std::move(word)); };
    listener.ended = [this](ChannelEnd how) {
      ends.push_back(std::move(how.reason));
      deaf = how.deaf;
    };
    channel.emplace(loop, std::move(made->ours), std::move(listener));
  }
  [[nodiscard]] bool send(std::string_view packet) const {
    return ::send(peer.get(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
  }
  template <class Done>
  void until(Done done) {
    const TimePoint end = std::chrono::steady_clock::now() + 20s;
    while (!done() && std::chrono::steady_clock::now() < end) loop.run_one_for(100ms);
    REQUIRE(done());
  }

  asio::io_context loop;
  UniqueFd peer;
  std::vector<WorkerWord> heard;
  std::vector<std::string> ends;
  bool deaf = false;
  std::optional<WorkerChannel> channel;
};

}  // namespace

TEST_CASE("a worker and its agent hear each other", "[process][worker_channel]") {
  ChannelScene scene;
  REQUIRE(scene.send(*to_packet(WorkerWord{WorkerStays{}})));
  REQUIRE(scene.send("later\n"));
  REQUIRE(scene.send(*to_packet(WorkerWord{WorkerParked{7}})));
  scene.until([&] { return scene.heard.size() == 2; });
  CHECK(scene.heard == std::vector<WorkerWord>{WorkerStays{}, WorkerParked{7}});
  REQUIRE(scene.channel->say(RoundOver{"rank 1 is gone"}));
  std::string packet(worker_packet_bytes_max, ' ');
  const ssize_t size = ::recv(scene.peer.get(), packet.data(), packet.size(), MSG_DONTWAIT);
  REQUIRE(size > 0);
  packet.resize(static_cast<std::size_t>(size));
  CHECK(**parse_agent_word(packet) == AgentWord{RoundOver{"rank 1 is gone"}});
  CHECK(scene.ends.empty());
}

TEST_CASE("the end of the worker's end is the channel's, and no fault", "[process][worker_channel]") {
  ChannelScene scene;
  scene.peer.reset();
  scene.until([&] { return !scene.ends.empty(); });
  CHECK(scene.ends == std::vector<std::string>{""});
  CHECK_FALSE(scene.deaf);
  CHECK_FALSE(scene.channel->is_open());
  CHECK_FALSE(scene.channel->say(OwnFault{}));
}

TEST_CASE("a worker that has closed its channel before it read what was said is told apart",
          "[process][worker_channel]") {
  ChannelScene scene;
  REQUIRE(scene.channel->say(NewPlace{{{"RANK", "1"}}}));
  scene.peer.reset();
  scene.until([&] { return !scene.ends.empty(); });
  CHECK(scene.deaf);
}

TEST_CASE("a packet that cannot be read ends the channel", "[process][worker_channel]") {
  for (const std::string& packet :
       {std::string{"parked\nstep=x\n"}, std::string(worker_packet_bytes_max + 1, 'x'), std::string{"stay\0\n", 6}}) {
    ChannelScene scene;
    REQUIRE(scene.send(packet));
    static_cast<void>(scene.send("stay\n"));
    scene.until([&] { return !scene.ends.empty(); });
    CHECK_FALSE(scene.ends.front().empty());
    CHECK(scene.heard.empty());
  }
}

TEST_CASE("a worker that does not read ends its channel", "[process][worker_channel]") {
  ChannelScene scene;
  int said = 0;
  while (scene.channel->say(RoundOver{"again"})) REQUIRE(++said < 100'000);
  CHECK(scene.ends.empty());  // never from within
  scene.until([&] { return !scene.ends.empty(); });
  CHECK_FALSE(scene.ends.front().empty());
  CHECK(scene.ends.size() == 1);
}

TEST_CASE("a worker that says very much leaves the loop to others", "[process][worker_channel]") {
  ChannelScene scene;
  const std::string packet = *to_packet(WorkerWord{WorkerStays{}});
  bool over = false;
  asio::steady_timer timer{scene.loop, 200ms};
  timer.async_wait([&](boost::system::error_code) { over = true; });
  const TimePoint begin = std::chrono::steady_clock::now();
  std::size_t sent = 0;
  scene.until([&] {
    while (scene.send(packet)) ++sent;
    return over;
  });
  const auto turns = (std::chrono::steady_clock::now() - begin) / WorkerChannel::pause + 1;
  CHECK(sent > scene.heard.size());  // the rest waits in the socket: the worker does
  CHECK(scene.heard.size() <= static_cast<std::size_t>(turns * WorkerChannel::words_at_once));
  CHECK(scene.heard.size() > WorkerChannel::words_at_once);
  CHECK(scene.ends.empty());
}

TEST_CASE("a channel may be destroyed by what it says", "[process][worker_channel]") {
  ChannelScene scene;
  std::optional<WorkerChannel> other;
  auto made = make_channel_pair();
  REQUIRE(made.has_value());
  bool gone = false;
  WorkerChannel::Listener listener;
  listener.heard = [&](const WorkerWord&) {
    other.reset();
    gone = true;
  };
  listener.ended = [](const ChannelEnd&) {};
  other.emplace(scene.loop, std::move(made->ours), std::move(listener));
  for (int i = 0; i < 3; ++i) REQUIRE(::send(made->theirs.get(), "stay\n", 5, MSG_NOSIGNAL) == 5);
  scene.until([&] { return gone; });
  scene.loop.poll();
}

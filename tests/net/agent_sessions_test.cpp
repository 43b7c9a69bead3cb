#include "rendezvous/net/coordinator/agent_sessions.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <functional>

#include "rendezvous/core/link/agent_codec.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/io/frame_socket.hpp"
#include "rendezvous/net/store/store_server.hpp"

using namespace torchup;
using namespace std::chrono_literals;
namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

struct AgentPort {
  explicit AgentPort(AgentSessionsOptions options) : sessions{loop, coordinator, with_log(std::move(options))} {
    StoreServerOptions server_options;
    server_options.bind = "127.0.0.1";
    server_options.other_language = [this](unsigned char first_byte, UniqueFd& socket) {
      if (!begins_agent(first_byte)) return false;
      sessions.serve(std::move(socket));
      return true;
    };
    server.emplace(loop, std::move(server_options));
    port = *server->listen();
  }
  AgentSessionsOptions with_log(AgentSessionsOptions options) {
    options.log = [this](const LogLine& line) { log.push_back(line.text); };
    return options;
  }
  bool run_until(const std::function<bool()>& condition, Duration limit = 60s) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!condition() && std::chrono::steady_clock::now() < end) {
      loop.restart();
      loop.run_one_for(10ms);
    }
    return condition();
  }
  [[nodiscard]] bool logged(const std::string& what) const {
    for (const std::string& line : log)
      if (line.find(what) != std::string::npos) return true;
    return false;
  }

  asio::io_context loop;
  std::vector<std::string> log;
  std::vector<std::string> decided;
  Coordinator coordinator{loop, [this](const LogLine& line) { decided.push_back(line.text); }};
  AgentSessions sessions;
  std::optional<StoreServer> server;
  Port port{0};
};

/// A scripted agent.
struct Script {
  explicit Script(AgentPort& at) : socket{at.loop} {
    socket.connect({asio::ip::address_v4::loopback(), at.port.value()});
    socket.non_blocking(true);
  }
  void say(const std::string& bytes) { REQUIRE(asio::write(socket, asio::buffer(bytes)) == bytes.size()); }
  void say(const AgentFrame& frame) { say(encode(frame)); }
  void say_hello(const std::string& run_id = "job") {
    say(std::string{agent_preface});
    say(AgentFrame{Hello{.run_id = RunId{run_id}}});
  }
  /// What has come; "end" when the connection is closed.
  bool closed() {
    std::array<char, 4096> buffer{};
    for (;;) {
      boost::system::error_code error;
      const std::size_t count = socket.read_some(asio::buffer(buffer), error);
      if (error == asio::error::would_block) return false;
      if (error) return true;
      heard.append(buffer.data(), count);
    }
  }
  template <class T>
  bool heard_of() {
    closed();
    std::string_view rest = heard;
    for (;;) {
      const auto frame = take_coordinator_frame(rest);
      if (!frame || !frame->has_value()) return false;
      if (std::holds_alternative<T>(**frame)) return true;
    }
  }
  tcp::socket socket;
  std::string heard;
};

Join join_of(const std::string& host) {
  Join join;
  join.node = NodeId{host + "_1_0"};
  join.host = host;
  join.addresses = {"10.0.0.7", "fd00:0::7", "node-7"};
  join.terms.min_nodes = 1;
  join.terms.max_nodes = 1;
  return join;
}

}  // namespace

TEST_CASE("who does not say hello in time is closed", "[net][agent_sessions]") {
  AgentPort at{{.hello_limit = 50ms}};
  Script silent{at}, slow{at};
  silent.say(std::string{agent_preface});
  slow.say(std::string{agent_preface} + std::string{"\x20\0\0\0\x01", 5});
  REQUIRE(at.run_until([&] { return silent.closed() && slow.closed(); }));
  REQUIRE(at.logged("did not say what an agent says"));
  REQUIRE(at.sessions.count() == 0);
}

TEST_CASE("agents of other jobs are told that the port is another job's, whatever else is wrong with them",
          "[net][agent_sessions]") {
  AgentPort at{{.only_job = "ours"}};
  const auto refusal = [&](Hello hello) {
    Script agent{at};
    agent.say(std::string{agent_preface});
    agent.say(AgentFrame{std::move(hello)});
    REQUIRE(at.run_until([&] { return agent.heard_of<Refused>(); }));
    std::string_view rest = agent.heard;
    return std::get<Refused>(**take_coordinator_frame(rest)).reason;
  };
  const std::string others = std::string{port_of_another_job} + "ours";
  REQUIRE(refusal(Hello{.run_id = RunId{"theirs"}}) == others);
  REQUIRE(refusal(Hello{.version_min = 98, .version_max = 99, .run_id = RunId{"theirs"}}) == others);
  REQUIRE(refusal(Hello{.has_token = true, .run_id = RunId{"theirs"}}) == others);
  REQUIRE(refusal(Hello{.version_min = 98, .version_max = 99, .run_id = RunId{"ours"}}).find("versions") !=
          std::string::npos);
}

TEST_CASE("who is welcome and does not join in time is closed, and who has joined is not", "[net][agent_sessions]") {
  AgentPort at{{.join_limit = 1s}};
  Script idle{at}, joined{at};
  joined.say_hello("one");
  joined.say(AgentFrame{join_of("a")});
  REQUIRE(at.run_until([&] { return joined.heard_of<HostStore>(); }));
  idle.say_hello("other");
  REQUIRE(at.run_until([&] { return idle.heard_of<Welcome>(); }));
  REQUIRE(at.coordinator.job_count() == 2);
  REQUIRE(at.run_until([&] { return idle.closed(); }));
  REQUIRE(at.logged("did not join"));
  REQUIRE(at.coordinator.job_count() == 1);
  REQUIRE_FALSE(joined.closed());
}

TEST_CASE("strangers give way to who comes after them, and nobody who is welcome does", "[net][agent_sessions]") {
  AgentPort at{{.unproven_max = 2}};
  Script member{at};
  member.say_hello();
  member.say(AgentFrame{join_of("a")});
  REQUIRE(at.run_until([&] { return member.heard_of<HostStore>(); }));
  std::vector<Script> strangers;
  for (int i = 0; i < 3; ++i) {
    strangers.emplace_back(at).say(std::string{agent_preface});
    REQUIRE(at.run_until([&] { return at.sessions.count() == static_cast<std::size_t>(std::min(i, 1) + 2); }));
  }
  REQUIRE(at.run_until([&] { return strangers[0].closed(); }));
  REQUIRE_FALSE(strangers[2].closed());
  REQUIRE_FALSE(member.closed());
  REQUIRE(at.logged("unproven_max"));
}

TEST_CASE("who has said hello is no stranger, however many come at once", "[net][agent_sessions]") {
  AgentPort at{{.unproven_max = 2}};
  std::vector<Script> agents;
  for (int i = 0; i < 50; ++i) agents.emplace_back(at).say_hello();  // before the loop runs at all
  REQUIRE(at.run_until([&] {
    return std::all_of(agents.begin(), agents.end(), [](Script& agent) { return agent.heard_of<Welcome>(); });
  }));
  REQUIRE(at.log.empty());
}

TEST_CASE("so many agents are connected, and strangers go before one more is refused", "[net][agent_sessions]") {
  AgentPort at{{.connections_max = 2}};
  Script first{at}, stranger{at};
  first.say_hello();
  stranger.say(std::string{agent_preface});
  REQUIRE(at.run_until([&] { return first.heard_of<Welcome>() && at.sessions.count() == 2; }));
  Script second{at};
  second.say_hello();
  REQUIRE(at.run_until([&] { return second.heard_of<Welcome>() && stranger.closed(); }));
  Script third{at};
  third.say_hello();
  REQUIRE(at.run_until([&] { return third.closed(); }));
  REQUIRE(third.heard_of<Busy>());
  REQUIRE(at.logged("connections_max: 2"));
  REQUIRE_FALSE(first.closed());
  REQUIRE_FALSE(second.closed());
}

TEST_CASE("before an agent is welcome its frames have a limit of their own", "[net][agent_sessions]") {
  AgentPort at{{}};
  const auto begin_of = [](std::size_t bytes) {
    const std::string length{static_cast<char>(bytes & 0xff), static_cast<char>(bytes >> 8), '\0', '\0'};
    return std::string{agent_preface} + length + "\x01";
  };
  Script longest{at}, longer{at};
  longest.say(begin_of(hello_bytes_max));
  longer.say(begin_of(hello_bytes_max + 1));
  REQUIRE(at.run_until([&] { return longer.closed(); }));
  REQUIRE_FALSE(longest.closed());
}

#ifndef __SANITIZE_THREAD__  // one thread plays it, for minutes then
TEST_CASE("who leaves too much lying is closed", "[net][agent_sessions]") {
  AgentPort at{{}};
  // With buffers of the usual size: one that is full of small answers forgets to take new ones into account, and the
  // smaller it is the sooner.
  Script deaf{at};
  deaf.say_hello();
  deaf.say(AgentFrame{join_of("a")});
  std::string many;
  for (std::uint64_t i = 0; i < 10'000; ++i) many += encode(AgentFrame{KeepAlive{i}});
  std::size_t sent = 0;
  const auto push = [&] {  // and never reads
    boost::system::error_code error;
    sent = (sent + deaf.socket.write_some(asio::buffer(many.data() + sent, many.size() - sent), error)) % many.size();
    return at.logged("unsent_bytes_max");
  };
  REQUIRE(at.run_until(push, 280s));  // the kernel's buffers hold a million answers
  REQUIRE(at.run_until([&] { return at.sessions.count() == 0; }));
}
#endif

TEST_CASE("who is welcome and has not joined gives way to newcomers, and nobody who has", "[net][agent_sessions]") {
  AgentPort at{{.newcomers_max = 2}};
  Script member{at};
  member.say_hello();
  member.say(AgentFrame{join_of("a")});
  REQUIRE(at.run_until([&] { return member.heard_of<HostStore>(); }));
  std::vector<Script> idle;
  for (int i = 0; i < 3; ++i) {
    idle.emplace_back(at).say_hello();
    REQUIRE(at.run_until([&] { return idle.back().heard_of<Welcome>(); }));
  }
  REQUIRE(at.run_until([&] { return idle[0].closed(); }));
  REQUIRE(at.logged("newcomers_max"));
  REQUIRE_FALSE(idle[1].closed());
  REQUIRE(at.sessions.drop_newcomer("no descriptor"));
  REQUIRE(at.run_until([&] { return idle[1].closed(); }));
  REQUIRE(at.sessions.drop_newcomer("no descriptor"));
  REQUIRE_FALSE(at.sessions.drop_newcomer("no descriptor"));
  REQUIRE_FALSE(member.closed());
  REQUIRE(at.sessions.count() == 1);
}

TEST_CASE("unfinished frames of all agents have a common limit", "[net][agent_sessions]") {
  constexpr std::size_t limit = std::size_t{64} << 10;
  AgentPort at{{.frames_bytes_max = limit}};
  const std::string begun = std::string{"\0\0\x0f\0\x10", 5};  // of a frame just below the limit of one
  const auto half = [&](Script& script, std::size_t bytes) {
    script.say(begun + std::string(bytes - begun.size(), 'x'));
  };
  std::vector<Script> agents;
  for (int i = 0; i < 4; ++i) {
    agents.emplace_back(at).say_hello();
    REQUIRE(at.run_until([&] { return agents.back().heard_of<Welcome>(); }));
  }
  agents[0].say(AgentFrame{join_of("a")});
  REQUIRE(at.run_until([&] { return agents[0].heard_of<HostStore>(); }));
  half(agents[0], 40'000);
  half(agents[1], 10'000);
  half(agents[2], limit - 50'000);
  at.run_until([] { return false; }, 50ms);
  REQUIRE(at.sessions.count() == 4);
  half(agents[3], 5'000);                                     // one byte would be too many
  REQUIRE(at.run_until([&] { return agents[2].closed(); }));  // the largest of those who have not joined
  REQUIRE(at.logged("frames_bytes_max"));
  at.run_until([] { return false; }, 50ms);
  REQUIRE(at.sessions.count() == 3);
}

TEST_CASE("a fault behind a connection's end ends nothing more", "[net][agent_sessions]") {
  asio::io_context loop;
  tcp::acceptor acceptor{loop, {asio::ip::address_v4::loopback(), 0}};
  tcp::socket peer{loop};
  peer.connect(acceptor.local_endpoint());
  const auto socket = std::make_shared<FrameSocket>(acceptor.accept());
  std::string fault;
  socket->on_fault([&](const std::exception& what) { fault = what.what(); });
  socket->start(
      [&](std::string_view&) -> FrameSocket::Rest {
        socket->reset();
        throw std::runtime_error{"no memory left"};
      },
      [](const boost::system::error_code&) {});
  asio::write(peer, asio::buffer("x", 1));
  REQUIRE_NOTHROW(loop.run_for(10s));
  REQUIRE(fault == "no memory left");
}

TEST_CASE("who says much at once leaves others their turn", "[net][agent_sessions]") {
  const bool by_count = GENERATE(true, false);
  AgentPort at{{.frames_of_turn_max = by_count ? 2 : 1000, .turn_limit = by_count ? Duration{1h} : Duration::zero()}};
  Script busy{at};
  std::string words{agent_preface};
  words += encode(AgentFrame{Hello{.run_id = RunId{"job"}}});
  constexpr int joins = 40;
  for (int i = 0; i < joins; ++i) words += encode(AgentFrame{join_of("h" + std::to_string(i))});
  busy.say(words);
  std::size_t before = 0, most = 0;
  const auto seen = [&] {
    return static_cast<std::size_t>(std::ranges::count_if(
        at.decided, [](const std::string& line) { return line.find("joins with") != std::string::npos; }));
  };
  REQUIRE(at.run_until([&] {  // at most one turn of it has passed since
    most = std::max(most, seen() - std::exchange(before, seen()));
    return before == joins;
  }));
  REQUIRE(most <= (by_count ? 2 : 1));
}

TEST_CASE("a large frame that comes byte by byte is read once", "[net][agent_sessions]") {
  AgentPort at{{}};
  Script slow{at};
  slow.say_hello();
  Join join = join_of("a");
  for (int i = 0; i < 200; ++i) join.facts.push_back({"fact" + std::to_string(i), std::string(200, 'x')});
  const std::string bytes = encode(AgentFrame{join});
  REQUIRE(bytes.size() > 40'000);
  for (std::size_t at_byte = 0; at_byte < bytes.size(); at_byte += 7) {
    slow.say(bytes.substr(at_byte, 7));
    at.loop.restart();
    at.loop.poll();
  }
  REQUIRE(at.run_until([&] { return slow.heard_of<HostStore>(); }));
}

TEST_CASE("a frame that does not come to its end is not waited for", "[net][agent_sessions]") {
  AgentPort at{{.frame_limit = 1s}};
  Script slow{at}, quick{at};
  for (Script* script : {&slow, &quick}) {
    script->say_hello(script == &slow ? "one" : "other");
    script->say(AgentFrame{join_of("a")});
    REQUIRE(at.run_until([&] { return script->heard_of<HostStore>(); }));
  }
  const std::string bytes = encode(AgentFrame{KeepAlive{7}});
  slow.say(bytes.substr(0, 6));
  quick.say(bytes.substr(0, 6));
  at.run_until([&] { return false; }, 5ms);
  quick.say(bytes.substr(6));
  REQUIRE(at.run_until([&] { return slow.closed(); }));
  REQUIRE(at.logged("did not come to its end"));
  REQUIRE(quick.heard_of<KeepAliveAnswer>());
  REQUIRE_FALSE(quick.closed());
}

TEST_CASE("where members may come from is known from what they announce", "[net][agent_sessions]") {
  AgentPort at{{}};
  REQUIRE_FALSE(at.coordinator.knows_address("10.0.0.7"));
  Script member{at};
  member.say_hello();
  REQUIRE(at.run_until([&] { return member.heard_of<Welcome>(); }));
  REQUIRE_FALSE(at.coordinator.knows_address("127.0.0.1"));
  member.say(AgentFrame{join_of("a")});
  REQUIRE(at.run_until([&] { return member.heard_of<HostStore>(); }));
  for (const char* address : {"10.0.0.7", "fd00::7", "127.0.0.1"}) REQUIRE(at.coordinator.knows_address(address));
  REQUIRE_FALSE(at.coordinator.knows_address("node-7"));
  std::string_view rest = member.heard;
  for (;;) {
    const auto frame = take_coordinator_frame(rest);
    REQUIRE(frame->has_value());
    if (const auto* host = std::get_if<HostStore>(&**frame)) {
      REQUIRE(host->sources == std::vector<std::string>{"10.0.0.7", "127.0.0.1", "fd00::7"});
      break;
    }
  }
}

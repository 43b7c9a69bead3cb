#include "rendezvous/net/store/store_gate.hpp"

#include <dirent.h>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

#include "rendezvous/net/store/store_proxy.hpp"
#include "rendezvous/net/store/store_server.hpp"

using namespace torchup;
using namespace std::chrono_literals;
namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

const std::string validate{"\x00\xce\xf7\x85\x3c", 5};
const std::string ping = std::string{"\x0d"} + "1234";

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (::readdir(folder)) ++count;
  ::closedir(folder);
  return count;
}

/// A store on loopback, its gate and a proxy, all on one loop.
struct Proxied {
  explicit Proxied(const std::string& token = "", const std::string& proxys_token = "", StoreKey proxys_key = {7}) {
    StoreServerOptions options;
    options.bind = "127.0.0.1";
    server = std::make_unique<StoreServer>(loop, std::move(options));
    const bool listens = server->listen().has_value();
    REQUIRE(listens);
    const auto note = [this](const LogLine& line) { log.push_back(line.text); };
    gate = std::make_unique<StoreGate>(loop, *server,
                                       StoreGateOptions{.bind = "127.0.0.1", .key = {7}, .token = token, .log = note});
    gate_port = *gate->listen();
    proxy = std::make_unique<StoreProxy>(
        loop, StoreProxyOptions{
                  .store = Endpoint{"127.0.0.1", gate_port}, .key = proxys_key, .token = proxys_token, .log = note});
    port = *proxy->listen();
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
  std::unique_ptr<StoreServer> server;
  std::unique_ptr<StoreGate> gate;
  std::unique_ptr<StoreProxy> proxy;
  Port gate_port{0}, port{0};
};

struct Peer {
  Peer(Proxied& at, Port port) : socket{at.loop} {
    socket.connect({asio::ip::address_v4::loopback(), port.value()});
    socket.non_blocking(true);
  }
  void say(const std::string& bytes) { REQUIRE(asio::write(socket, asio::buffer(bytes)) == bytes.size()); }
  /// What has come; "end" stands for the connection's.
  const std::string& heard() {
    std::array<char, 4096> buffer{};
    for (;;) {
      boost::system::error_code error;
      const std::size_t count = socket.read_some(asio::buffer(buffer), error);
      if (error == asio::error::would_block) return all;
      if (error) {
        if (!all.ends_with("end")) all += "end";
        return all;
      }
      all.append(buffer.data(), count);
    }
  }
  tcp::socket socket;
  std::string all;
};

}  // namespace

TEST_CASE("workers reach the store by a proxy, with a token and without", "[net][store_gate]") {
  const std::string token = GENERATE("", "a token of some length");
  Proxied at{token, token};
  Peer first{at, at.port}, second{at, at.port};
  first.say(validate + ping);
  second.say(validate + ping);
  REQUIRE(at.run_until([&] { return first.heard() == "1234" && second.heard() == "1234"; }));
  REQUIRE(at.gate->link_count() == 1);
  SECTION("until they go") {
    first.socket.close();
    REQUIRE(at.run_until([&] { return at.server->status().connections == 1; }));
    second.say(ping);
    REQUIRE(at.run_until([&] { return second.heard() == "12341234"; }));
  }
  SECTION("or ask for what is no request") {
    first.say("\xee");
    REQUIRE(at.run_until([&] { return first.heard() == "1234end"; }));
    second.say(ping);
    REQUIRE(at.run_until([&] { return second.heard() == "12341234"; }));
  }
  SECTION("or the store ends") {
    at.gate.reset();
    REQUIRE(at.run_until([&] { return first.heard() == "1234end" && second.heard() == "1234end"; }));
  }
}

TEST_CASE("a worker costs the store's node no descriptor", "[net][store_gate]") {
  Proxied at;
  std::vector<Peer> workers;
  workers.emplace_back(at, at.port).say(validate + ping);
  REQUIRE(at.run_until([&] { return workers[0].heard() == "1234"; }));
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 50; ++i) {
    workers.emplace_back(at, at.port).say(validate + ping);
    REQUIRE(at.run_until([&] { return workers.back().heard() == "1234"; }));
  }
  REQUIRE(at.server->status().connections == 51);
  // Both of the worker's connection are this process's too, and nothing more is.
  REQUIRE(open_descriptors() == before + 2 * 50);
}

TEST_CASE("at the gate nobody but a link of this round is served", "[net][store_gate]") {
  SECTION("a client of the store") {
    Proxied at;
    Peer stranger{at, at.gate_port};
    stranger.say(validate + ping);
    REQUIRE(at.run_until([&] { return stranger.heard() == "end"; }));
    REQUIRE(at.logged("only torchup's own links"));
  }
  SECTION("and with a token nobody who does not prove it") {
    Proxied at{"a token of some length"};
    Peer stranger{at, at.gate_port};
    stranger.say(std::string{store_link_preface} + std::string(16, '\7'));
    REQUIRE(at.run_until([&] { return stranger.heard() == "end"; }));
    REQUIRE(at.logged("without the job's token"));
  }
  SECTION("a proxy of another round") {
    Proxied at{"", "", {8}};
    Peer worker{at, at.port};
    worker.say(validate + ping);
    REQUIRE(at.run_until([&] { return worker.heard() == "end"; }));
    REQUIRE(at.logged("another round"));
    REQUIRE(at.logged("has ended"));
  }
  SECTION("a proxy with another token") {
    Proxied at{"a token of some length", "another token of some length"};
    Peer worker{at, at.port};
    worker.say(validate + ping);
    REQUIRE(at.run_until([&] { return worker.heard() == "end"; }));
    REQUIRE(at.logged("the token there is not ours"));
  }
  SECTION("a proxy with a token where there is none") {
    Proxied at{"", "a token of some length"};
    Peer worker{at, at.port};
    worker.say(validate + ping);
    REQUIRE(at.run_until([&] { return worker.heard() == "end"; }));
    REQUIRE(at.logged("this job has none"));
  }
}

TEST_CASE("a worker that does not read keeps no other from the store", "[net][store_gate]") {
  Proxied at;
  const auto text = [](const std::string& value) {
    std::string length(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(value.size() >> (8 * i) & 0xff);
    return length + value;
  };
  Peer greedy{at, at.port}, modest{at, at.port};
  greedy.say(validate);
  std::string asked = "\x01" + text("/large") + text(std::string(4 << 20, 'x'));
  for (int i = 0; i < 20; ++i) asked += "\x03" + text("/large");
  std::size_t said = 0;
  modest.say(validate);
  int answers = 0;
  REQUIRE(at.run_until([&] {
    boost::system::error_code error;
    if (said < asked.size()) {
      const std::size_t count = greedy.socket.write_some(asio::buffer(asked) + said, error);
      if (!error) said += count;
    }
    if (modest.heard().size() == static_cast<std::size_t>(4 * answers)) {
      ++answers;
      modest.say(ping);
    }
    return said == asked.size() && answers > 1000;
  }));
  // And when it reads, it gets all of it.
  std::size_t got = 0;
  std::vector<char> buffer(1 << 20);
  REQUIRE(at.run_until([&] {
    for (;;) {
      boost::system::error_code error;
      const std::size_t count = greedy.socket.read_some(asio::buffer(buffer), error);
      if (error) break;
      got += count;
    }
    return got == 20 * (8 + (std::size_t{4} << 20));
  }));
}

TEST_CASE("a link that is made anew serves workers who come later", "[net][store_gate]") {
  Proxied at;
  Peer first{at, at.port};
  first.say(validate + ping);
  REQUIRE(at.run_until([&] { return first.heard() == "1234"; }));
  const Port port = at.gate_port;
  at.gate.reset();
  REQUIRE(at.run_until([&] { return first.heard() == "1234end"; }));
  at.gate =
      std::make_unique<StoreGate>(at.loop, *at.server, StoreGateOptions{.bind = "127.0.0.1", .port = port, .key = {7}});
  const bool listens_again = at.gate->listen().has_value();
  REQUIRE(listens_again);
  Peer second{at, at.port};
  second.say(validate + ping);
  REQUIRE(at.run_until([&] { return second.heard() == "1234"; }));
}

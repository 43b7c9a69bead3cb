#include "rendezvous/net/io/tls.hpp"

#include <catch2/catch.hpp>
#include <string>

using namespace torchup;

namespace {

constexpr const char* token = "a token of some length";

std::shared_ptr<const TlsContext> client_of(const std::string& secret) { return *TlsContext::client(secret); }
std::shared_ptr<const TlsContext> server_of(const std::string& secret) {
  return *TlsContext::server({.token = secret});
}

/// Two sides and the wire between them, of which everything is kept.
struct Pair {
  Pair(std::shared_ptr<const TlsContext> from, std::shared_ptr<const TlsContext> to)
      : client{std::move(from)}, server{std::move(to)} {}

  void pass() {
    for (;;) {
      const std::string there = client.to_send(), back = server.to_send();
      if (there.empty() && back.empty()) return;
      wire += there + back;
      if (!there.empty()) server.receive(there, at_server);
      if (!back.empty()) client.receive(back, at_client);
    }
  }

  TlsStream client, server;
  std::string at_client, at_server, wire;
};

}  // namespace

TEST_CASE("both sides of one token understand each other, and nobody else does", "[net][tls]") {
  Pair pair{client_of(token), server_of(token)};
  pair.client.send("torchup\nhello from host-of-mine, job run-of-mine");  // before the handshake's end
  pair.pass();
  REQUIRE(pair.client.state() == TlsStream::State::open);
  REQUIRE(pair.server.state() == TlsStream::State::open);
  REQUIRE(pair.client.proved());
  REQUIRE(pair.server.proved());
  REQUIRE(pair.at_server == "torchup\nhello from host-of-mine, job run-of-mine");
  pair.server.send("welcome, host-of-mine");
  pair.pass();
  REQUIRE(pair.at_client == "welcome, host-of-mine");
  REQUIRE(begins_tls(static_cast<unsigned char>(pair.wire.front())));
  for (const char* secret : {"host-of-mine", "run-of-mine", "hello", token}) {
    REQUIRE(pair.wire.find(secret) == std::string::npos);
  }
  SECTION("however much is said") {
    const std::string much(300'000, 'x');
    pair.client.send(much);
    pair.pass();
    REQUIRE(pair.at_server.size() == 48 + much.size());
  }
  SECTION("until one says that it says no more") {
    pair.client.close();
    pair.pass();
    REQUIRE(pair.server.state() == TlsStream::State::closed);
  }
  SECTION("and what was changed on its way is not believed") {
    pair.client.send("leave");
    std::string changed = pair.client.to_send();
    changed.back() = static_cast<char>(changed.back() ^ 1);
    pair.server.receive(changed, pair.at_server);
    REQUIRE(pair.server.state() == TlsStream::State::failed);
    REQUIRE(pair.at_server.find("leave") == std::string::npos);
  }
}

TEST_CASE("who has another token is told so, and believes nothing", "[net][tls]") {
  Pair pair{client_of(token), server_of("another one of some length")};
  pair.client.send("hello");
  pair.pass();
  REQUIRE(pair.server.state() == TlsStream::State::failed);
  REQUIRE(pair.server.failure() == TlsStream::Failure::wrong_token);
  REQUIRE(pair.client.state() == TlsStream::State::failed);
  REQUIRE(pair.client.failure() == TlsStream::Failure::wrong_token);
  REQUIRE(pair.at_server.empty());
}

TEST_CASE("a side without a token is told from one with another", "[net][tls]") {
  SECTION("the server says so in seven bytes") {
    TlsStream client{client_of(token)};
    std::string nothing;
    REQUIRE_FALSE(client.to_send().empty());
    client.receive(no_tls_here, nothing);
    REQUIRE(client.state() == TlsStream::State::failed);
    REQUIRE(client.failure() == TlsStream::Failure::none_there);
  }
  SECTION("the client offers none") {
    Pair pair{client_of(""), server_of(token)};
    pair.pass();
    REQUIRE(pair.server.state() == TlsStream::State::failed);
    REQUIRE(pair.server.failure() == TlsStream::Failure::none_there);
    REQUIRE_FALSE(pair.server.proved());
  }
}

TEST_CASE("what is no TLS is another language", "[net][tls]") {
  const std::string said =
      GENERATE("HTTP/1.1 400 Bad Request\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n", "\x0b\x01\x02\x03\x04\x05\x06\x07");
  TlsStream client{client_of(token)};
  std::string nothing;
  client.receive(said, nothing);
  REQUIRE(client.state() == TlsStream::State::failed);
  REQUIRE(client.failure() == TlsStream::Failure::other_language);
  REQUIRE(nothing.empty());
}

TEST_CASE("a handshake may come byte by byte", "[net][tls]") {
  TlsStream client{client_of(token)}, server{server_of(token)};
  std::string at_server, at_client;
  client.send("x");
  for (int i = 0; i < 4; ++i) {
    for (const char byte : client.to_send()) server.receive({&byte, 1}, at_server);
    for (const char byte : server.to_send()) client.receive({&byte, 1}, at_client);
  }
  REQUIRE(at_server == "x");
}

#include "rendezvous/net/ops/http_server.hpp"

#include <arpa/inet.h>

#include <cstdio>
#include <regex>

#include "rendezvous/net/io/node_identity.hpp"
#include "rendezvous/net/ops/page_port.hpp"
#include "tests/net/ops_server.hpp"

using namespace torchup;
using namespace std::chrono_literals;
using test::control;
using test::OpsServer;

TEST_CASE("who comes by an address of this machine's own has not come by loopback", "[net][ops]") {
  const auto peer_by = [](const std::string& address) {
    const UniqueFd listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    sockaddr_in name{};
    name.sin_family = AF_INET;
    socklen_t size = sizeof name;
    REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&name), size) == 0);
    REQUIRE(::listen(listener.get(), 1) == 0);
    REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&name), &size) == 0);
    REQUIRE(::inet_pton(AF_INET, address.c_str(), &name.sin_addr) == 1);
    const UniqueFd client{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    REQUIRE(::connect(client.get(), reinterpret_cast<const sockaddr*>(&name), size) == 0);
    const UniqueFd accepted{::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)};
    return peer_at(accepted.get()).value();
  };
  REQUIRE(peer_by("127.0.0.1").by_loopback);
  for (const std::string& own : own_addresses()) {
    if (own.find(':') != std::string::npos) continue;
    CAPTURE(own);
    const OpsPeer peer = peer_by(own);
    REQUIRE(peer.address == own);
    REQUIRE_FALSE(peer.by_loopback);
  }
}

TEST_CASE("a connection serves one request after the other", "[net][ops]") {
  OpsServer server;
  server.jobs.add("job");
  auto peer = server.connect();
  for (int number = 0; number < 3; ++number) {
    peer.ask("/v1/jobs/job");
    REQUIRE(peer.status() == 200);
    REQUIRE(peer.heard().find("\r\nCache-Control: no-store\r\n") != std::string::npos);
    REQUIRE(peer.heard().find("\r\nX-Content-Type-Options: nosniff\r\n") != std::string::npos);
    REQUIRE(peer.heard().find("Access-Control") == std::string::npos);
    peer.forget();
  }
  peer.ask("/v1/jobs", "Connection: close\r\n");
  REQUIRE(peer.sees_end());
  REQUIRE(peer.heard().starts_with("HTTP/1.1 200 "));
  REQUIRE(server.http.answers().at(200) == 4);
}

TEST_CASE("requests that come together are answered in their order", "[net][ops]") {
  OpsServer server;
  server.jobs.add("job");
  auto peer = server.connect();
  const std::string host = " HTTP/1.1\r\nHost: localhost\r\n\r\n";
  peer.say("GET /v1/jobs/none" + host + "HEAD /v1/jobs/job" + host + "GET /nothing" + host);
  REQUIRE(peer.hears("no_such_route"));
  const std::string& heard = peer.heard();
  REQUIRE(heard.starts_with("HTTP/1.1 404 "));
  REQUIRE(heard.find("no_such_job") < heard.find("HTTP/1.1 200 "));
  REQUIRE(heard.find("\"run_id\"") == std::string::npos);  // of a HEAD there is no body
}

TEST_CASE("what is too long is refused before it is read", "[net][ops]") {
  OpsServer server;
  server.jobs.add("job");
  const auto header_of = [&](std::size_t bytes) {
    auto peer = server.connect();
    const std::string begin = "GET /v1/jobs/job HTTP/1.1\r\nHost: localhost\r\nX: ";
    peer.say(begin + std::string(bytes - begin.size() - 4, 'x') + "\r\n\r\n");
    return peer.status();
  };
  REQUIRE(header_of(ops_header_bytes_max) == 200);
  REQUIRE(header_of(ops_header_bytes_max + 1) == 431);
  REQUIRE(header_of(60'000) == 431);
  const auto body_of = [&](std::size_t bytes, bool chunked) {
    auto peer = server.connect();
    const std::string body = "{" + std::string(bytes - 2, ' ') + "}";
    if (!chunked) {
      peer.post("/v1/jobs/job/restart", body, control);
    } else {
      peer.ask("/v1/jobs/job/restart", control + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n",
               "POST");
      std::array<char, 16> length;
      peer.say(
          {length.data(), static_cast<std::size_t>(std::snprintf(length.data(), length.size(), "%zx\r\n", bytes))});
      peer.say(body + "\r\n0\r\n\r\n");
    }
    return peer.status();
  };
  for (const bool chunked : {false, true}) {
    REQUIRE(body_of(ops_body_bytes_max, chunked) == 200);
    REQUIRE(body_of(ops_body_bytes_max + 1, chunked) == 413);
  }
}

TEST_CASE("the right is asked before the body", "[net][ops]") {
  OpsServer server;
  server.jobs.add("job");
  const auto post = [&](const std::string& headers, OpsPeer who) {
    auto peer = server.connect(std::move(who));
    peer.ask("/v1/jobs/job/restart", headers + "Content-Type: application/json\r\nContent-Length: 1000000\r\n", "POST");
    return peer.status();
  };
  REQUIRE(post("", test::from_here()) == 401);
  REQUIRE(post("", test::from_elsewhere()) == 401);
  REQUIRE(post("Authorization: Bearer read token\r\n", test::from_here()) == 403);
  REQUIRE(post("Authorization: Bearer wrong\r\n", test::from_here()) == 401);
  REQUIRE(post(control, test::from_elsewhere()) == 413);
}

TEST_CASE("who asks first whether a body is welcome is told so", "[net][ops]") {
  OpsServer server;
  server.jobs.add("job");
  auto peer = server.connect();
  peer.ask("/v1/jobs/job/restart",
           control + "Content-Type: application/json\r\nContent-Length: 2\r\nExpect: 100-continue\r\n", "POST");
  REQUIRE(peer.hears("HTTP/1.1 100 Continue\r\n\r\n"));
  peer.say("{}");
  REQUIRE(peer.hears("HTTP/1.1 200 "));
}

TEST_CASE("what is no HTTP is told so", "[net][ops]") {
  OpsServer server;
  for (const std::string words :
       {"SSH-2.0-OpenSSH_9.2\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/1.1\r\nHost localhost\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"}) {
    auto peer = server.connect();
    peer.say(words);
    REQUIRE(peer.sees_end());
    REQUIRE(peer.heard().starts_with("HTTP/1.1 400 "));
  }
}

TEST_CASE("a request has its time, however slowly it comes", "[net][ops]") {
  OpsServer server{{.request = 200ms}};
  const auto begin = std::chrono::steady_clock::now();
  auto silent = server.connect();
  auto halfway = server.connect();
  halfway.say("GET /healthz HTTP/1.1\r\n");
  auto slow = server.connect();
  slow.ask("/v1/jobs/job/restart", control + "Content-Type: application/json\r\nContent-Length: 20000\r\n", "POST");
  REQUIRE(server.until([&] {
    if (!slow.closed()) slow.say(" ");  // a byte now and then does not keep it open
    return silent.closed() && halfway.closed() && slow.closed();
  }));
  REQUIRE(std::chrono::steady_clock::now() - begin >= 200ms);
  auto again = server.connect();
  again.ask("/healthz");
  REQUIRE(again.status() == 200);
  REQUIRE(again.sees_end());  // the time begins anew at the answer
}

TEST_CASE("a newcomer takes the place of the one that has sent no whole request for longest", "[net][ops]") {
  OpsServer server{{.connections_max = 3}};
  auto first = server.connect();
  auto second = server.connect();
  auto third = server.connect();
  first.ask("/healthz");
  REQUIRE(first.status() == 200);
  auto fourth = server.connect();
  REQUIRE(second.sees_end());
  auto fifth = server.connect();
  REQUIRE(third.sees_end());
  for (auto* peer : {&first, &fourth, &fifth}) {
    peer->forget();
    peer->ask("/healthz");
    REQUIRE(peer->status() == 200);
  }
}

TEST_CASE("whose answer is being made keeps his place", "[net][ops]") {
  OpsServer server{{.connections_max = 2}};
  server.jobs.add("job");
  auto waiting = server.connect();
  waiting.ask("/v1/jobs/job/events?wait_s=20");
  auto following = server.connect();
  following.ask("/v1/jobs/job/stream");
  REQUIRE(following.hears("event: snapshot\n"));
  auto newcomer = server.connect();
  REQUIRE(newcomer.status() == 503);
  server.ops.record("job", R"({"type":"waiting"})");
  REQUIRE(waiting.status() == 200);
  REQUIRE(server.status_of("/healthz") == 200);
}

TEST_CASE("an answer that cannot be made is no end of the others", "[net][ops]") {
  OpsServer server{{.answer = 50ms}};
  server.jobs.add("job");
  server.jobs.others = [](const OpsCall&, const HttpServer::Reply&) { throw std::runtime_error{"out of order"}; };
  const std::string failed = server.text_of("/metrics");
  REQUIRE(failed.starts_with("HTTP/1.1 500 "));
  REQUIRE(failed.find("out of order") != std::string::npos);
  HttpServer::Reply late;
  server.jobs.others = [&late](const OpsCall&, HttpServer::Reply reply) { late = std::move(reply); };
  REQUIRE(server.status_of("/metrics") == 504);
  late(OpsAnswer{});
  REQUIRE(server.status_of("/v1/jobs") == 200);
}

TEST_CASE("a door that is closed lets those go who came through it", "[net][ops]") {
  OpsServer server;
  server.jobs.add("job");
  auto peer = server.connect();
  peer.ask("/v1/jobs/job/stream");
  REQUIRE(peer.hears("event: snapshot\n"));
  REQUIRE(server.door->streams == 1);
  server.http.close(*server.door);
  REQUIRE(peer.sees_end());
  REQUIRE(server.until([&] { return server.door->streams == 0; }));
}

TEST_CASE("the page has a policy of its own each time", "[net][ops]") {
  OpsServer server;
  const auto policy = [&] {
    const std::string heard = server.text_of("/jobs/a%2Fb", "", test::from_elsewhere());
    REQUIRE(heard.starts_with("HTTP/1.1 200 "));
    const std::size_t begin = heard.find("\r\nContent-Security-Policy: ");
    REQUIRE(begin != std::string::npos);
    const std::string line = heard.substr(begin + 2, heard.find("\r\n", begin + 2) - begin - 2);
    const std::size_t at = line.find("script-src 'nonce-") + 18;
    const std::string nonce = line.substr(at, line.find('\'', at) - at);
    REQUIRE(nonce.size() >= 20);
    REQUIRE(heard.find("nonce=\"" + nonce + "\"") != std::string::npos);
    return line;
  };
  const std::string first = policy();
  REQUIRE(first.find("default-src 'none'") != std::string::npos);
  REQUIRE(policy() != first);
}

TEST_CASE("a page's port is open while it is used, and its address is the key", "[net][ops]") {
  OpsServer server;
  server.jobs.add("a/b");
  PagePort page{server.loop, server.http, {.idle = 200ms}};
  const auto url = page.open("a/b");
  REQUIRE(url.has_value());
  REQUIRE(std::regex_match(*url, std::regex{"http://127\\.0\\.0\\.1:[0-9]+/jobs/a%2Fb#token=[0-9a-f]{32}"}));
  REQUIRE(*page.open("a/b") == *url);
  REQUIRE(*page.open("") == std::regex_replace(*url, std::regex{"jobs/a%2Fb"}, ""));
  const std::string token = url->substr(url->rfind('=') + 1);
  const auto connect = [&] {
    return OpsServer::Peer{server, test::connected_to(std::stoi(url->substr(url->rfind(':') + 1)))};
  };
  auto follower = connect();
  follower.ask("/v1/jobs/a%2Fb/stream", "Authorization: Bearer " + token + "\r\n");
  REQUIRE(follower.hears("event: snapshot\n"));
  auto stranger = connect();
  stranger.post("/v1/jobs/a%2Fb/restart", "{}");
  REQUIRE(stranger.status() == 401);
  auto steerer = connect();
  steerer.post("/v1/jobs/a%2Fb/restart", "{}", "Authorization: Bearer " + token + "\r\n");
  REQUIRE(steerer.status() == 200);
  const auto later = std::chrono::steady_clock::now() + 300ms;
  REQUIRE(server.until([&] { return std::chrono::steady_clock::now() >= later; }));
  REQUIRE(page.is_open());  // for somebody follows
  follower.leave();
  REQUIRE(server.until([&] { return !page.is_open(); }));
  REQUIRE(*page.open("a/b") != *url);
}

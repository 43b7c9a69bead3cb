#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <cerrno>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/net/ops/ops_service.hpp"

/// What the tests of the HTTP interface share: a server with jobs that are told of by the test, and peers over pairs of
/// sockets, who come from wherever the test says.
namespace torchup::test {

inline OpsPeer from_here() { return {.address = "127.0.0.1", .by_loopback = true}; }
/// A port of 127.0.0.1.
inline UniqueFd connected_to(int port) {
  UniqueFd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<std::uint16_t>(port));
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0);
  return socket;
}
inline OpsPeer from_elsewhere() { return {.address = "192.0.2.7"}; }

class ToldJobs final : public OpsSource {
 public:
  [[nodiscard]] bool hosts() const override { return hosting; }
  [[nodiscard]] std::vector<JobPage*> pages() override {
    std::vector<JobPage*> list;
    for (auto& [run_id, page] : jobs) list.push_back(&page);
    return list;
  }
  [[nodiscard]] JobPage* page(const std::string& run_id) override {
    const auto found = jobs.find(run_id);
    return found == jobs.end() ? nullptr : &found->second;
  }
  void perform(const OpsCall& call, HttpServer::Reply reply) override { others(call, std::move(reply)); }

  JobPage& add(const std::string& run_id, std::string phase = "running") {
    JobPage& page = jobs.try_emplace(run_id, RunId{run_id}, "host").first->second;
    show(page, std::move(phase));
    return page;
  }
  static void show(JobPage& page, std::string phase) {
    JobView view;
    view.phase = std::move(phase);
    view.min_nodes = view.max_nodes = 1;
    page.show(view, this_moment());
  }

  bool hosting = true;
  std::map<std::string, JobPage> jobs;
  HttpServer::Perform others = [](const OpsCall&, const HttpServer::Reply& reply) { reply(OpsAnswer{.body = "{}"}); };
};

class OpsServer {
 public:
  /// One who has come.
  class Peer {
   public:
    Peer(OpsServer& server, UniqueFd socket) : server_{server}, socket_{std::move(socket)} {}

    void say(std::string_view text) const {
      REQUIRE(::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
    }
    void ask(const std::string& target, const std::string& headers = "", const std::string& method = "GET") const {
      say(method + " " + target + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
    }
    void post(const std::string& target, const std::string& body, const std::string& headers = "") const {
      ask(target, "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + headers,
          "POST");
      say(body);
    }
    /// Takes what has come.
    const std::string& heard() {
      std::array<char, 1 << 16> piece;
      ssize_t count = 0;
      while ((count = ::recv(socket_.get(), piece.data(), piece.size(), MSG_DONTWAIT)) > 0) {
        heard_.append(piece.data(), static_cast<std::size_t>(count));
      }
      closed_ = closed_ || count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
      return heard_;
    }
    void forget() { heard_.clear(); }
    bool closed() {
      heard();
      return closed_;
    }
    /// Waits for it.
    bool hears(std::string_view text) {
      return server_.until([&] { return heard().find(text) != std::string::npos; });
    }
    bool sees_end() {
      return server_.until([&] { return closed(); });
    }
    /// The status of the one answer, whose end is waited for.
    int status() {
      if (!server_.until([&] { return closed() || whole(); })) return 0;
      return heard_.starts_with("HTTP/1.1 ") ? std::stoi(heard_.substr(9, 3)) : 0;
    }
    void leave() { socket_.reset(); }

   private:
    [[nodiscard]] bool whole() const {
      const std::size_t end = heard_.find("\r\n\r\n");
      const std::size_t length = heard_.find("Content-Length: ");
      return end != std::string::npos && length < end &&
             heard_.size() >= end + 4 + std::stoul(heard_.substr(length + 16));
    }

    OpsServer& server_;
    UniqueFd socket_;
    std::string heard_;
    bool closed_ = false;
  };

  explicit OpsServer(HttpLimits limits = {}, EventRings::Limits events = {})
      : ops{loop, jobs, events}, http{loop,
                                      [this](const OpsCall& call, HttpServer::Reply reply) {
                                        ops.perform(call, std::move(reply));
                                      },
                                      limits} {
    door->access = {.control_token = "control token", .read_token = "read token", .host_names = {}};
  }

  Peer connect(OpsPeer who = from_here()) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    http.serve(UniqueFd{ends[1]}, door, std::move(who));
    return {*this, UniqueFd{ends[0]}};
  }
  /// One request by somebody of its own.
  int status_of(const std::string& target, const std::string& headers = "", OpsPeer who = from_here()) {
    Peer peer = connect(std::move(who));
    peer.ask(target, headers);
    return peer.status();
  }
  std::string text_of(const std::string& target, const std::string& headers = "", OpsPeer who = from_here()) {
    Peer peer = connect(std::move(who));
    peer.ask(target, headers);
    peer.status();
    return peer.heard();
  }
  bool until(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{60};
    while (!condition() && std::chrono::steady_clock::now() < end) {
      loop.restart();
      loop.run_one_for(std::chrono::milliseconds{10});
    }
    return condition();
  }

  boost::asio::io_context loop{1};
  ToldJobs jobs;
  OpsService ops;
  HttpServer http;
  std::shared_ptr<HttpDoor> door = std::make_shared<HttpDoor>();
};

inline const std::string control = "Authorization: Bearer control token\r\n";

}  // namespace torchup::test

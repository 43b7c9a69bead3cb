#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "rendezvous/net/io/unique_fd.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

/// Pages for people, probes and Prometheus on the port that they share with everybody else.
struct HttpOptions {
  /// What a page says now.
  struct Content {
    Content(std::string now, bool well = true) : text{std::move(now)}, available{well} {}
    std::string text;
    bool available;  ///< false: the status is 503, which is what probes look at
  };
  struct Page {
    std::string content_type;
    std::function<Content()> body;  ///< called on the loop, once per request
    bool open = false;              ///< to everybody, for it says nothing of a job
  };
  using Pages = std::map<std::string, Page, std::less<>>;  ///< by path: "/healthz"
  Pages pages;
  /// Peers of this machine are always answered. Others must send it ("Authorization: Bearer <token>"); empty: they get
  /// 403.
  std::string token;
  /// From this machine, and as many from others. The next one takes the place of who is from elsewhere and has not yet
  /// said what lets it in, or gets 503 where there is none.
  std::size_t connections_max = 64;
};

/// True for a byte with which an HTTP request may begin: a capital letter.
[[nodiscard]] constexpr bool begins_http(unsigned char first_byte) { return first_byte >= 'A' && first_byte <= 'Z'; }

/// What a probe is told: `word` in a line, open to everybody; 503 where it is another than `ok`.
[[nodiscard]] HttpOptions::Page probe_page(std::function<std::string()> word);

/// Answers HTTP/1.1 GET and HEAD on sockets that it is given. A request has 5 seconds and 8 KiB; connections are kept
/// alive for as long between requests.
class HttpService {
 public:
  HttpService(boost::asio::io_context& loop, HttpOptions options);
  HttpService(const HttpService&) = delete;
  HttpService& operator=(const HttpService&) = delete;
  ~HttpService();

  /// Takes over a connection from which nothing has been read.
  void serve(UniqueFd socket);

 private:
  struct Shared;
  bool drop_stranger();

  std::shared_ptr<Shared> shared_;
};

}  // namespace torchup

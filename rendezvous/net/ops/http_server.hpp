#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/ops/ops_route.hpp"
#include "rendezvous/net/io/stranger_list.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

inline constexpr const char* json_content = "application/json";
inline constexpr const char* text_content = "text/plain; charset=utf-8";
inline constexpr const char* bytes_content = "application/octet-stream";
/// Of a log: where its next part begins.
inline constexpr const char* offset_header = "Torchup-Offset";
/// Of a log: `memory` where there are no files of it.
inline constexpr const char* source_header = "Torchup-Source";
inline constexpr const char* source_memory = "memory";

/// What is said to one for whom there is no connection: 503.
[[nodiscard]] std::string http_busy_text();

/// What is answered at once.
struct OpsAnswer {
  int status = 200;
  std::string content_type = json_content;
  std::string body = {};
  std::vector<OpsRequest::Header> headers = {};  ///< beside those that every answer has
};
[[nodiscard]] OpsAnswer answer_of(const Refusal& refusal);

/// What is answered bit by bit (text/event-stream), for as long as somebody reads it. On the loop.
class FrameSource {
 public:
  virtual ~FrameSource() = default;
  struct Next {
    std::shared_ptr<const std::string> frame = {};  ///< empty: there is nothing now
    bool ended = false;                             ///< and there will be nothing any more
  };
  /// Asked when all before it is written, so that no more than one waits for a slow reader.
  virtual Next next() = 0;
  /// `wake` is called whenever there may be something again; it may come from within `next`.
  virtual void set_wake(std::function<void()> wake) = 0;
};

using OpsReply = std::variant<OpsAnswer, std::shared_ptr<FrameSource>>;

/// Where connections come from: a unix socket, a port.
struct HttpDoor {
  OpsAccess access = {};
  /// Who at this door has not sent a whole request, or none since the last was answered. Null: nobody counts them.
  std::shared_ptr<StrangerList> strangers = {};
  // What is known of those who have come.
  TimePoint last_request{};  ///< that was let in
  std::size_t streams = 0;   ///< that are followed now
};

struct HttpLimits {
  std::size_t connections_max = 256;
  std::size_t streams_max = 64;
  Duration request = std::chrono::seconds{5};    ///< from accept, or from the answer before it, to its end
  Duration progress = std::chrono::seconds{30};  ///< in which somebody has taken a byte of what he is sent
  Duration answer = std::chrono::seconds{40};    ///< until there is one
  Duration comment = std::chrono::seconds{15};   ///< a stream is silent for as long at most
};

/// True for a byte with which an HTTP request may begin: a capital letter.
[[nodiscard]] constexpr bool begins_http(unsigned char first_byte) { return first_byte >= 'A' && first_byte <= 'Z'; }

/// What this machine calls itself, with its domain and without.
[[nodiscard]] std::vector<std::string> own_names();

/// Who is at the other end, a user of this machine or an address. Nothing: he has gone.
[[nodiscard]] std::optional<OpsPeer> peer_at(int socket);

/// Answers HTTP/1.1 on sockets that it is given, of all doors of a process: what is asked, and whether somebody may, is
/// ops_route.hpp's.
///
/// A header has 8 KiB, a body 64 KiB. Beyond connections_max a newcomer takes the place of the one that has sent no
/// whole request for longest; those who follow a stream, or whose answer is being made, keep theirs.
class HttpServer {
 public:
  using Reply = std::function<void(OpsReply)>;
  /// Performs a request: calls the reply once, now or later, on the loop. What it throws is a 500.
  using Perform = std::function<void(const OpsCall&, Reply)>;

  HttpServer(boost::asio::io_context& loop, Perform perform, HttpLimits limits = {});
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();  ///< closes all connections

  /// Takes over a connection from which nothing has been read.
  void serve(UniqueFd socket, std::shared_ptr<HttpDoor> door);
  /// The same of somebody who is known already.
  void serve(UniqueFd socket, std::shared_ptr<HttpDoor> door, OpsPeer peer);
  /// Closes those who have come through that door.
  void close(const HttpDoor& door);

  /// Answers so far, by status.
  [[nodiscard]] const std::map<int, std::uint64_t>& answers() const;
  [[nodiscard]] std::size_t streams() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace torchup

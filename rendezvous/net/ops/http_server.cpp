#include "rendezvous/net/ops/http_server.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <list>
#include <optional>
#include <utility>

#include "rendezvous/net/io/asio.hpp"

namespace torchup {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using Protocol = asio::generic::stream_protocol;
using Stream = beast::basic_stream<Protocol, Token::executor_with_default<asio::any_io_executor>>;
using Parser = http::request_parser<http::string_body>;

/// How long, and for how much, a peer is listened to whose request was refused before its end: to close a socket that
/// holds unread bytes is a reset, which may overtake the answer.
constexpr auto farewell_limit = std::chrono::seconds{1};
constexpr std::size_t farewell_bytes_max = 1024 * 1024;

/// A body up to this goes out together with its header.
constexpr std::size_t joined_bytes_max = 64 * 1024;

std::string_view text_of(beast::string_view text) { return {text.data(), text.size()}; }

OpsRequest request_of(const Parser::value_type& parsed) {
  OpsRequest request{.method = std::string{text_of(parsed.method_string())},
                     .target = std::string{text_of(parsed.target())},
                     .http_1_1 = parsed.version() == 11,
                     .headers = {}};
  for (const auto& field : parsed) {
    request.headers.emplace_back(std::string{text_of(field.name_string())}, std::string{text_of(field.value())});
  }
  return request;
}

/// Of bytes that are no request.
Refusal refusal_of(const boost::system::error_code& error) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return {431, "header_too_long", fmt::format("A request's header has {} bytes at most", ops_header_bytes_max), ""};
  }
  if (error == http::error::body_limit) return body_too_long();
  return {400, "bad_request", "This is no HTTP request: " + error.message(), ""};
}

/// Of those the peer is still there to be told.
bool is_of_http(const boost::system::error_code& error) {
  return error.category() == http::make_error_code(http::error::bad_method).category() &&
         error != http::error::end_of_stream && error != http::error::partial_message;
}

std::string head_of(const OpsAnswer& answer, bool keep_alive, std::optional<std::size_t> length) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(answer.status));
  std::string head = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nCache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\nConnection: {}\r\n",
      answer.status, text_of(reason), answer.content_type, keep_alive ? "keep-alive" : "close");
  if (length) head += fmt::format("Content-Length: {}\r\n", *length);
  for (const auto& [name, value] : answer.headers) head += fmt::format("{}: {}\r\n", name, value);
  return head + "\r\n";
}

/// One who has come.
struct Connection {
  Connection(asio::basic_stream_socket<Protocol, Stream::executor_type> socket, OpsPeer who,
             std::shared_ptr<HttpDoor> through)
      : stream{std::move(socket)}, peer{std::move(who)}, door{std::move(through)}, wake{stream.get_executor()} {}
  Stream stream;
  beast::flat_buffer buffer = {};
  OpsPeer peer;
  std::shared_ptr<HttpDoor> door;
  Timer wake;  ///< cancelled when there is something to send
  StrangerPlace stranger = {};
};
using Connections = std::list<std::shared_ptr<Connection>>;

/// One of the streams that may be followed, taken from when it is asked for.
class StreamPlace {
 public:
  explicit StreamPlace(std::size_t& streams) : streams_{++streams} {}
  StreamPlace(const StreamPlace&) = delete;
  StreamPlace& operator=(const StreamPlace&) = delete;
  ~StreamPlace() { --streams_; }

 private:
  std::size_t& streams_;
};

bool wants_stream(const OpsCall& call) {
  return call.route == OpsRoute::job_stream || call.route == OpsRoute::jobs_stream;
}

/// An answer that is being made.
struct Awaited {
  explicit Awaited(asio::io_context& loop) : made{loop} {}
  Timer made;
  std::optional<OpsReply> reply;
};

}  // namespace

class HttpServer::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& loop, Perform perform, HttpLimits limits)
      : loop_{loop}, perform_{std::move(perform)}, limits_{limits} {}

  void serve(UniqueFd socket, std::shared_ptr<HttpDoor> door, OpsPeer peer);
  void close_if(const std::function<bool(const Connection&)>& which);
  void end() {
    perform_ = {};
    close_if([](const Connection&) { return true; });
  }

  std::map<int, std::uint64_t> answers;
  std::size_t streams = 0;

 private:
  Task<> converse(std::shared_ptr<Connection> connection);
  Task<bool> exchange(std::shared_ptr<Connection> connection);
  Task<OrRefusal<OpsCall>> asked(Connection& connection, Parser& parser);
  Task<OpsReply> performed(const OpsCall& call);
  Task<bool> answered(Connection& connection, const OpsAnswer& answer, bool head, bool keep_alive);
  Task<> followed(std::shared_ptr<Connection> connection, std::shared_ptr<FrameSource> source);
  Task<bool> written(Connection& connection, std::string_view bytes);
  Task<> farewell(Connection& connection);
  void idle(const std::shared_ptr<Connection>& connection);
  void busy(const std::shared_ptr<Connection>& connection);
  bool make_room();
  void refuse(UniqueFd socket);

  asio::io_context& loop_;
  Perform perform_;
  HttpLimits limits_;
  Connections all_;
  Connections idle_;  ///< who may have to go, the one that has sent no whole request for longest in front
};

namespace {

/// Takes what a reader of a stream says, which means nothing, so that its end is noticed.
Task<> watch_end(std::shared_ptr<Connection> connection) {
  std::array<char, 256> ignored;
  while (connection->stream.socket().is_open()) {
    const auto [error, bytes] = co_await connection->stream.socket().async_read_some(asio::buffer(ignored));
    if (error) connection->stream.close();
  }
  connection->wake.cancel();
}

}  // namespace

Task<> HttpServer::Impl::converse(std::shared_ptr<Connection> connection) {
  const auto self = shared_from_this();
  while (co_await exchange(connection)) {
  }
  co_await farewell(*connection);
  connection->stream.close();
  busy(connection);
  all_.remove(connection);
}

/// It may have to go: there is nothing of it that somebody waits for.
void HttpServer::Impl::idle(const std::shared_ptr<Connection>& connection) {
  idle_.push_back(connection);
  if (!connection->door->strangers) return;
  connection->stranger = StrangerPlace{connection->door->strangers, connection->peer.address,
                                       [weak = std::weak_ptr{connection}](const std::string&) {
                                         if (const auto stranger = weak.lock()) stranger->stream.close();
                                       }};
}

void HttpServer::Impl::busy(const std::shared_ptr<Connection>& connection) {
  connection->stranger.settle();
  idle_.remove(connection);
}

/// One request and its answer. False: it was the last.
Task<bool> HttpServer::Impl::exchange(std::shared_ptr<Connection> connection) {
  Parser parser;
  parser.header_limit(ops_header_bytes_max);
  parser.body_limit(boost::none);  // what is too long is said to those who may
  connection->stream.expires_after(limits_.request);
  const auto [failed, bytes] = co_await http::async_read_header(connection->stream, connection->buffer, parser);
  // To Beast the limit is one of the first line, and then one of the fields.
  const bool too_long = !failed && bytes > ops_header_bytes_max;
  const boost::system::error_code error = too_long ? make_error_code(http::error::header_limit) : failed;
  if (error && !is_of_http(error)) co_return false;
  OrRefusal<OpsCall> call = error ? OrRefusal<OpsCall>{refusal_of(error)} : OrRefusal<OpsCall>{OpsCall{}};
  if (!error) call = co_await asked(*connection, parser);
  if (!connection->stream.socket().is_open()) co_return false;
  if (parser.is_done() || parser.is_header_done()) busy(connection);
  // What follows a body that is not read cannot be found.
  const bool keep_alive = !error && parser.is_done() && parser.keep_alive();
  const bool head = !error && parser.get().method() == http::verb::head;
  OpsReply reply = OpsAnswer{};
  std::optional<StreamPlace> place;
  if (const auto* refusal = std::get_if<Refusal>(&call)) {
    reply = answer_of(*refusal);
  } else {
    connection->door->last_request = std::chrono::steady_clock::now();
    const OpsCall& what = std::get<OpsCall>(call);
    const bool full = wants_stream(what) && streams >= limits_.streams_max;
    if (wants_stream(what) && !full) place.emplace(streams);
    if (full) {
      reply = answer_of({503, "too_many_streams", fmt::format("{} streams are followed already", streams), ""});
    } else {
      reply = co_await performed(what);
    }
  }
  if (auto* const source = std::get_if<std::shared_ptr<FrameSource>>(&reply)) {
    co_await followed(connection, *source);
    co_return false;
  }
  place.reset();
  if (std::find(idle_.begin(), idle_.end(), connection) == idle_.end()) idle(connection);
  const OpsAnswer& answer = std::get<OpsAnswer>(reply);
  co_return co_await answered(*connection, answer, head, keep_alive);
}

/// What somebody wants whose header is read, with the body where one is needed.
Task<OrRefusal<OpsCall>> HttpServer::Impl::asked(Connection& connection, Parser& parser) {
  const OpsRequest request = request_of(parser.get());
  const auto caller = admitted(request, connection.peer, connection.door->access);
  if (const auto* refusal = std::get_if<Refusal>(&caller)) co_return *refusal;
  auto call = routed(request, std::get<OpsCaller>(caller));
  if (std::holds_alternative<Refusal>(call) || !takes_body(std::get<OpsCall>(call))) co_return call;
  if (header(request, "expect")) {
    constexpr std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    const auto [error, bytes] = co_await asio::async_write(connection.stream, asio::buffer(go_on));
    if (error) co_return refusal_of(error);
  }
  parser.body_limit(ops_body_bytes_max);
  const auto [error, bytes] = co_await http::async_read(connection.stream, connection.buffer, parser);
  if (error && !is_of_http(error)) connection.stream.close();
  if (error) co_return refusal_of(error);
  if (auto refusal = read_body(std::get<OpsCall>(call), parser.get().body())) co_return *refusal;
  co_return call;
}

Task<OpsReply> HttpServer::Impl::performed(const OpsCall& call) {
  const auto nothing = [](int status, const char* code, std::string message) {
    return OpsReply{answer_of({status, code, std::move(message), ""})};
  };
  const auto awaited = std::make_shared<Awaited>(loop_);
  awaited->made.expires_after(limits_.answer);
  std::string failure;
  try {
    if (perform_) {
      perform_(call, [awaited](OpsReply reply) {
        if (awaited->reply) return;
        awaited->reply = std::move(reply);
        awaited->made.cancel();
      });
    }
  } catch (const std::exception& error) {  // one page must not end what serves all
    failure = error.what();
  }
  if (!failure.empty()) co_return nothing(500, "internal_error", failure);
  if (!awaited->reply) co_await awaited->made.async_wait();
  if (!awaited->reply) co_return nothing(504, "no_answer", "No answer came in time");
  co_return std::move(*awaited->reply);
}

Task<bool> HttpServer::Impl::answered(Connection& connection, const OpsAnswer& answer, bool head, bool keep_alive) {
  ++answers[answer.status];
  std::string first = head_of(answer, keep_alive, answer.body.size());
  std::string_view rest = head ? std::string_view{} : std::string_view{answer.body};
  if (rest.size() <= joined_bytes_max) first += std::exchange(rest, {});
  bool all = co_await written(connection, first);
  if (all && !rest.empty()) all = co_await written(connection, rest);
  co_return all&& keep_alive;
}

/// True: all of it. A peer that takes nothing for too long is closed.
Task<bool> HttpServer::Impl::written(Connection& connection, std::string_view bytes) {
  while (!bytes.empty()) {
    connection.stream.expires_after(limits_.progress);
    const auto [error, count] = co_await connection.stream.async_write_some(asio::buffer(bytes));
    if (error) {
      connection.stream.close();
      co_return false;
    }
    bytes.remove_prefix(count);
  }
  co_return true;
}

Task<> HttpServer::Impl::followed(std::shared_ptr<Connection> connection, std::shared_ptr<FrameSource> source) {
  ++connection->door->streams;
  ++answers[200];
  source->set_wake([connection] { connection->wake.cancel(); });
  const OpsAnswer answer{.content_type = "text/event-stream"};
  const std::string head = head_of(answer, false, std::nullopt);
  bool open = co_await written(*connection, head);
  if (open) spawn(loop_, "end of a stream's reader", watch_end(connection));
  const auto comment = std::make_shared<const std::string>(":\n\n");
  while (open && connection->stream.socket().is_open()) {
    FrameSource::Next next = source->next();
    if (next.ended) break;
    if (!next.frame) {
      connection->wake.expires_after(limits_.comment);
      const auto [woken] = co_await connection->wake.async_wait();
      if (woken) continue;
      next.frame = comment;
    }
    open = co_await written(*connection, *next.frame);
  }
  source->set_wake({});
  --connection->door->streams;
}

/// Ends our side and listens for a while to what was on its way.
Task<> HttpServer::Impl::farewell(Connection& connection) {
  if (!connection.stream.socket().is_open()) co_return;
  boost::system::error_code failed;
  connection.stream.socket().shutdown(asio::socket_base::shutdown_send, failed);
  std::array<char, 4096> ignored;
  connection.stream.expires_after(farewell_limit);
  for (std::size_t taken = 0; !failed && taken < farewell_bytes_max;) {
    const auto [error, bytes] = co_await connection.stream.async_read_some(asio::buffer(ignored));
    failed = error;
    taken += bytes;
  }
}

bool HttpServer::Impl::make_room() {
  if (all_.size() < limits_.connections_max) return true;
  if (idle_.empty()) return false;
  const auto last = idle_.front();
  last->stream.close();
  busy(last);
  all_.remove(last);
  return true;
}

void HttpServer::Impl::refuse(UniqueFd socket) {
  ++answers[503];
  const std::string text = http_busy_text();
  ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  std::array<char, ops_header_bytes_max> unread;
  [[maybe_unused]] const auto got = ::recv(socket.get(), unread.data(), unread.size(), MSG_DONTWAIT);
}

void HttpServer::Impl::serve(UniqueFd socket, std::shared_ptr<HttpDoor> door, OpsPeer peer) {
  if (!make_room()) return refuse(std::move(socket));
  int family = 0;
  socklen_t size = sizeof family;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_DOMAIN, &family, &size) != 0) return;
  asio::basic_stream_socket<Protocol, Stream::executor_type> assigned{loop_};
  boost::system::error_code error;
  assigned.assign(Protocol{family, 0}, socket.get(), error);
  if (error) return;
  [[maybe_unused]] const int owned = socket.release();
  auto connection = std::make_shared<Connection>(std::move(assigned), std::move(peer), std::move(door));
  all_.push_back(connection);
  idle(connection);
  spawn(loop_, "http", converse(connection));
}

void HttpServer::Impl::close_if(const std::function<bool(const Connection&)>& which) {
  for (const auto& connection : Connections{all_}) {
    if (!which(*connection)) continue;
    connection->stream.close();
    connection->wake.cancel();
  }
}

std::string http_busy_text() {
  const OpsAnswer busy = answer_of({503, "too_many_connections", "All connections of this process are in use", ""});
  return head_of(busy, false, busy.body.size()) + busy.body;
}

OpsAnswer answer_of(const Refusal& refusal) {
  return {.status = refusal.status, .body = error_body(refusal), .headers = refusal_headers(refusal)};
}

HttpServer::HttpServer(asio::io_context& loop, Perform perform, HttpLimits limits)
    : impl_{std::make_shared<Impl>(loop, std::move(perform), limits)} {}
HttpServer::~HttpServer() { impl_->end(); }

void HttpServer::serve(UniqueFd socket, std::shared_ptr<HttpDoor> door) {
  auto peer = peer_at(socket.get());
  if (peer) impl_->serve(std::move(socket), std::move(door), std::move(*peer));
}

void HttpServer::serve(UniqueFd socket, std::shared_ptr<HttpDoor> door, OpsPeer peer) {
  impl_->serve(std::move(socket), std::move(door), std::move(peer));
}

void HttpServer::close(const HttpDoor& door) {
  impl_->close_if([&door](const Connection& connection) { return connection.door.get() == &door; });
}

const std::map<int, std::uint64_t>& HttpServer::answers() const { return impl_->answers; }
std::size_t HttpServer::streams() const { return impl_->streams; }

}  // namespace torchup

#include "rendezvous/net/daemon/http.hpp"

#include <sys/socket.h>

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <list>

#include "rendezvous/net/io/address.hpp"
#include "rendezvous/net/io/asio.hpp"
#include "rendezvous/net/io/node_identity.hpp"
#include "rendezvous/net/io/token.hpp"

namespace torchup {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using Request = http::request<http::empty_body>;
using Response = http::response<http::string_body>;
using Stream = beast::tcp_stream::rebind_executor<Token::executor_with_default<asio::any_io_executor>>::other;

constexpr auto request_limit = std::chrono::seconds{5};
constexpr std::uint32_t header_bytes_max = 8 * 1024;

/// To close a socket that holds unread bytes is a reset, which may overtake the answer.
void take_what_came(int socket) {
  std::array<char, header_bytes_max> unread;
  [[maybe_unused]] const auto got = ::recv(socket, unread.data(), unread.size(), MSG_DONTWAIT);
}

constexpr const char* plain_text = "text/plain; charset=utf-8";

bool from_this_machine(int socket) { return is_of_this_machine(peer_address(socket)); }

}  // namespace

struct HttpService::Shared {
  asio::io_context& loop;
  HttpOptions options;
  std::size_t from_here = 0, from_elsewhere = 0;  ///< connections
  /// Connections from elsewhere that have not said yet what lets them in, the oldest in front.
  std::list<std::shared_ptr<Stream>> strangers = {};

  [[nodiscard]] bool permits(Stream& stream, const Request& request) const {
    if (from_this_machine(stream.socket().native_handle())) return true;
    const std::string_view sent{request[http::field::authorization].data(), request[http::field::authorization].size()};
    return !options.token.empty() && same(sent, "Bearer " + options.token);
  }

  /// `permitted`: what a peer may see whom the rules let in.
  [[nodiscard]] Response answer(const Request& request, bool permitted) const {
    Response response{http::status::ok, request.version()};
    response.set(http::field::content_type, plain_text);
    response.set(http::field::cache_control, "no-store");
    response.keep_alive(request.keep_alive());
    const auto refuse = [&](http::status status, const char* why) {
      response.result(status);
      response.body() = why;
    };
    const std::string_view target{request.target().data(), request.target().size()};
    const auto page = options.pages.find(target.substr(0, target.find('?')));
    const bool open = page != options.pages.end() && page->second.open;
    if (!open && !permitted) {
      refuse(http::status::forbidden,
             "Only this machine, or who sends the job's token: Authorization: Bearer <token>\n");
      response.keep_alive(false);
    } else if (request.method() != http::verb::get && request.method() != http::verb::head) {
      response.set(http::field::allow, "GET, HEAD");
      refuse(http::status::method_not_allowed, "GET and HEAD only\n");
    } else if (page == options.pages.end()) {
      std::string known = "No such page. There are:";
      for (const auto& [path, unused] : options.pages) known += " " + path;
      refuse(http::status::not_found, (known + "\n").c_str());
    } else {
      response.set(http::field::content_type, page->second.content_type);
      try {
        HttpOptions::Content content = page->second.body();
        if (!content.available) response.result(http::status::service_unavailable);
        response.body() = std::move(content.text);
      } catch (const std::exception& error) {  // one page must not end what serves all
        refuse(http::status::internal_server_error, (std::string{error.what()} + "\n").c_str());
      }
    }
    response.prepare_payload();
    if (request.method() == http::verb::head) response.body().clear();
    return response;
  }
};

namespace {

/// `count` is of `shared`, this connection among them.
template <class Shared>
Task<> converse(std::shared_ptr<Shared> shared, std::size_t& count, std::shared_ptr<Stream> connection) {
  Stream& stream = *connection;
  beast::flat_buffer buffer;
  for (bool open = true; open;) {
    http::request_parser<http::empty_body> parser;
    parser.header_limit(header_bytes_max);
    stream.expires_after(request_limit);
    const auto [error, bytes] = co_await http::async_read_header(stream, buffer, parser);
    if (error || !stream.socket().is_open()) break;
    const bool permitted = shared->permits(stream, parser.get());
    if (permitted) shared->strangers.remove(connection);
    Response response = shared->answer(parser.get(), permitted);
    // A body is not read, so what follows it cannot be found.
    open = response.keep_alive() && parser.content_length_remaining().value_or(0) == 0 && !parser.chunked();
    response.keep_alive(open);
    stream.expires_after(request_limit);
    const auto [write_error, written] = co_await http::async_write(stream, response);
    if (write_error) break;
  }
  shared->strangers.remove(connection);
  --count;
  if (!stream.socket().is_open()) co_return;
  take_what_came(stream.socket().native_handle());
  boost::system::error_code ignored;
  stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
}

}  // namespace

HttpOptions::Page probe_page(std::function<std::string()> word) {
  const auto body = [word = std::move(word)] {
    std::string now = word();
    const bool well = now == "ok";
    return HttpOptions::Content{std::move(now) + "\n", well};
  };
  return {plain_text, body, true};
}

HttpService::HttpService(asio::io_context& loop, HttpOptions options)
    : shared_{std::make_shared<Shared>(Shared{loop, std::move(options)})} {}
HttpService::~HttpService() = default;

/// A stranger who says nothing keeps nobody out who would: the one that has been silent for longest makes room.
bool HttpService::drop_stranger() {
  if (shared_->strangers.empty()) return false;
  boost::system::error_code ignored;
  shared_->strangers.front()->socket().close(ignored);
  shared_->strangers.pop_front();
  return true;
}

void HttpService::serve(UniqueFd socket) {
  // Others have places of their own: else they would keep this machine's probes out.
  std::size_t& count = from_this_machine(socket.get()) ? shared_->from_here : shared_->from_elsewhere;
  const bool elsewhere = &count == &shared_->from_elsewhere;
  if (count >= shared_->options.connections_max && !(elsewhere && drop_stranger())) {
    constexpr std::string_view busy =
        "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    ::send(socket.get(), busy.data(), busy.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    take_what_came(socket.get());
    return;
  }
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name), &size) != 0) return;
  Socket connection{shared_->loop};
  boost::system::error_code error;
  connection.assign(name.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), socket.get(), error);
  if (error) return;
  [[maybe_unused]] const int owned = socket.release();
  ++count;
  const auto stream = std::make_shared<Stream>(std::move(connection));
  if (elsewhere) shared_->strangers.push_back(stream);
  spawn(shared_->loop, "http", converse(shared_, count, stream));
}

}  // namespace torchup

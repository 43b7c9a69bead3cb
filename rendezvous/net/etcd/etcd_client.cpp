#include "rendezvous/net/etcd/etcd_client.hpp"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <deque>
#include <map>
#include <utility>

#include "rendezvous/net/io/dialer.hpp"
#include "rendezvous/net/io/silence_limit.hpp"

namespace torchup {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

/// What is said of a connection that could not be made, or broke: as short as in a roster.
std::string short_text(const Error& error) {
  if (error.code == boost::system::errc::connection_refused) return "refused";
  if (error.code == boost::system::errc::timed_out) return "no answer";
  return error.message();
}

}  // namespace

class EtcdClient::Impl : public std::enable_shared_from_this<EtcdClient::Impl> {
 public:
  Impl(asio::io_context& loop, EtcdSettings settings)
      : loop_{loop}, settings_{std::move(settings)}, limit_{loop} {}

  void ask(etcd::Request request, Done done) {
    queue_.push_back({std::move(request), std::move(done)});
    if (busy_) return;
    busy_ = true;
    asio::post(loop_, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->begin();
    });
  }

  void close() {
    queue_.clear();
    hang_up();
    if (dialler_) std::exchange(dialler_, {})->cancel();
  }

  [[nodiscard]] std::string trouble() const {
    std::string text;
    for (const auto& [member, why] : troubles_) {
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", to_string(settings_.members[member]), why.words);
    }
    return text;
  }

  [[nodiscard]] const std::string& local_address() const { return local_address_; }
  [[nodiscard]] std::optional<etcd::Failure> verdict() const {
    for (const auto& [member, why] : troubles_) {
      if (why.cause == etcd::Cause::forbidden || why.cause == etcd::Cause::full) return why;
    }
    return {};
  }

 private:
  struct Asked {
    etcd::Request request;
    Done done;
  };
  /// A connection, which its operations own until they have ended.
  struct Line {
    explicit Line(tcp::socket connected) : socket{std::move(connected)} {}
    tcp::socket socket;
    boost::beast::flat_buffer buffer = {};
  };

  /// The first in the queue: on a line that stands, logged in where that is wanted.
  void begin() {
    tried_ = 0;
    renewed_ = false;
    go_on();
  }

  void go_on() {
    if (queue_.empty()) {
      busy_ = false;
      return;
    }
    if (!line_) return connect();
    if (!settings_.user.empty() && token_.empty()) return log_in();
    send(queue_.front().request, [this](unsigned status, std::string body) { answered(status, std::move(body)); });
  }

  void connect() {
    if (tried_ >= settings_.members.size()) {
      return finish({etcd::Failure{etcd::Cause::away, "etcd does not answer (" + trouble() + ")"}, {}});
    }
    ++tried_;
    dialler_ = std::make_shared<Dialer>(loop_);
    dialler_->dial(settings_.members[member_], connect_limit,
                   [weak = weak_from_this()](Result<tcp::socket> socket) {
                     const auto self = weak.lock();
                     if (!self) return;
                     self->dialler_.reset();
                     if (!socket) {
                       self->blame({etcd::Cause::away, short_text(socket.error())});
                       self->next_member();
                       return self->go_on();
                     }
                     self->line_ = std::make_shared<Line>(std::move(*socket));
                     error_code ignored;
                     self->line_->socket.set_option(tcp::no_delay{true}, ignored);
                     if (const auto local = self->line_->socket.local_endpoint(ignored); !ignored) {
                       self->local_address_ = local.address().to_string();
                     }
                     limit_silence(self->line_->socket.native_handle(), std::chrono::seconds{10});
                     self->go_on();
                   });
  }

  void log_in() {
    send(etcd::authenticate_request(settings_.user, settings_.password), [this](unsigned status, std::string body) {
      if (status != 200) return failed(etcd::failure_of(status, body, false));
      auto token = etcd::read_login(body);
      if (!token) return failed({etcd::Cause::no_etcd, token.error().message()});
      token_ = *std::move(token);
      go_on();
    });
  }

  using Heard = std::function<void(unsigned status, std::string body)>;

  void send(const etcd::Request& request, Heard heard) {
    auto message = std::make_shared<http::request<http::string_body>>(http::verb::post, request.path, 11);
    message->set(http::field::host, to_string(settings_.members[member_]));
    message->set(http::field::content_type, "application/json");
    if (!token_.empty()) message->set(http::field::authorization, token_);
    message->body() = request.body;
    message->prepare_payload();
    arm();
    http::async_write(line_->socket, *message,
                      [weak = weak_from_this(), message, line = line_, heard = std::move(heard)](
                          const error_code& error, std::size_t) mutable {
                        const auto self = weak.lock();
                        if (!self || self->line_ != line) return;
                        if (error) return self->broke(error);
                        self->receive(std::move(heard));
                      });
  }

  void receive(Heard heard) {
    auto parser = std::make_shared<http::response_parser<http::string_body>>();
    parser->body_limit(etcd::answer_bytes_max);
    parser->header_limit(32768);
    http::async_read(line_->socket, line_->buffer, *parser,
                     [weak = weak_from_this(), parser, line = line_, heard = std::move(heard)](const error_code& error,
                                                                                               std::size_t) {
                       const auto self = weak.lock();
                       if (!self || self->line_ != line) return;
                       if (error) return self->broke(error);
                       self->limit_.cancel();
                       auto message = parser->release();
                       if (!message.keep_alive()) self->hang_up();
                       heard(message.result_int(), std::move(message.body()));
                     });
  }

  /// A member that takes longer than that is left; its answer, if any, is nobody's.
  void arm() {
    limit_.expires_after(answer_limit);
    limit_.async_wait([weak = weak_from_this(), line = line_](const error_code& error) {
      const auto self = weak.lock();
      if (error || !self || self->line_ != line) return;
      self->failed({etcd::Cause::away, "no answer in 2 s"});
    });
  }

  void broke(const error_code& error) {
    // What closes the kept connection before it has read anything has done nothing with it; but that cannot be known.
    const bool strange = error.category() != boost::system::system_category() && error != asio::error::eof &&
                         error != http::error::end_of_stream && error != http::error::partial_message;
    failed({strange ? etcd::Cause::no_etcd : etcd::Cause::away,
            strange ? "is no etcd: " + error.message() : "the connection broke"});
  }

  void answered(unsigned status, std::string body) {
    if (status == 200) {
      troubles_.clear();
      return finish({{}, std::move(body)});
    }
    failed(etcd::failure_of(status, body, !token_.empty()));
  }

  void failed(etcd::Failure why) {
    if (why.cause == etcd::Cause::log_in && !token_.empty() && !std::exchange(renewed_, true)) {
      token_.clear();
      return go_on();
    }
    if (why.cause == etcd::Cause::log_in) why.cause = etcd::Cause::forbidden;
    const bool members_fault = why.cause == etcd::Cause::away || why.cause == etcd::Cause::no_etcd;
    if (members_fault || why.cause == etcd::Cause::forbidden || why.cause == etcd::Cause::full) blame(why);
    if (members_fault) next_member();
    finish({std::move(why), {}});
  }

  void blame(etcd::Failure why) { troubles_.insert_or_assign(member_, std::move(why)); }

  void next_member() {
    hang_up();
    member_ = (member_ + 1) % settings_.members.size();
  }

  void hang_up() {
    limit_.cancel();
    token_.clear();  // another member may not know it yet
    if (!line_) return;
    error_code ignored;
    line_->socket.close(ignored);
    line_.reset();
  }

  void finish(Answer answer) {
    limit_.cancel();
    const Done done = std::move(queue_.front().done);
    queue_.pop_front();
    const auto self = shared_from_this();  // `done` may let go of it
    done(std::move(answer));
    if (queue_.empty()) {
      busy_ = false;
    } else {
      begin();
    }
  }

  asio::io_context& loop_;
  EtcdSettings settings_;
  asio::steady_timer limit_;
  std::deque<Asked> queue_;
  bool busy_ = false;
  std::shared_ptr<Dialer> dialler_;
  std::shared_ptr<Line> line_;  ///< what comes of another than this one is passed over
  std::string token_;
  std::size_t member_ = 0;
  std::size_t tried_ = 0;  ///< members that were dialled for this request
  std::string local_address_;
  bool renewed_ = false;   ///< the login, for this request
  std::map<std::size_t, etcd::Failure> troubles_;
};

EtcdClient::EtcdClient(asio::io_context& loop, EtcdSettings settings)
    : impl_{std::make_shared<Impl>(loop, std::move(settings))} {}
EtcdClient::~EtcdClient() { impl_->close(); }
void EtcdClient::ask(etcd::Request request, Done done) { impl_->ask(std::move(request), std::move(done)); }
std::string EtcdClient::local_address() const { return impl_->local_address(); }
std::string EtcdClient::trouble() const { return impl_->trouble(); }
std::optional<etcd::Failure> EtcdClient::verdict() const { return impl_->verdict(); }

}  // namespace torchup

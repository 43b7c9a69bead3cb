#include "rendezvous/net/etcd/etcd_client.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
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

  [[nodiscard]] bool none_is_etcd() const {
    return troubles_.size() == settings_.members.size() &&
           std::ranges::all_of(troubles_, [](const auto& each) { return each.second.cause == etcd::Cause::no_etcd; });
  }
  void disbelieve(const std::string& why) {
    blame({etcd::Cause::no_etcd, why});
    next_member();
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
    void begin_answer() {
      parser.emplace();
      parser->body_limit(etcd::answer_bytes_max);
      parser->header_limit(32768);
      parser->eager(true);
    }
    tcp::socket socket;
    std::unique_ptr<EtcdTlsStream> tls = {};
    bool shaking = false;  ///< hands
    bool reading = false;
    bool spoke = false;  ///< its member has said something
    std::array<char, 16384> chunk = {};
    std::string input = {};
    std::optional<http::response_parser<http::string_body>> parser = {};  ///< of the answer that is awaited
    std::function<void(unsigned, std::string)> heard = {};
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
                     self->greet();
                   });
  }

  /// Shakes hands where that is wanted.
  void greet() {
    if (!settings_.https) return go_on();
    if (!tls_) {
      auto opened = EtcdTls::open(settings_.files);
      if (!opened) return failed({etcd::Cause::forbidden, opened.error().message()});
      tls_ = *std::move(opened);
    }
    line_->tls = std::make_unique<EtcdTlsStream>(tls_, settings_.members[member_].host);
    line_->shaking = true;
    arm();
    write(line_->tls->to_send());
    read();
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
    std::string text = fmt::format("POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
                                   request.path, to_string(settings_.members[member_]), request.body.size());
    if (!token_.empty()) text += fmt::format("Authorization: {}\r\n", token_);
    text += "\r\n";
    text += request.body;
    line_->heard = std::move(heard);
    line_->begin_answer();
    arm();
    if (line_->tls) {
      line_->tls->send(text);
      text = line_->tls->to_send();
    }
    write(std::move(text));
    if (!line_->reading) read();
  }

  void write(std::string text) {
    if (text.empty()) return;
    auto bytes = std::make_shared<std::string>(std::move(text));
    asio::async_write(line_->socket, asio::buffer(*bytes),
                      [weak = weak_from_this(), bytes, line = line_](const error_code& error, std::size_t) {
                        const auto self = weak.lock();
                        if (self && self->line_ == line && error) self->failed({etcd::Cause::away, "the connection broke"});
                      });
  }

  void read() {
    line_->reading = true;
    line_->socket.async_read_some(asio::buffer(line_->chunk),
                                  [weak = weak_from_this(), line = line_](const error_code& error, std::size_t count) {
                                    line->reading = false;
                                    const auto self = weak.lock();
                                    if (!self || self->line_ != line) return;
                                    if (error) return self->broke(error, *line);
                                    line->spoke = true;
                                    self->take({line->chunk.data(), count});
                                  });
  }

  /// etcd whose port speaks TLS closes a connection that begins otherwise.
  void broke(const error_code& error, const Line& line) {
    if (error == asio::error::eof && !line.spoke && busy_) {
      return failed({etcd::Cause::no_etcd, settings_.https ? "closes the connection without a word"
                                                           : "closes the connection without a word; perhaps it speaks "
                                                             "TLS (protocol=https)"});
    }
    failed({etcd::Cause::away, "the connection broke"});
  }

  void take(std::string_view bytes) {
    const auto line = line_;
    if (!line->tls) {
      line->input += bytes;
    } else {
      line->tls->receive(bytes, line->input);
      write(line->tls->to_send());
      if (const std::string& why = line->tls->failure(); !why.empty()) {
        hang_up();
        return failed({line->tls->refused() ? etcd::Cause::forbidden : etcd::Cause::away, why});
      }
      if (std::exchange(line->shaking, !line->tls->open()) && !line->shaking) {
        disarm();
        read();
        return go_on();
      }
    }
    parse();
    if (line_ == line && !line->reading) read();
  }

  void parse() {
    const auto line = line_;
    while (line->parser && !line->input.empty()) {
      error_code error;
      const std::size_t taken = line->parser->put(asio::buffer(line->input), error);
      line->input.erase(0, taken);
      if (error && error != http::error::need_more) {
        return failed({etcd::Cause::no_etcd, "is no etcd: " + error.message()});
      }
      if (line->parser->is_done()) break;
      if (taken == 0) return;
    }
    if (!line->parser || !line->parser->is_done()) return;
    disarm();
    auto message = line->parser->release();
    line->parser.reset();
    const Heard heard = std::exchange(line->heard, {});
    if (!message.keep_alive()) hang_up();
    heard(message.result_int(), std::move(message.body()));
  }

  /// A member that takes longer than that is left; its answer, if any, is nobody's.
  void arm() {
    limit_.expires_after(answer_limit);
    limit_.async_wait([weak = weak_from_this(), armed = ++armed_](const error_code& error) {
      const auto self = weak.lock();
      if (error || !self || self->armed_ != armed) return;
      self->failed({etcd::Cause::away, "no answer in 2 s"});
    });
  }

  void disarm() {
    ++armed_;
    limit_.cancel();
  }

  void answered(unsigned status, std::string body) {
    if (status == 200) {
      troubles_.clear();
      return finish({{}, std::move(body)});
    }
    failed(etcd::failure_of(status, body, !token_.empty()));
  }

  void failed(etcd::Failure why) {
    if (!busy_) return hang_up();  // the kept connection has ended, and nobody waits for an answer
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
    disarm();
    token_.clear();  // another member may not know it yet
    if (!line_) return;
    error_code ignored;
    line_->socket.close(ignored);
    line_.reset();
  }

  void finish(Answer answer) {
    disarm();
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
  std::uint64_t armed_ = 0;  ///< how often the limit was set or taken back
  bool renewed_ = false;   ///< the login, for this request
  std::shared_ptr<const EtcdTls> tls_;  ///< null: not used so far
  std::map<std::size_t, etcd::Failure> troubles_;
};

EtcdClient::EtcdClient(asio::io_context& loop, EtcdSettings settings)
    : impl_{std::make_shared<Impl>(loop, std::move(settings))} {}
EtcdClient::~EtcdClient() { impl_->close(); }
void EtcdClient::ask(etcd::Request request, Done done) { impl_->ask(std::move(request), std::move(done)); }
std::string EtcdClient::local_address() const { return impl_->local_address(); }
bool EtcdClient::none_is_etcd() const { return impl_->none_is_etcd(); }
void EtcdClient::disbelieve(const std::string& why) { impl_->disbelieve(why); }
std::string EtcdClient::trouble() const { return impl_->trouble(); }
std::optional<etcd::Failure> EtcdClient::verdict() const { return impl_->verdict(); }

}  // namespace torchup

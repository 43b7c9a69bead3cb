#include "rendezvous/net/store/store_proxy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "rendezvous/net/io/dialer.hpp"
#include "rendezvous/net/io/frame_socket.hpp"
#include "rendezvous/net/io/tls.hpp"

namespace torchup {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr Duration proxy_dial_limit = std::chrono::seconds{10};
constexpr Duration proxy_patience = std::chrono::seconds{60};
/// Workers are read no further while so much waits for the link.
constexpr std::size_t proxy_ahead_max = std::size_t{1} << 20;

}  // namespace

class StoreProxy::Impl : public std::enable_shared_from_this<StoreProxy::Impl> {
 public:
  Impl(asio::io_context& loop, StoreProxyOptions options)
      : loop_{loop}, options_{std::move(options)}, acceptor_{loop}, pause_{loop} {}

  Result<Port> listen() {
    if (!options_.token.empty()) {
      auto context = TlsContext::client(options_.token);
      if (!context) return context.error();
      tls_ = *std::move(context);
    }
    error_code error;
    acceptor_.open(tcp::v4(), error);
    if (!error) acceptor_.bind({asio::ip::address_v4::loopback(), 0}, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    const auto at = error ? tcp::endpoint{} : acceptor_.local_endpoint(error);
    if (error) return Error{error, "the port of the store proxy"};
    accept();
    return Port{at.port()};
  }

  void close() {
    over_ = true;
    error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel();
    drop_link();
  }

 private:
  /// A worker's connection.
  struct Worker {
    explicit Worker(tcp::socket connected) : socket{std::move(connected)} {}
    tcp::socket socket;
    std::string unsent = {};             ///< the store's answers that it has not taken
    bool reads = false, writes = false;  ///< it is waited for
    bool ended = false;                  ///< the store has closed it: it goes when it has taken the rest
  };
  using Workers = std::map<std::uint32_t, std::shared_ptr<Worker>>;

  void accept() {
    acceptor_.async_accept([weak = weak_from_this()](const error_code& error, tcp::socket socket) {
      const auto self = weak.lock();
      if (!self || self->over_) return;
      if (!error) {
        self->come(std::move(socket));
        return self->accept();
      }
      // Without a descriptor the kernel would tell of the newcomer again and again.
      self->pause_.expires_after(std::chrono::milliseconds{100});
      self->pause_.async_wait([weak](const error_code& stopped) {
        const auto impl = weak.lock();
        if (!stopped && impl && !impl->over_) impl->accept();
      });
    });
  }

  void come(tcp::socket socket) {
    error_code ignored;
    socket.non_blocking(true, ignored);
    socket.set_option(tcp::no_delay{true}, ignored);
    if (ready_) return admit(std::move(socket));
    waiting_.push_back(std::move(socket));
    if (!dialler_ && !link_) dial();
  }

  void admit(tcp::socket socket) {
    const auto channel = machine_.next();
    if (!channel) return say(fmt::format("a worker is closed: channels_max: {} are open", channels_max));
    workers_.emplace(channel->value(), std::make_shared<Worker>(std::move(socket)));
    step(channels::Came{*channel});
    wait_input(channel->value());
  }

  void say(std::string text) const {
    if (options_.log) options_.log({LogLevel::warning, "store proxy", "store proxy: " + std::move(text)});
  }

  // ---- the link

  void dial() {
    dialler_ = std::make_shared<Dialer>(loop_);
    dialler_->dial(options_.store, proxy_dial_limit, [weak = weak_from_this()](Result<tcp::socket> socket) {
      const auto self = weak.lock();
      if (!self || self->over_) return;
      self->dialler_.reset();
      if (!socket)
        return self->lose("the store's node " + to_string(self->options_.store) + ": " + socket.error().message());
      self->greet(std::move(*socket));
    });
  }

  void greet(tcp::socket socket) {
    link_ = std::make_shared<FrameSocket>(std::move(socket));
    machine_ = StoreChannels{StoreChannels::Side::opens};
    if (tls_) link_->secure(std::make_unique<TlsStream>(tls_));
    link_->set_patience(proxy_patience);
    link_->on_drained([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->read_on();
    });
    link_->start(
        [weak = weak_from_this()](std::string_view& input) {
          const auto self = weak.lock();
          if (!self) return FrameSocket::Rest::none;
          self->step(channels::Heard{std::exchange(input, {})});
          return self->link_ ? FrameSocket::Rest::more : FrameSocket::Rest::none;
        },
        [weak = weak_from_this()](const error_code& error) {
          if (const auto self = weak.lock()) self->lost(error);
        });
    std::string first{store_link_preface};
    first.append(reinterpret_cast<const char*>(options_.key.data()), options_.key.size());
    link_->write(first);
    ready_ = true;
    for (tcp::socket& each : std::exchange(waiting_, {})) admit(std::move(each));
  }

  void lost(const error_code& error) {
    const bool unsafe = link_ && link_->tls() && link_->tls()->state() == TlsStream::State::failed;
    std::string why = error ? error.message() : "it was closed";
    if (unsafe) {
      why = link_->tls()->failure() == TlsStream::Failure::wrong_token ? "the token there is not ours"
                                                                       : link_->tls()->why();
      link_->close();
    }
    lose("the link to " + to_string(options_.store) + " has ended: " + why);
  }

  void lose(const std::string& why) {
    say(why);
    drop_link();
  }

  void drop_link() {
    ready_ = false;
    if (dialler_) std::exchange(dialler_, {})->cancel();
    if (const auto link = std::exchange(link_, nullptr)) link->close();
    for (const auto& [number, worker] : std::exchange(workers_, {})) {
      error_code ignored;
      worker->socket.close(ignored);
    }
    waiting_.clear();
  }

  void step(const channels::Event& event) {
    for (channels::Action& action : machine_.step(event)) std::visit([this](auto& wanted) { perform(wanted); }, action);
  }

  void perform(const channels::Send& send) {
    if (link_) link_->write(send.bytes);
  }
  void perform(const channels::Begin&) {}
  void perform(const channels::Deliver& deliver) {
    const auto found = workers_.find(deliver.channel.value());
    if (found == workers_.end()) return;
    found->second->unsent += deliver.bytes;
    if (!found->second->writes) write(found->first, found->second);
  }
  void perform(const channels::Resume& resume) { wait_input(resume.channel.value()); }
  void perform(const channels::End& ended) {
    const auto found = workers_.find(ended.channel.value());
    if (found == workers_.end()) return;
    const auto worker = found->second;
    worker->ended = true;
    if (worker->unsent.empty()) forget(found->first);
  }
  void perform(const channels::Broken& broken) { lose("what the store's node says is not understood: " + broken.why); }

  // ---- workers

  void forget(std::uint32_t number) {
    const auto found = workers_.find(number);
    if (found == workers_.end()) return;
    error_code ignored;
    found->second->socket.close(ignored);
    workers_.erase(found);
  }

  void wait_input(std::uint32_t number) {
    const auto found = workers_.find(number);
    if (found == workers_.end() || found->second->reads || found->second->ended) return;
    if (machine_.room(ChannelId{number}) == 0 || (link_ && link_->unsent_bytes() >= proxy_ahead_max)) return;
    found->second->reads = true;
    found->second->socket.async_wait(
        tcp::socket::wait_read, [weak = weak_from_this(), number, worker = found->second](const error_code& error) {
          worker->reads = false;
          const auto self = weak.lock();
          if (error || !self || !worker->socket.is_open()) return;
          self->read(number, worker);
        });
  }

  void read(std::uint32_t number, const std::shared_ptr<Worker>& worker) {
    static thread_local std::array<char, channel_data_bytes_max> buffer;
    const std::size_t room = std::min(machine_.room(ChannelId{number}), buffer.size());
    error_code error;
    const std::size_t count = room == 0 ? 0 : worker->socket.read_some(asio::buffer(buffer.data(), room), error);
    if (error && error != asio::error::would_block) {
      forget(number);
      return step(channels::Left{ChannelId{number}});
    }
    if (!error && count > 0) step(channels::Said{ChannelId{number}, std::string{buffer.data(), count}});
    wait_input(number);
  }

  void read_on() {
    std::vector<std::uint32_t> numbers;
    for (const auto& [number, worker] : workers_) numbers.push_back(number);
    for (const std::uint32_t number : numbers) wait_input(number);
  }

  void write(std::uint32_t number, const std::shared_ptr<Worker>& worker) {
    error_code error;
    const std::size_t count = worker->socket.write_some(asio::buffer(worker->unsent), error);
    if (error && error != asio::error::would_block) {
      forget(number);
      return step(channels::Left{ChannelId{number}});
    }
    if (!error) worker->unsent.erase(0, count);
    if (worker->unsent.empty() && worker->ended) return forget(number);
    if (!worker->unsent.empty()) {
      worker->writes = true;
      worker->socket.async_wait(tcp::socket::wait_write,
                                [weak = weak_from_this(), number, worker](const error_code& failed) {
                                  worker->writes = false;
                                  const auto self = weak.lock();
                                  if (!failed && self && worker->socket.is_open()) self->write(number, worker);
                                });
    }
    if (!error && count > 0) step(channels::Took{ChannelId{number}, count});
  }

  asio::io_context& loop_;
  StoreProxyOptions options_;
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  std::shared_ptr<const TlsContext> tls_;
  std::shared_ptr<Dialer> dialler_;
  std::shared_ptr<FrameSocket> link_;
  bool ready_ = false;  ///< link_ takes channels
  bool over_ = false;
  std::deque<tcp::socket> waiting_;  ///< who came before that
  StoreChannels machine_{StoreChannels::Side::opens};
  Workers workers_;
};

StoreProxy::StoreProxy(asio::io_context& loop, StoreProxyOptions options)
    : impl_{std::make_shared<Impl>(loop, std::move(options))} {}
StoreProxy::~StoreProxy() { impl_->close(); }
Result<Port> StoreProxy::listen() { return impl_->listen(); }

}  // namespace torchup

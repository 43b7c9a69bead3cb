#include "rendezvous/net/store/store_gate.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <map>
#include <utility>
#include <vector>

#include "rendezvous/core/text/same_secret.hpp"
#include "rendezvous/net/io/frame_socket.hpp"
#include "rendezvous/net/io/listen.hpp"
#include "rendezvous/net/io/stranger_list.hpp"
#include "rendezvous/net/io/tls.hpp"
#include "rendezvous/net/store/store_server.hpp"
#include "rendezvous/net/store/store_session.hpp"

namespace torchup {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr Duration gate_hello_limit = std::chrono::seconds{10};  // from accept to the key
/// A node's machine that is gone is noticed by then.
constexpr Duration gate_patience = std::chrono::seconds{60};
/// What waits for a link that does not take it; then its workers' answers wait in the store.
constexpr std::size_t gate_ahead_max = std::size_t{1} << 20;

std::string_view text_of(const StoreKey& key) { return {reinterpret_cast<const char*>(key.data()), key.size()}; }

}  // namespace

class StoreGate::Impl : public std::enable_shared_from_this<StoreGate::Impl> {
 public:
  Impl(asio::io_context& loop, StoreServer& server, StoreGateOptions options)
      : loop_{loop}, server_{server}, options_{std::move(options)},
        strangers_{
            std::make_shared<StrangerList>(std::clamp<std::size_t>(descriptors_for_peers() / 4, 1, Strangers::limit))} {
  }

  Result<Port> listen();
  void close();
  [[nodiscard]] std::size_t link_count() const { return links_.size(); }

 private:
  class Link;

  void accept(tcp::acceptor& acceptor);
  void serve(tcp::socket socket);
  void log_closed(const std::string& address, const std::string& why) const {
    if (!options_.log) return;
    LogLine line{LogLevel::warning, "closed at the store's port", fmt::format("closed {}: {}", address, why)};
    options_.log(std::move(line).because_of(address));
  }

  asio::io_context& loop_;
  StoreServer& server_;
  StoreGateOptions options_;
  std::shared_ptr<StrangerList> strangers_;
  std::shared_ptr<const TlsContext> tls_;
  std::vector<std::unique_ptr<tcp::acceptor>> acceptors_;
  std::uint64_t next_id_ = 0;
  std::map<std::uint64_t, std::shared_ptr<Link>> links_;
};

/// One node's link: preface and key, then channels.
class StoreGate::Impl::Link final : public std::enable_shared_from_this<StoreGate::Impl::Link> {
 public:
  Link(Impl& impl, std::uint64_t id, tcp::socket socket)
      : impl_{impl.weak_from_this()}, server_{impl.server_}, id_{id},
        socket_{std::make_shared<FrameSocket>(std::move(socket))}, limit_{impl.loop_} {}

  void start(Impl& impl) {
    stranger_ =
        StrangerPlace{impl.strangers_, socket_->remote_address(), [weak = weak_from_this()](const std::string& why) {
                        const auto self = weak.lock();
                        if (!self) return;
                        self->socket_->poll();
                        if (self->stranger_) self->end(why);
                      }};
    limit_.expires_after(gate_hello_limit);
    limit_.async_wait([weak = weak_from_this()](const error_code& error) {
      const auto self = weak.lock();
      if (!error && self) self->end("it did not say what a store link says");
    });
    socket_->set_patience(gate_patience);
    socket_->on_drained([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->take_again();
    });
    socket_->start(
        [weak = weak_from_this()](std::string_view& input) {
          const auto self = weak.lock();
          return self ? self->read(input) : FrameSocket::Rest::none;
        },
        [weak = weak_from_this()](const error_code& error) {
          if (const auto self = weak.lock()) self->closed(error);
        });
  }

  /// `why`: for the log; empty: it is no news.
  void end(const std::string& why) {
    if (std::exchange(over_, true)) return;
    const auto self = shared_from_this();
    limit_.cancel();
    stranger_.settle();
    for (const auto& [number, client] : std::exchange(clients_, {})) {
      if (!client->gone) server_.leave(client->id);
    }
    socket_->close();
    const auto impl = impl_.lock();
    if (!impl) return;
    if (!why.empty()) impl->log_closed(socket_->remote_address(), why);
    impl->links_.erase(id_);
  }

 private:
  using Rest = FrameSocket::Rest;

  /// A worker of that node, as the store sees it.
  struct Client final : StoreSink {
    Client(Link& whose, ChannelId number) : link{whose}, channel{number} {}
    ssize_t take(std::span<const iovec> pieces) override { return link.take(*this, pieces); }
    void served(std::size_t unserved_bytes) override { link.served(*this, unserved_bytes); }
    void closed() override { link.store_closed(*this); }

    Link& link;
    ChannelId channel;
    ClientId id{0};
    std::size_t heard = 0;  ///< that was not given as taken
    bool full = false;      ///< it has answers for which there was no room
    bool gone = false;      ///< the store has closed it
  };

  Rest read(std::string_view& input) {
    if (!known_) {
      const Rest rest = greet(input);
      if (!known_) return rest;
    }
    const std::string_view bytes = std::exchange(input, {});
    if (!bytes.empty()) step(channels::Heard{bytes});
    return over_ ? Rest::none : Rest::more;
  }

  Rest greet(std::string_view& input) {
    const auto impl = impl_.lock();
    if (!impl || input.empty()) return impl ? Rest::more : Rest::none;
    if (impl->tls_ && !socket_->tls()) {
      if (!begins_tls(static_cast<unsigned char>(input.front())))
        return refuse("without the job's token nobody is served here");
      socket_->secure(std::make_unique<TlsStream>(impl->tls_));
      return Rest::more;
    }
    if (!impl->tls_ && begins_tls(static_cast<unsigned char>(input.front()))) {
      socket_->write(no_tls_here);
      return refuse("it has a token, and this job has none");
    }
    if (impl->tls_ && !socket_->proved()) return refuse("it did not prove the job's token");
    const auto common = std::min(input.size(), store_link_preface.size());
    if (input.substr(0, common) != store_link_preface.substr(0, common)) {
      return refuse("with --store-proxy only torchup's own links are served here");
    }
    if (input.size() < store_link_preface.size() + sizeof(StoreKey)) return Rest::more;
    if (!same_secret(input.substr(store_link_preface.size(), sizeof(StoreKey)), text_of(impl->options_.key))) {
      return refuse("it is a link of another round");
    }
    input.remove_prefix(store_link_preface.size() + sizeof(StoreKey));
    known_ = true;
    stranger_.settle();
    limit_.cancel();
    return Rest::more;
  }

  Rest refuse(const std::string& why) {
    end(why);
    return Rest::none;
  }

  void closed(const error_code& error) {
    if (error == boost::system::errc::protocol_error)
      return end("its token is not this job's, or it speaks another language");
    end(known_ || !error ? "" : error.message());
  }

  // ---- channels

  void step(const channels::Event& event) {
    for (channels::Action& action : machine_.step(event)) {
      if (over_) return;
      std::visit([this](auto& wanted) { perform(wanted); }, action);
    }
  }

  /// What many answer in one turn of the store leaves at once.
  void perform(channels::Send& send) {
    unsent_ += send.bytes;
    if (std::exchange(flush_comes_, true)) return;
    asio::post(limit_.get_executor(), [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self || self->over_) return;
      self->flush_comes_ = false;
      self->socket_->write(std::exchange(self->unsent_, {}));
      if (self->socket_->unsent_bytes() == 0) self->take_again();  // nobody tells that it has drained
    });
  }

  void perform(const channels::Begin& begin) {
    auto client = std::make_unique<Client>(*this, begin.channel);
    const auto joined = server_.join(*client, socket_->remote_address());
    if (!joined) return step(channels::Left{begin.channel});
    client->id = *joined;
    clients_.insert_or_assign(begin.channel.value(), std::move(client));
  }

  void perform(const channels::Deliver& deliver) {
    const auto found = clients_.find(deliver.channel.value());
    if (found == clients_.end() || found->second->gone) return;
    found->second->heard += deliver.bytes.size();
    server_.hear(found->second->id, deliver.bytes);
    forget_gone();
  }

  void perform(const channels::Resume& resume) {
    const auto found = clients_.find(resume.channel.value());
    if (found == clients_.end() || found->second->gone || !std::exchange(found->second->full, false)) return;
    server_.take_again(found->second->id);
    forget_gone();
  }

  void perform(const channels::End& ended) {
    const auto found = clients_.find(ended.channel.value());
    if (found == clients_.end()) return;
    if (!found->second->gone) server_.leave(found->second->id);
    clients_.erase(found);
  }

  void perform(const channels::Broken& broken) { end("its link is not understood: " + broken.why); }

  // ---- what the store calls, within its turn

  ssize_t take(Client& client, std::span<const iovec> pieces) {
    std::size_t room = machine_.room(client.channel);
    if (unsent_.size() + socket_->unsent_bytes() >= gate_ahead_max) room = 0;
    std::string bytes;
    for (const iovec& piece : pieces) {
      if (bytes.size() >= room) break;
      bytes.append(static_cast<const char*>(piece.iov_base), std::min(piece.iov_len, room - bytes.size()));
    }
    if (bytes.empty()) {
      client.full = true;
      return -EAGAIN;
    }
    const auto taken = static_cast<ssize_t>(bytes.size());
    step(channels::Said{client.channel, std::move(bytes)});
    return taken;
  }

  void served(Client& client, std::size_t unserved) {
    const std::size_t taken = client.heard - std::min(client.heard, unserved);
    client.heard -= taken;
    if (taken > 0) step(channels::Took{client.channel, taken});
  }

  void store_closed(Client& client) {
    client.gone = true;
    some_gone_ = true;
    step(channels::Left{client.channel});
    asio::post(limit_.get_executor(), [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->forget_gone();
    });
  }

  /// Not while the store holds them.
  void forget_gone() {
    if (std::exchange(some_gone_, false)) std::erase_if(clients_, [](const auto& each) { return each.second->gone; });
  }

  /// The link has taken all that waited for it.
  void take_again() {
    std::vector<ClientId> waiting;
    for (const auto& [number, client] : clients_) {
      if (!client->gone && std::exchange(client->full, false)) waiting.push_back(client->id);
    }
    for (const ClientId client : waiting) server_.take_again(client);
    forget_gone();
  }

  const std::weak_ptr<Impl> impl_;
  StoreServer& server_;
  const std::uint64_t id_;
  const std::shared_ptr<FrameSocket> socket_;
  asio::steady_timer limit_;
  StrangerPlace stranger_;
  StoreChannels machine_{StoreChannels::Side::serves};
  std::map<std::uint32_t, std::unique_ptr<Client>> clients_;
  std::string unsent_;
  bool flush_comes_ = false;
  bool some_gone_ = false;
  bool known_ = false;
  bool over_ = false;
};

Result<Port> StoreGate::Impl::listen() {
  if (!options_.token.empty()) {
    auto context = TlsContext::server({.token = options_.token});
    if (!context) return context.error();
    tls_ = *std::move(context);
  }
  auto listeners = listen_on(options_.bind, options_.port, gate_patience);
  if (!listeners) return listeners.error();
  for (UniqueFd& socket : listeners->sockets) {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
    auto acceptor = std::make_unique<tcp::acceptor>(loop_);
    error_code error;
    acceptor->assign(address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), socket.release(), error);
    if (error) return Error{error, "the port of store links"};
    acceptors_.push_back(std::move(acceptor));
    accept(*acceptors_.back());
  }
  return listeners->port;
}

void StoreGate::Impl::accept(tcp::acceptor& acceptor) {
  acceptor.async_accept([weak = weak_from_this(), &acceptor](const error_code& error, tcp::socket socket) {
    const auto self = weak.lock();
    if (!self || !acceptor.is_open()) return;
    if (!error) self->serve(std::move(socket));
    if (!error || error == asio::error::connection_aborted) return self->accept(acceptor);
    if (self->strangers_->give_descriptor()) return self->accept(acceptor);
    // Without a descriptor the kernel would tell of the newcomer again and again.
    const auto pause = std::make_shared<asio::steady_timer>(self->loop_, std::chrono::milliseconds{100});
    pause->async_wait([weak, &acceptor, pause](const error_code&) {
      const auto impl = weak.lock();
      if (impl && acceptor.is_open()) impl->accept(acceptor);
    });
  });
}

void StoreGate::Impl::serve(tcp::socket socket) {
  const std::uint64_t id = next_id_++;
  const auto link = std::make_shared<Link>(*this, id, std::move(socket));
  links_.emplace(id, link);
  link->start(*this);
}

void StoreGate::Impl::close() {
  for (const auto& acceptor : acceptors_) {
    error_code ignored;
    acceptor->close(ignored);
  }
  for (const auto& [id, link] : std::map{links_}) link->end("");
}

StoreGate::StoreGate(asio::io_context& loop, StoreServer& server, StoreGateOptions options)
    : impl_{std::make_shared<Impl>(loop, server, std::move(options))} {}
StoreGate::~StoreGate() { impl_->close(); }
Result<Port> StoreGate::listen() { return impl_->listen(); }
std::size_t StoreGate::link_count() const { return impl_->link_count(); }

}  // namespace torchup

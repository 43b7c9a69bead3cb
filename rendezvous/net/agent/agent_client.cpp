#include "rendezvous/net/agent/agent_client.hpp"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>

#include "rendezvous/core/link/operations_pacing.hpp"
#include "rendezvous/net/io/dialer.hpp"
#include "rendezvous/net/io/frame_socket.hpp"
#include "rendezvous/net/io/lasting_clock.hpp"
#include "rendezvous/net/io/node_identity.hpp"
#include "rendezvous/net/io/tls.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr const char* cut_text = "the way is cut by a rehearsal";
constexpr Duration last_words_limit = std::chrono::seconds{2};  // for the coordinator to take our last words

CoordinatorLinkSettings machine_settings(const AgentClientSettings& settings, bool directed) {
  CoordinatorLinkSettings machine{.endpoint = settings.endpoint,
                                  .run_id = settings.run_id,
                                  .join_timeout = settings.join_timeout,
                                  .further_ports = settings.further_ports,
                                  .endpoints = settings.endpoints,
                                  .directed = directed,
                                  .known_as = settings.known_as,
                                  .one_connection = settings.connection >= 0,
                                  .seed = std::random_device{}()};
  machine.has_token = !settings.token.empty();
  return machine;
}

/// Throws where there is no OpenSSL: a program with a token has looked for it before (prepare_proofs).
std::shared_ptr<const TlsContext> context_of(const std::string& token) {
  if (token.empty()) return nullptr;
  auto context = TlsContext::client(token);
  if (!context) throw std::runtime_error{context.error().message()};
  return *std::move(context);
}

class Client final : public std::enable_shared_from_this<Client> {
 public:
  Client(asio::io_context& loop, AgentClientSettings settings, AgentLink::Handler handler, bool directed)
      : loop_{loop}, settings_{std::move(settings)}, handler_{std::move(handler)}, timer_{loop},
        machine_{machine_settings(settings_, directed), settings_.since}, tls_{context_of(settings_.token)},
        given_{settings_.connection >= 0} {}

  void start() {
    asio::post(loop_, [self = shared_from_this()] { self->step(link::Wake{}); });
  }

  void send(AgentMessage message) {
    if (auto* join = std::get_if<Join>(&message)) *join = completed(std::move(*join), machine_.incarnation());
    step(link::Say{std::move(message)});
  }

  void direct(const link::Event& told) { step(told); }
  void report_progress(const ProgressReport& report) { step(link::Report{report}); }
  void report_node(const NodeReport& report) { step(link::ReportNode{report}); }
  [[nodiscard]] bool reaches() const { return machine_.reaches(); }
  [[nodiscard]] std::optional<ClockOffset::Estimate> clock() const { return machine_.clock(); }
  [[nodiscard]] std::optional<Duration> day_ahead() const {
    const auto theirs = machine_.day();
    if (!theirs) return std::nullopt;
    const Duration ours = std::chrono::system_clock::now().time_since_epoch() - settings_.clock().time_since_epoch();
    return ours - theirs->offset;
  }

  void set_cut(bool cut) {
    cut_ = cut;
    if (!cut) return;
    for (const auto& [line, socket] : std::exchange(sockets_, {})) {
      socket->reset();
      step(link::Closed{line, cut_text});
    }
    // A dial that is under way ends as any into nowhere: without an answer.
    if (dialler_) std::exchange(dialler_, {})->cancel();
    if (const auto line = std::exchange(dialling_, std::nullopt)) step(link::DialFailed{*line, false, cut_text});
  }

  void finish(Duration linger, std::function<void()> done) {
    step(link::Finish{});
    if (sockets_.empty()) return asio::post(loop_, std::move(done));
    finished_ = std::move(done);
    timer_.start(std::min<Duration>(linger, last_words_limit), [self = shared_from_this()] { self->say_finished(); });
  }

  /// The link is destroyed.
  void let_go() {
    handler_ = {};
    finished_ = {};
    step(link::Finish{});
    timer_.cancel();
    for (const auto& [line, socket] : std::exchange(sockets_, {})) socket->close();
  }

 private:
  void step(const link::Event& event) {
    const TimePoint now = settings_.clock();
    for (link::Action& action : machine_.step(event, now, std::chrono::steady_clock::now())) {
      std::visit([&](auto& wanted) { perform(wanted); }, action);
    }
    if (finished_) return;
    const auto deadline = machine_.deadline();
    if (!deadline) {
      timer_.cancel();
      return;
    }
    timer_.start(*deadline - now, [self = shared_from_this()] { self->step(link::Wake{}); });
  }

  void perform(const link::Dial& dial) {
    dialling_ = dial.line;
    if (cut_) return fail_dial(dial.line, cut_text);
    if (given_) return use_given(dial.line);
    dialler_ = std::make_shared<Dialer>(loop_);
    Endpoint endpoint = dial.endpoint.value_or(settings_.endpoint);
    endpoint.port = dial.port.value_or(endpoint.port);
    dialler_->dial(endpoint, dial.limit,
                   [weak = weak_from_this(), line = dial.line](Result<asio::ip::tcp::socket> socket) {
                     const auto self = weak.lock();
                     if (!self) return;
                     self->dialler_.reset();
                     self->dialling_.reset();
                     if (socket) return self->dialled(line, std::move(*socket));
                     const bool refused = socket.error().code == boost::system::errc::connection_refused;
                     self->step(link::DialFailed{line, refused, socket.error().message()});
                   });
  }

  /// In the loop's turn, as any answer.
  void fail_dial(LineId line, const char* why) {
    asio::post(loop_, [weak = weak_from_this(), line, why] {
      const auto self = weak.lock();
      if (!self || self->dialling_ != line) return;
      self->dialling_.reset();
      self->step(link::DialFailed{line, false, why});
    });
  }

  void use_given(LineId line) {
    UniqueFd given{std::exchange(settings_.connection, -1)};
    if (!given) return fail_dial(line, "the connection to where the job was started has ended");
    asio::ip::tcp::socket socket{loop_};
    error_code error;
    // Whatever socket it is: it is read and written, and that is all.
    socket.assign(asio::ip::tcp::v4(), given.get(), error);
    if (error) return fail_dial(line, "the connection to where the job was started cannot be used");
    static_cast<void>(given.release());
    dialling_.reset();
    asio::post(loop_, [weak = weak_from_this(), line, connected = std::move(socket)]() mutable {
      if (const auto self = weak.lock()) self->dialled(line, std::move(connected));
    });
  }

  void dialled(LineId line, asio::ip::tcp::socket connected) {
    const auto socket = std::make_shared<FrameSocket>(std::move(connected));
    sockets_.emplace(line, socket);
    if (tls_) socket->secure(std::make_unique<TlsStream>(tls_));
    socket->start(
        [weak = weak_from_this(), line](std::string_view& input) {
          const auto self = weak.lock();
          return self && self->read(line, input) ? FrameSocket::Rest::more : FrameSocket::Rest::none;
        },
        [weak = weak_from_this(), line](const error_code& error) {
          if (const auto self = weak.lock()) self->closed(line, error);
        });
    socket->write(agent_preface);
    step(link::Dialled{line});
  }

  bool read(LineId line, std::string_view& input) {
    while (sockets_.contains(line)) {
      auto frame = take_coordinator_frame(input);
      if (!frame) {
        step(link::Garbled{line, frame.error().message()});
        return false;
      }
      if (!frame->has_value()) return true;
      const link::Heard heard{line, std::move(**frame)};
      step(heard);
    }
    return false;
  }

  void closed(LineId line, const error_code& error) {
    const auto found = sockets_.find(line);
    const auto socket = found == sockets_.end() ? nullptr : found->second;
    if (socket) sockets_.erase(found);
    const bool unsafe = socket && socket->tls() && socket->tls()->state() == TlsStream::State::failed;
    if (unsafe) {
      socket->close();
      not_safe(line, *socket->tls());
    } else {
      step(link::Closed{line, error ? error.message() : ""});
    }
    if (sockets_.empty()) say_finished();
  }

  /// What the encryption says of who answers.
  void not_safe(LineId line, const TlsStream& tls) {
    switch (tls.failure()) {
      case TlsStream::Failure::none_there:
        return step(link::NotProved{line, "the coordinator there has no token: start both with it, or none"});
      case TlsStream::Failure::wrong_token:
        return step(link::NotProved{line, "the token of the coordinator there is not ours"});
      case TlsStream::Failure::other_language:
      case TlsStream::Failure::broken:
      case TlsStream::Failure::none:
        return step(link::Garbled{line, "it does not speak TLS as we do: " + tls.why()});
    }
  }

  void perform(link::Write& write) {
    const auto socket = sockets_.find(write.line);
    if (socket == sockets_.end()) return;
    if (auto* const answer = std::get_if<Answer>(&write.frame)) keep_room(*answer, socket->second->unsent_bytes());
    socket->second->write(encode(write.frame));
  }

  void perform(const link::Close& close) {
    const auto found = sockets_.find(close.line);
    if (found == sockets_.end()) {
      dialling_.reset();
      if (dialler_) std::exchange(dialler_, {})->cancel();
    } else if (close.how == link::Close::How::after_writes) {
      found->second->close_after_writes();
    } else {
      const auto socket = found->second;
      sockets_.erase(found);
      socket->reset();
    }
  }

  void perform(const link::SetPatience& wanted) {
    if (const auto socket = sockets_.find(wanted.line); socket != sockets_.end()) {
      socket->second->set_patience(wanted.patience);
    }
  }

  void perform(link::Tell& tell) {
    asio::post(loop_, [self = shared_from_this(), event = std::move(tell.event)]() mutable {
      const AgentLink::Handler handler = self->handler_;  // which may destroy the link
      if (handler) handler(std::move(event));
    });
  }

  void perform(const link::MeetForeigner&) {
    if (settings_.on_foreign) asio::post(loop_, settings_.on_foreign);
  }
  void perform(const link::NobodyListens&) {
    if (settings_.on_refused) asio::post(loop_, settings_.on_refused);
  }

  void perform(const link::Attends& attends) {
    if (settings_.on_attends) asio::post(loop_, [tell = settings_.on_attends, term = attends.term] { tell(term); });
  }
  void perform(const link::Doubts&) {
    if (settings_.on_doubts) asio::post(loop_, settings_.on_doubts);
  }
  void perform(const link::SawEnd& saw) {
    if (settings_.on_saw_end) asio::post(loop_, [tell = settings_.on_saw_end, term = saw.term] { tell(term); });
  }

  void say_finished() {
    const auto done = std::exchange(finished_, {});
    if (!done) return;
    timer_.cancel();
    asio::post(loop_, done);
  }

  asio::io_context& loop_;
  AgentClientSettings settings_;
  AgentLink::Handler handler_;
  LastingTimer timer_;  ///< of the machine, then of the goodbye
  CoordinatorLink machine_;
  const std::shared_ptr<const TlsContext> tls_;  ///< null: there is no token
  const bool given_;                             ///< AgentClientSettings::connection
  std::shared_ptr<Dialer> dialler_;
  std::optional<LineId> dialling_;  ///< a Dial that was not answered yet
  bool cut_ = false;                ///< AgentLink::set_cut
  std::map<LineId, std::shared_ptr<FrameSocket>> sockets_;
  std::function<void()> finished_;
};

class ClientLink final : public DirectedLink {
 public:
  explicit ClientLink(std::shared_ptr<Client> client) : client_{std::move(client)} { client_->start(); }
  ~ClientLink() override { client_->let_go(); }
  void direct(std::int64_t term, std::vector<Endpoint> endpoints) override {
    client_->direct(link::Directed{term, std::move(endpoints)});
  }
  void undirected(std::string why, int exit_code) override {
    client_->direct(link::Undirected{std::move(why), exit_code});
  }
  void ended(Verdict verdict) override { client_->direct(link::Ended{std::move(verdict)}); }
  void send(AgentMessage message) override { client_->send(std::move(message)); }
  void report_progress(const ProgressReport& report) override { client_->report_progress(report); }
  void report_node(const NodeReport& report) override { client_->report_node(report); }
  [[nodiscard]] bool reaches() const override { return client_->reaches(); }
  [[nodiscard]] std::optional<ClockOffset::Estimate> clock() const override { return client_->clock(); }
  bool set_cut(bool cut) override {
    client_->set_cut(cut);
    return true;
  }
  [[nodiscard]] std::optional<Duration> day_ahead() const override { return client_->day_ahead(); }
  void finish(Duration linger, std::function<void()> done) override { client_->finish(linger, std::move(done)); }

 private:
  std::shared_ptr<Client> client_;
};

}  // namespace

std::unique_ptr<AgentLink> connect_agent(asio::io_context& loop, AgentClientSettings settings,
                                         AgentLink::Handler handler) {
  return std::make_unique<ClientLink>(std::make_shared<Client>(loop, std::move(settings), std::move(handler), false));
}

std::unique_ptr<DirectedLink> connect_directed(asio::io_context& loop, AgentClientSettings settings,
                                               AgentLink::Handler handler) {
  return std::make_unique<ClientLink>(std::make_shared<Client>(loop, std::move(settings), std::move(handler), true));
}

}  // namespace torchup

// One class behind its pointer, a little longer than 400 lines: sessions and their limits share its sets of strangers.
#include "rendezvous/net/coordinator/agent_sessions.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "rendezvous/core/link/agent_codec.hpp"
#include "rendezvous/core/link/operations_pacing.hpp"
#include "rendezvous/net/coordinator/agent_hello.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/io/address.hpp"
#include "rendezvous/net/io/frame_socket.hpp"
#include "rendezvous/net/io/listen.hpp"

namespace torchup {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;

constexpr Duration attending_patience = std::chrono::seconds{12};  // of who names no job, and has no lease
constexpr Duration goodbye_limit = std::chrono::seconds{2};        // for a refused agent to read why

class AgentSessions::Impl : public std::enable_shared_from_this<AgentSessions::Impl> {
 public:
  Impl(asio::io_context& loop, Coordinator& coordinator, AgentSessionsOptions options)
      : loop_{loop}, coordinator_{coordinator}, options_{std::move(options)} {
    const std::size_t share = std::max<std::size_t>(1, descriptors_for_peers() / 4);
    if (!options_.strangers)
      options_.strangers = std::make_shared<StrangerList>(std::min(options_.unproven_max, share));
    options_.newcomers_max = std::min(options_.newcomers_max, share);
    if (options_.tls || options_.token.empty()) return;
    auto context = TlsContext::server({.token = options_.token});
    if (!context) throw std::runtime_error{context.error().message()};  // it was looked for before (prepare_proofs)
    options_.tls = [made = *std::move(context)] { return made; };
  }

  void begin() {
    memory_->exceeded = [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self || std::exchange(self->dropping_, true)) return;
      asio::post(self->loop_, [weak] {
        if (const auto impl = weak.lock()) impl->drop_largest();
      });
    };
    coordinator_.when_moved([weak = weak_from_this()](const Elsewhere& elsewhere) {
      if (const auto self = weak.lock()) self->send_elsewhere(elsewhere);
    });
  }

  void serve(UniqueFd fd);
  bool drop_newcomer(const std::string& why);
  void close_all();
  void set_cut(bool cut);
  [[nodiscard]] std::size_t count() const { return sessions_.size(); }

 private:
  class Session;

  /// Something that the peer at `address` caused. `kind`: what its like have in common.
  void log(std::string kind, const std::string& address, std::string text) const {
    if (!options_.log) return;
    LogLine line{LogLevel::warning, std::move(kind), std::move(text)};
    options_.log(std::move(line).because_of(address));
  }
  void log_closed(const std::string& address, const std::string& why) const {
    log("an agent's connection closed", address, fmt::format("connection from {} closed: {}", address, why));
  }
  void remove(std::uint64_t id);
  void make_room();
  void drop_largest();
  void send_elsewhere(const Elsewhere& elsewhere);
  void drop_stranger(std::uint64_t id, const std::string& why);
  /// Drops the oldest who has not joined, unless what it has said meanwhile is a join. False: there is none.
  bool drop_oldest(const std::string& why);

  asio::io_context& loop_;
  Coordinator& coordinator_;
  AgentSessionsOptions options_;
  std::uint64_t next_id_ = 0;
  /// Not joined yet, by age, apart from the others: to find them must not cost more the more agents there are.
  std::set<std::uint64_t> newcomers_;
  std::size_t unwelcome_ = 0;  ///< not welcomed yet
  bool dropping_ = false;
  bool cut_ = false;  ///< AgentSessions::set_cut
  std::shared_ptr<FrameMemory> memory_ = std::make_shared<FrameMemory>(FrameMemory{options_.frames_bytes_max, {}});
  std::map<std::uint64_t, std::unique_ptr<Session>> sessions_;  ///< by age
};

/// One connection: perhaps TLS, and in it preface, hello, then messages.
class AgentSessions::Impl::Session final : public Coordinator::Listener {
 public:
  Session(Impl& impl, std::uint64_t id, tcp::socket socket)
      : impl_{impl}, id_{id}, socket_{std::make_shared<FrameSocket>(std::move(socket))}, limit_{impl.loop_} {
    ++impl_.unwelcome_;
  }
  ~Session() override {
    no_stranger();
    impl_.newcomers_.erase(id_);
    socket_->close();
  }

  /// For whom another one may have to go.
  void be_stranger(const std::shared_ptr<StrangerList>& list) {
    stranger_ = StrangerPlace{list, socket_->remote_address(),
                              [weak = impl_.weak_from_this(), id = id_](const std::string& why) {
                                if (const auto impl = weak.lock()) impl->drop_stranger(id, why);
                              }};
  }
  [[nodiscard]] bool welcomed() const { return !unwelcome_; }

  void start() {
    end_after(impl_.options_.hello_limit, "it did not say what an agent says");
    socket_->set_frame_limit(impl_.options_.frame_limit);
    socket_->count_in(impl_.memory_);
    socket_->on_fault(
        [weak = impl_.weak_from_this(), address = socket_->remote_address()](const std::exception& fault) {
          if (const auto impl = weak.lock()) impl->log_closed(address, fmt::format("internal fault: {}", fault.what()));
        });
    socket_->start([this](std::string_view& input) { return read(input); },
                   [this](const boost::system::error_code& error) { closed(error); });
  }

  void close() { socket_->close(); }
  void cut_off() {
    socket_->reset();
    if (attendance_) std::exchange(attendance_, {})->gone(false);
  }
  void drop(const std::string& why) { reject(why); }
  void poll() { socket_->poll(); }
  /// Another coordinates, or nobody: it is no end of ours that it shall see in the end of this connection.
  void send_elsewhere(Elsewhere elsewhere) {
    if (state_ != State::open) return;
    write(std::move(elsewhere));
    if (attendance_) std::exchange(attendance_, {})->gone(false);
    refused_ = true;
    socket_->close_after_writes();
    end_after(goodbye_limit, "");
  }
  [[nodiscard]] bool joined() const { return joined_; }
  [[nodiscard]] std::size_t held_bytes() const { return socket_->held_bytes(); }

  void tell(CoordinatorMessage message) override {
    if (auto* const answer = std::get_if<Answer>(&message)) keep_room(*answer, socket_->unsent_bytes());
    std::visit([&](auto& said) { write(std::move(said)); }, message);
  }
  void let_go(std::string reason) override {
    asio::post(impl_.loop_, [weak = impl_.weak_from_this(), id = id_, why = std::move(reason)] {
      const auto impl = weak.lock();
      if (!impl) return;
      const auto found = impl->sessions_.find(id);
      if (found != impl->sessions_.end()) found->second->reject(why);
    });
  }
  void refuse(int exit_code, std::string reason) override {
    log_refused(reason);
    refused_ = true;
    say_goodbye(exit_code, std::move(reason));
  }

 private:
  enum class State { preface, hello, open };

  void no_stranger() {
    stranger_.settle();
    if (std::exchange(unwelcome_, false)) --impl_.unwelcome_;
  }

  void say_goodbye(int exit_code, std::string reason) {
    write(Refused{exit_code, std::move(reason)});
    socket_->close_after_writes();
    end_after(goodbye_limit, "");
  }

  /// For connections that are not, or no longer, an agent's.
  void end_after(Duration limit, const std::string& line) {
    limit_.expires_after(limit);
    limit_.async_wait(
        [weak = impl_.weak_from_this(), id = id_, line, set = ++limit_set_](const boost::system::error_code& error) {
          const auto impl = weak.lock();
          if (error || !impl) return;
          const auto found = impl->sessions_.find(id);
          // It may have run out in the turn in which it was taken back.
          if (found == impl->sessions_.end() || found->second->limit_set_ != set) return;
          if (!line.empty()) found->second->log_closed(line);
          impl->sessions_.erase(found);
        });
  }

  void log_refused(const std::string& reason) const {
    impl_.log("agent refused", socket_->remote_address(),
              fmt::format("agent at {} refused: {}", socket_->remote_address(), reason));
  }
  void log_closed(const std::string& why) const { impl_.log_closed(socket_->remote_address(), why); }

  void write(CoordinatorFrame frame) { socket_->write(encode(frame)); }

  /// A frame may end the connection that it came on.
  FrameSocket::Rest read(std::string_view& input) {
    using Rest = FrameSocket::Rest;
    if (input.empty()) return Rest::more;
    const auto first = static_cast<unsigned char>(input.front());
    if (state_ == State::preface && !socket_->tls() && begins_tls(first)) return begin_tls();
    if (state_ == State::preface && socket_->tls() && first >= 'A' && first <= 'Z' && impl_.options_.https) {
      no_stranger();  // or its own guest could push it out
      FrameSocket::Parts parts = socket_->release();
      impl_.options_.https(std::move(parts.socket), std::move(parts.tls), std::string{input});
      impl_.remove(id_);
      return Rest::none;
    }
    if (state_ == State::preface) {
      const auto common = std::min(input.size(), agent_preface.size());
      if (input.substr(0, common) != agent_preface.substr(0, common)) {
        reject("it speaks another language");
        return Rest::none;
      }
      if (input.size() < agent_preface.size()) return Rest::more;
      input.remove_prefix(agent_preface.size());
      state_ = State::hello;
    }
    const TimePoint turn_ends = std::chrono::steady_clock::now() + impl_.options_.turn_limit;
    for (int frames = 0; !refused_; ++frames) {
      const bool over = frames == impl_.options_.frames_of_turn_max || std::chrono::steady_clock::now() >= turn_ends;
      if (frames > 0 && over) return Rest::turn;
      auto frame = take_agent_frame(input, state_ == State::open ? frame_bytes_max : hello_bytes_max);
      if (!frame) {
        reject(frame.error().message());
        return Rest::none;
      }
      if (!frame->has_value()) return Rest::more;
      if (!std::visit([&](auto& said) { return on(said); }, **frame)) return Rest::none;
    }
    return Rest::none;
  }

  /// A client that has a token is told in its language that there is none here.
  FrameSocket::Rest begin_tls() {
    auto context = impl_.options_.tls ? impl_.options_.tls() : nullptr;
    if (context) {
      socket_->secure(std::make_unique<TlsStream>(std::move(context)));
      return FrameSocket::Rest::more;
    }
    log_refused("it has a token, or wants https, and this coordinator has neither token nor certificate");
    refused_ = true;
    socket_->write(no_tls_here);
    socket_->close_after_writes();
    end_after(goodbye_limit, "");
    return FrameSocket::Rest::none;
  }

  bool on(Hello& hello) {
    if (state_ != State::hello) return reject("it said hello twice");
    if (std::string why = why_unwelcome(hello, socket_->remote_address(), socket_->proved(), impl_.options_);
        !why.empty()) {
      refuse(68, std::move(why));
      return false;
    }
    hello_ = std::move(hello);
    version_ = common_version(hello_);
    return welcome();
  }

  /// Not at once: who tries tokens by the thousand shall wait for each.
  void tell_wrong_token() {
    log_refused("the agent's token is not this coordinator's");
    refused_ = true;
    limit_.expires_after(impl_.options_.wrong_proof_delay);
    limit_.async_wait(
        [weak = impl_.weak_from_this(), id = id_, set = ++limit_set_](const boost::system::error_code& error) {
          const auto impl = weak.lock();
          if (error || !impl) return;
          const auto found = impl->sessions_.find(id);
          if (found != impl->sessions_.end() && found->second->limit_set_ == set) impl->sessions_.erase(found);
        });
  }

  /// Another coordinator, which wants to see this one end, and names no job.
  [[nodiscard]] bool only_attends() const { return hello_.run_id.value().empty(); }

  bool welcome() {
    if (const auto& elsewhere = impl_.coordinator_.elsewhere()) {
      state_ = State::open;
      send_elsewhere(*elsewhere);
      return false;
    }
    const std::int64_t term = impl_.coordinator_.right().term;
    if (only_attends()) {
      state_ = State::open;
      no_stranger();
      joined_ = true;
      impl_.newcomers_.erase(id_);
      limit_.cancel();
      ++limit_set_;
      socket_->set_patience(attending_patience);
      write(Welcome{version_, false, term});
      return true;
    }
    attendance_ = impl_.coordinator_.open(
        hello_.run_id, {.observed = socket_->remote_address(), .coordinator = socket_->local_address()}, *this);
    if (!attendance_) {
      refuse(68, fmt::format("jobs_max: this coordinator holds {} jobs", jobs_max));
      return false;
    }
    state_ = State::open;
    no_stranger();
    end_after(impl_.options_.join_limit, "it was welcomed and did not join");
    write(Welcome{version_, impl_.options_.embedded, term});
    return true;
  }

  bool on(KeepAlive& keep_alive) {
    if (state_ != State::open) return reject("it spoke before it was welcome");
    Coordinator::Right right = impl_.coordinator_.right();
    if (attendance_) {
      attendance_->alive();
      if (keep_alive.report) attendance_->progressed(*keep_alive.report);
      if (keep_alive.node) attendance_->reported(*keep_alive.node);
      right = attendance_->answers(keep_alive.number, keep_alive.seen);
    }
    const std::chrono::nanoseconds clock = std::chrono::steady_clock::now().time_since_epoch();
    const std::chrono::nanoseconds day = std::chrono::system_clock::now().time_since_epoch();
    write(KeepAliveAnswer{keep_alive.number, clock.count(), day.count(), right.age, right.seated, right.term});
    return true;
  }
  /// It has found our successor, and is not lost.
  bool on(Moved& moved) {
    if (state_ != State::open) return reject("it spoke before it was welcome");
    if (attendance_) std::exchange(attendance_, {})->gone(false);
    impl_.coordinator_.met(moved.term, moved.endpoints);
    return true;
  }
  bool on(Resume& resume) {
    if (state_ != State::open) return reject("it spoke before it was welcome");
    if (!attendance_) return reject("it named no job");
    joins(resume.join);
    attendance_->resumed(std::move(resume));
    return true;
  }
  bool on(auto& message) {
    if (state_ != State::open) return reject("it spoke before it was welcome");
    if (!attendance_) return reject("it named no job");
    if constexpr (std::is_same_v<std::decay_t<decltype(message)>, Join>) joins(message);
    attendance_->said(std::move(message));
    return true;
  }

  void joins(const Join& join) {
    socket_->set_patience(join.terms.lease + std::chrono::seconds{2});
    limit_.cancel();
    ++limit_set_;
    joined_ = true;
    impl_.newcomers_.erase(id_);
  }

  bool reject(const std::string& why) {
    log_closed(why);
    if (attendance_) {  // its process lives, and so may its workers: it is silent, not gone
      socket_->reset();
      std::exchange(attendance_, {})->gone(false);
    }
    impl_.remove(id_);
    return false;
  }

  void closed(const boost::system::error_code& error) {
    if (error == boost::system::errc::protocol_error) {
      const TlsStream& tls = *socket_->tls();
      if (tls.failure() == TlsStream::Failure::wrong_token) return tell_wrong_token();
      if (tls.failure() == TlsStream::Failure::none_there) {
        log_refused("it did not offer this coordinator's token");
      } else {
        log_closed("its TLS is not understood: " + tls.why());
      }
    } else if (error == asio::error::timed_out) {
      log_closed("a frame did not come to its end");
    } else if (error == asio::error::no_buffer_space) {
      log_closed(fmt::format("unsent_bytes_max: it left more than {} bytes lying", unsent_bytes_max));
    }
    if (attendance_) std::exchange(attendance_, {})->gone(!error);
    impl_.remove(id_);
  }

  Impl& impl_;
  std::uint64_t id_;
  std::shared_ptr<FrameSocket> socket_;
  asio::steady_timer limit_;
  unsigned limit_set_ = 0;  ///< how often it was set or taken back
  State state_ = State::preface;
  StrangerPlace stranger_;
  bool unwelcome_ = true;
  bool refused_ = false;
  bool joined_ = false;
  Hello hello_;
  std::uint16_t version_ = 0;
  std::unique_ptr<Coordinator::Attendance> attendance_;
};

/// All sockets first: nobody is to hear that the others have gone, when it is us who go.
void AgentSessions::Impl::close_all() {
  for (const auto& [id, session] : sessions_) session->close();
  sessions_.clear();
}

void AgentSessions::Impl::send_elsewhere(const Elsewhere& elsewhere) {
  for (const auto& [id, session] : sessions_) session->send_elsewhere(elsewhere);
}

void AgentSessions::Impl::remove(std::uint64_t id) { sessions_.erase(id); }

/// One that has said what it is, and only was not heard yet among thousands that come at once, is no stranger.
void AgentSessions::Impl::drop_stranger(std::uint64_t id, const std::string& why) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  found->second->poll();
  const auto left = sessions_.find(id);
  if (left != sessions_.end() && !left->second->welcomed()) left->second->drop(why);
}

bool AgentSessions::Impl::drop_oldest(const std::string& why) {
  if (newcomers_.empty()) return false;
  const std::uint64_t id = *newcomers_.begin();
  sessions_.at(id)->poll();
  if (newcomers_.contains(id)) sessions_.at(id)->drop(why);
  return true;
}

/// Who has joined stays; others go before them, the oldest first.
void AgentSessions::Impl::make_room() {
  while (sessions_.size() >= options_.connections_max && unwelcome_ > 0 && options_.strangers->give_descriptor()) {
  }
  while (newcomers_.size() >= options_.newcomers_max && drop_oldest("newcomers_max: more come than join a job")) {
  }
}

bool AgentSessions::Impl::drop_newcomer(const std::string& why) { return options_.token.empty() && drop_oldest(why); }

void AgentSessions::Impl::drop_largest() {
  dropping_ = false;
  const auto larger = [](const auto& left, const auto& right) {
    const auto weight = [](const Session& session) { return std::pair{!session.joined(), session.held_bytes()}; };
    return weight(*left.second) < weight(*right.second);
  };
  while (memory_->bytes > options_.frames_bytes_max) {
    auto largest = std::max_element(sessions_.begin(), sessions_.end(), larger);
    if (largest != sessions_.end() && largest->second->held_bytes() == 0) {  // newcomers, none of whom holds anything
      largest = std::max_element(sessions_.begin(), sessions_.end(), [](const auto& left, const auto& right) {
        return left.second->held_bytes() < right.second->held_bytes();
      });
    }
    if (largest == sessions_.end() || largest->second->held_bytes() == 0) return;
    largest->second->drop(
        fmt::format("frames_bytes_max: unfinished frames and unsent bytes of agents hold {} bytes, of "
                    "which this one has {}",
                    memory_->bytes, largest->second->held_bytes()));
  }
}

/// Who is cut off is silent, not gone.
void AgentSessions::Impl::set_cut(bool cut) {
  cut_ = cut;
  if (!cut) return;
  for (const auto& [id, session] : std::exchange(sessions_, {})) session->cut_off();
}

void AgentSessions::Impl::serve(UniqueFd fd) {
  if (cut_) return;
  if (sessions_.size() >= options_.connections_max && unwelcome_ == 0) {
    const std::string address = peer_address(fd.get());
    const std::string text = busy_text();
    ::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    std::array<char, hello_bytes_max> unread;  // which would make the end a reset, and take the words along
    [[maybe_unused]] const auto got = ::recv(fd.get(), unread.data(), unread.size(), MSG_DONTWAIT);
    return log("agent refused", address,
               fmt::format("agent at {} closed: connections_max: {} are connected", address, sessions_.size()));
  }
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return;
  tcp::socket socket{loop_};
  boost::system::error_code error;
  socket.assign(address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), fd.get(), error);
  if (error) return log("not taken over", "", "a connection could not be taken over: " + error.message());
  (void)fd.release();
  make_room();
  const std::uint64_t id = next_id_++;
  auto& session = *sessions_.emplace(id, std::make_unique<Session>(*this, id, std::move(socket))).first->second;
  newcomers_.insert(id);
  session.be_stranger(options_.strangers);
  session.start();
}

AgentSessions::AgentSessions(asio::io_context& loop, Coordinator& coordinator, AgentSessionsOptions options)
    : impl_{std::make_shared<Impl>(loop, coordinator, std::move(options))} {
  impl_->begin();
}

AgentSessions::~AgentSessions() { impl_->close_all(); }

void AgentSessions::serve(UniqueFd socket) { impl_->serve(std::move(socket)); }

void AgentSessions::set_cut(bool cut) { impl_->set_cut(cut); }

std::size_t AgentSessions::count() const { return impl_->count(); }
bool AgentSessions::drop_newcomer(const std::string& why) { return impl_->drop_newcomer(why); }
std::string AgentSessions::busy_text() { return encode(CoordinatorFrame{Busy{}}); }

}  // namespace torchup

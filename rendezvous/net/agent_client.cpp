#include "rendezvous/net/agent_client.hpp"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <optional>
#include <random>
#include <utility>

#include "rendezvous/core/agent_codec.hpp"
#include "rendezvous/core/wording.hpp"
#include "rendezvous/net/dialer.hpp"
#include "rendezvous/net/frame_socket.hpp"
#include "rendezvous/net/node_identity.hpp"
#include "rendezvous/net/token.hpp"

namespace torchup {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr Duration attempt_limit = std::chrono::seconds{3};       // for one connection attempt
constexpr Duration welcome_limit = std::chrono::seconds{5};       // for the coordinator's answers to our hello
constexpr Duration quiet_limit = std::chrono::milliseconds{300};  // after which it may be another language's speaker
constexpr Duration foreign_limit = std::chrono::seconds{5};       // after which whoever answers is no coordinator
constexpr Duration retry_first = std::chrono::milliseconds{50};
constexpr Duration retry_longest = std::chrono::seconds{2};
constexpr Duration patience = std::chrono::seconds{30};    // workers run on while nobody listens who could expel us
constexpr Duration leave_limit = std::chrono::seconds{3};  // for the answer to our leave

TimePoint clock_now() { return std::chrono::steady_clock::now(); }

/// What the coordinator must be told again on a new connection.
struct Standing {
  std::optional<Join> join;  ///< empty until the agent joins, and after it was fenced
  bool told = false;         ///< the coordinator has heard this join, or may have
  Resume::Stage stage = Resume::Stage::ready;
  std::optional<Placement> placement;
  std::optional<StoreReady> store;
  WorkersFailed failed;
  std::optional<Leave> leave;
};

class Client final : public std::enable_shared_from_this<Client> {
 public:
  Client(asio::io_context& loop, AgentClientSettings settings, AgentLink::Handler handler)
      : loop_{loop}, settings_{std::move(settings)}, handler_{std::move(handler)}, timer_{loop},
        random_{std::random_device{}()} {}

  void start() {
    out_since_ = clock_now();
    retry_at_ = out_since_;
    asio::post(loop_, [self = shared_from_this()] { self->turn(); });
  }

  void send(AgentMessage message) {
    if (over_) return;
    std::visit([&](auto& said) { remember(said); }, message);
    if (line_) std::visit([&](auto& said) { write(AgentFrame{said}); }, message);
    if (standing_.join) standing_.told = standing_.told || line_ != nullptr;
    schedule(clock_now());
  }

  void finish(Duration linger, std::function<void()> done) {
    over_ = true;
    hang_up_attempt();
    if (!line_) return asio::post(loop_, std::move(done));
    finished_ = std::move(done);
    line_->close_after_writes();
    timer_.expires_after(std::min<Duration>(linger, std::chrono::seconds{2}));
    timer_.async_wait([self = shared_from_this()](const error_code& error) {
      if (!error) self->say_finished();
    });
  }

  /// The link is destroyed.
  void let_go() {
    over_ = true;
    handler_ = {};
    finished_ = {};
    timer_.cancel();
    hang_up_attempt();
    if (line_) std::exchange(line_, {})->close();
  }

 private:
  // ---- what the agent says

  void remember(Join& join) {
    join = completed(std::move(join), incarnation_);
    join.former = former_;
    standing_.join = join;
    standing_.stage = Resume::Stage::ready;
    standing_.placement.reset();
    const auto lease = join.terms.lease;
    if (line_) line_->set_patience(lease + std::chrono::seconds{2});
  }
  void remember(const StoreReady& ready) { standing_.store = ready; }
  void remember(const WorkersFailed& failed) {
    standing_.stage = Resume::Stage::failed;
    standing_.failed = failed;
  }
  void remember(const WorkersSucceeded&) { standing_.stage = Resume::Stage::succeeded; }
  void remember(const Leave& leave) {
    standing_.leave = leave;
    // With nobody to answer, the leave is ours to grant.
    leave_until_ = clock_now() + (line_ ? leave_limit : Duration::zero());
  }

  // ---- time

  /// Does what is due. The fence comes first: after a sleep nothing that lies unread may be believed.
  void turn() {
    const TimePoint now = clock_now();
    if (over_) return;
    if (const auto at = fence_at(); at && now >= *at)
      fence("no sign of the coordinator for " + seconds(now - heard_of_));
    if (over_) return;
    if (leave_until_ && now >= *leave_until_) {
      return conclude(CoordinatorMessage{End{verdict_of(*standing_.leave)}});
    }
    if (line_ && now >= keep_alive_at_) keep_alive(now);
    const bool doubtful = line_ && !unanswered_.empty() && now - unanswered_.front().second >= doubt_after();
    if ((!line_ || doubtful) && !dialer_ && !attempt_ && now >= retry_at_) dial();
    if (!line_ && now - out_since_ >= settings_.join_timeout) {
      return conclude(LinkLost{67, "the rendezvous endpoint " + to_string(settings_.endpoint) +
                                       " was not reached within " + seconds(settings_.join_timeout) + ": " +
                                       last_trouble_});
    }
    schedule(now);
  }

  void schedule(TimePoint now) {
    if (over_) return;
    TimePoint next = line_ ? keep_alive_at_ : out_since_ + settings_.join_timeout;
    const auto consider = [&](const std::optional<TimePoint>& at) {
      if (at) next = std::min(next, *at);
    };
    consider(fence_at());
    consider(leave_until_);
    if (!dialer_ && !attempt_) {
      if (!line_) consider(retry_at_);
      if (line_ && !unanswered_.empty()) consider(std::max(retry_at_, unanswered_.front().second + doubt_after()));
    }
    timer_.expires_at(std::max(next, now));
    timer_.async_wait([self = shared_from_this()](const error_code& error) {
      if (!error) self->turn();
    });
  }

  [[nodiscard]] Duration lease() const {
    return standing_.join ? standing_.join->terms.lease : std::chrono::seconds{10};
  }
  [[nodiscard]] Duration doubt_after() const { return std::min<Duration>(std::chrono::seconds{1}, lease() / 3); }

  /// When workers of ours must be dead if nothing is heard. Without workers too there is a limit: after it, what lies
  /// unread on this connection may be a place that is no longer ours.
  [[nodiscard]] std::optional<TimePoint> fence_at() const {
    if (!standing_.join || (!standing_.placement && !line_)) return {};
    if (refused_ && !line_) return out_since_ + patience;
    TimePoint at = heard_of_ + lease() * 9 / 10;
    if (refused_at_) at = std::max(at, return_by());
    // The coordinator saw the connection break too, and waits less long for us to come back.
    return broke_at_ ? std::min(at, *broke_at_ + doubt_after() * 9 / 10) : at;
  }

  /// Nobody listened at `refused_at_` who could expel us. A coordinator that has started since gives everybody the
  /// return limit, and from our return on a lease, whether or not we hear of it.
  [[nodiscard]] TimePoint return_by() const {
    const TimePoint at = *refused_at_ + std::max(lease(), return_limit_default) * 9 / 10;
    return returned_at_ ? std::min(at, *returned_at_ + lease() * 9 / 10) : at;
  }

  void keep_alive(TimePoint now) {
    write(AgentFrame{KeepAlive{++keep_alive_number_}});
    unanswered_.emplace_back(keep_alive_number_, now);
    keep_alive_at_ = now + std::min<Duration>(std::chrono::seconds{1}, lease() / 5);
  }

  void fence(const std::string& reason) {
    if (line_) std::exchange(line_, {})->close();
    hang_up_attempt();
    lost(true, reason);
    broke_at_.reset();
    refused_at_.reset();
    if (!standing_.placement) return;
    const Round round = standing_.placement->round;
    count_stop(round, StopCause::fenced);
    forget_place();
    retry_at_ = clock_now() + jittered(std::chrono::seconds{1});
    tell(CoordinatorMessage{StopWorkers{round, StopCause::fenced, reason}});
  }

  /// Said twice, it counts once.
  void count_stop(Round round, StopCause cause) {
    const bool placed = standing_.placement && standing_.placement->round == round;
    if (placed && standing_.stage != Resume::Stage::stopping) former_ = after_stop(*former_, cause);
  }

  /// The next Join is a new node's.
  void forget_place() {
    ++incarnation_;
    const auto leave = standing_.leave;
    standing_ = Standing{};
    standing_.leave = leave;
  }

  // ---- connections

  void dial() {
    dialer_ = std::make_shared<Dialer>(loop_);
    dialed_at_ = clock_now();
    dialer_->dial(settings_.endpoint, attempt_limit, [weak = weak_from_this()](Result<asio::ip::tcp::socket> socket) {
      const auto self = weak.lock();
      if (!self || self->over_) return;
      self->dialer_.reset();
      if (!socket) return self->attempt_failed(socket.error());
      self->greet(std::move(*socket));
    });
  }

  void attempt_failed(const Error& error) {
    refused_ = error.code == boost::system::errc::connection_refused;
    if (refused_) {
      refused_at_ = dialed_at_;
      returned_at_.reset();
      broke_at_.reset();  // the coordinator that saw it break has ended
      if (!welcomed_once_ && settings_.on_refused) asio::post(loop_, settings_.on_refused);
    }
    trouble(error.message());
    if (refused_ && !line_ && embedded_ && standing_.placement) fence("the coordinator's process has ended");
    retry_at_ = clock_now() + jittered(retry_delay_);
    retry_delay_ = std::min<Duration>(retry_delay_ * 2, retry_longest);
    turn();
  }

  Duration jittered(Duration duration) {
    std::uniform_real_distribution<double> half{0.5, 1.0};
    return std::chrono::duration_cast<Duration>(duration * half(random_));
  }

  void greet(asio::ip::tcp::socket socket) {
    refused_ = false;
    attempt_ = std::make_shared<FrameSocket>(std::move(socket));
    hello_ = {.has_token = !settings_.token.empty(), .nonce = fresh_nonce(), .run_id = settings_.run_id};
    challenged_ = false;
    const std::weak_ptr<Client> weak = weak_from_this();
    const FrameSocket* const this_line = attempt_.get();
    attempt_->start(
        [weak, this_line](std::string_view& input) {
          const auto self = weak.lock();
          return self && self->read(this_line, input);
        },
        [weak, this_line](const error_code& error) {
          if (const auto self = weak.lock()) self->closed(this_line, error);
        });
    attempt_->write(std::string{agent_preface} + encode(AgentFrame{hello_}));
    hello_at_ = clock_now();
    welcome_timer_.emplace(loop_, quiet_limit);
    welcome_timer_->async_wait([weak, this_line](const error_code& error) {
      const auto self = weak.lock();
      if (!error && self && self->attempt_.get() == this_line) self->quiet(this_line);
    });
    schedule(clock_now());
  }

  /// PyTorch's store says nothing to a hello of ours.
  void quiet(const FrameSocket* this_line) {
    if (!welcomed_once_ && settings_.on_foreign) asio::post(loop_, settings_.on_foreign);
    welcome_timer_->expires_after(welcome_limit - quiet_limit);
    welcome_timer_->async_wait([weak = weak_from_this(), this_line](const error_code& error) {
      const auto self = weak.lock();
      if (!error && self && self->attempt_.get() == this_line) self->foreign("it accepts connections and says nothing");
    });
  }

  /// Somebody answers who is no coordinator; that may be a coordinator about to end, so it must last.
  void foreign(const std::string& what) {
    hang_up_attempt();
    const TimePoint now = clock_now();
    if (!foreign_since_) foreign_since_ = hello_at_;
    const std::string text = welcomed_once_
                                 ? "the coordinator does not answer (" + what + ")"
                                 : "what answers at " + to_string(settings_.endpoint) + " is no torchup coordinator (" +
                                       what + "): has another program this port?";
    if (!welcomed_once_ && settings_.on_foreign) asio::post(loop_, settings_.on_foreign);
    if (!welcomed_once_ && now - *foreign_since_ >= foreign_limit) return conclude(LinkLost{67, text});
    trouble(text);
    retry_at_ = now + jittered(retry_delay_);
    retry_delay_ = std::min<Duration>(retry_delay_ * 2, retry_longest);
    schedule(now);
  }

  void hang_up_attempt() {
    if (dialer_) std::exchange(dialer_, {})->cancel();
    if (attempt_) std::exchange(attempt_, {})->close();
    welcome_timer_.reset();
  }

  void closed(const FrameSocket* which, const error_code& error) {
    if (which == attempt_.get()) {
      attempt_.reset();
      return foreign(error ? error.message() : "it closes the connection");
    }
    if (which != line_.get()) return;
    line_.reset();
    if (over_) return say_finished();
    const std::string reason =
        error ? "the connection to the coordinator broke: " + error.message() : "the coordinator closed the connection";
    if (error) broke_at_ = clock_now();
    lost(true, reason);
    if (!error && embedded_ && standing_.placement) return fence("the coordinator's process has ended"), turn();
    turn();
  }

  void lost(bool at_once, const std::string& reason) {
    const TimePoint now = clock_now();
    out_since_ = now;
    retry_delay_ = retry_first;
    if (at_once) retry_at_ = now;
    unanswered_.clear();
    refused_ = false;
    trouble(reason);
  }

  // ---- what the coordinator says

  bool read(const FrameSocket* which, std::string_view& input) {
    // Asleep for too long: what was sent to us meanwhile is about a node that we are no more.
    if (const auto at = fence_at(); at && clock_now() >= *at) turn();
    while (which == line_.get() || which == attempt_.get()) {
      auto frame = take_coordinator_frame(input);
      if (!frame) {
        if (which == attempt_.get()) return foreign(frame.error().message()), false;
        std::exchange(line_, {})->close();
        lost(true, "the coordinator said what cannot be understood: " + frame.error().message());
        return turn(), false;
      }
      if (!frame->has_value()) return true;
      const bool ours = which == line_.get();
      std::visit([&](auto& said) { hear(said, ours); }, **frame);
    }
    return false;
  }

  void hear(const Challenge& challenge, bool welcomed) {
    if (welcomed || settings_.token.empty()) return;
    const auto mac_of = [&](ProofOf who) {
      return hmac_sha256(settings_.token,
                         proof_text(who, challenge.version, hello_.nonce, challenge.nonce, settings_.run_id));
    };
    if (!same(challenge.mac, mac_of(ProofOf::coordinator))) {
      return conclude(
          LinkLost{68, "the token of the coordinator at " + to_string(settings_.endpoint) + " is not ours"});
    }
    challenged_ = true;
    attempt_->write(encode(AgentFrame{Proof{mac_of(ProofOf::agent)}}));
  }

  void hear(const Welcome& welcome, bool welcomed) {
    if (welcomed) return;
    if (!settings_.token.empty() && !challenged_) {
      return conclude(LinkLost{68, "the coordinator at " + to_string(settings_.endpoint) + " did not prove the token"});
    }
    welcome_timer_.reset();
    const auto former = std::exchange(line_, std::exchange(attempt_, {}));
    embedded_ = welcome.embedded;
    welcomed_once_ = true;
    foreign_since_.reset();
    refused_ = false;
    retry_delay_ = retry_first;
    last_trouble_.clear();
    // That we are still a member is known when a keep-alive behind our Resume is answered.
    if (!standing_.placement) heard_of_ = hello_at_;
    if (!returned_at_) returned_at_ = clock_now();
    keep_alive_at_ = clock_now();
    unanswered_.clear();
    if (standing_.join) {
      line_->set_patience(lease() + std::chrono::seconds{2});
      if (standing_.told) {
        write(AgentFrame{
            Resume{*standing_.join, standing_.stage, standing_.placement, standing_.store, standing_.failed}});
      } else {
        write(AgentFrame{*standing_.join});
      }
      standing_.told = true;
    }
    if (standing_.leave) write(AgentFrame{*standing_.leave});
    if (former) former->close();  // only now: its end of file must not look like ours
    schedule(clock_now());
  }

  void hear(const KeepAliveAnswer& answer, bool) {
    while (!unanswered_.empty() && unanswered_.front().first <= answer.number) {
      heard_of_ = unanswered_.front().second;
      unanswered_.pop_front();
      refused_at_.reset();
    }
    broke_at_.reset();
  }

  void hear(const Refused& refused, bool) { conclude(LinkLost{refused.exit_code, refused.reason}); }

  void hear(const End& end, bool) {
    if (!welcomed_once_) return;
    over_ = true;
    hang_up_attempt();
    timer_.cancel();
    tell(CoordinatorMessage{end});
  }
  void hear(const Placed& placed, bool) {
    standing_.placement = placed.placement;
    former_ = placed.placement;
    standing_.stage = Resume::Stage::running;
    tell(CoordinatorMessage{placed});
    schedule(clock_now());
  }
  void hear(const StopWorkers& stop, bool) {
    count_stop(stop.round, stop.cause);
    if (stop.cause == StopCause::fenced) {
      broke_at_.reset();
      forget_place();
    } else {
      if (standing_.placement) standing_.placement = former_;
      standing_.stage = Resume::Stage::stopping;
    }
    tell(CoordinatorMessage{stop});
  }
  void hear(const HostStore& host, bool) { tell(CoordinatorMessage{host}); }
  void hear(const Waiting& waiting, bool) { tell(CoordinatorMessage{waiting}); }

  // ---- what the handler hears

  void trouble(const std::string& what) {
    if (what == last_trouble_) return;
    last_trouble_ = what;
    tell(CoordinatorMessage{Waiting{"rendezvous endpoint " + to_string(settings_.endpoint) + ": " + what}});
  }

  void conclude(LinkEvent last) {
    over_ = true;
    timer_.cancel();
    hang_up_attempt();
    if (line_) line_->close_after_writes();
    tell(std::move(last));
  }
  void tell(LinkEvent event) {
    asio::post(loop_, [self = shared_from_this(), event = std::move(event)]() mutable {
      const AgentLink::Handler handler = self->handler_;  // which may destroy the link
      if (handler) handler(std::move(event));
    });
  }
  void say_finished() {
    timer_.cancel();
    if (const auto done = std::exchange(finished_, {})) asio::post(loop_, done);
  }

  void write(const AgentFrame& frame) { line_->write(encode(frame)); }

  asio::io_context& loop_;
  AgentClientSettings settings_;
  AgentLink::Handler handler_;
  asio::steady_timer timer_;
  std::mt19937 random_;

  Standing standing_;
  std::optional<Placement> former_;
  int incarnation_ = 0;
  bool over_ = false;
  std::function<void()> finished_;
  std::optional<TimePoint> leave_until_;

  std::shared_ptr<FrameSocket> line_;     ///< welcome, and in use
  std::shared_ptr<Dialer> dialer_;        ///< at most one of these two is there
  std::shared_ptr<FrameSocket> attempt_;  ///< connected, not yet welcome
  std::optional<asio::steady_timer> welcome_timer_;
  Hello hello_;
  bool challenged_ = false;
  bool embedded_ = false;
  bool welcomed_once_ = false;
  bool refused_ = false;  ///< the last attempt found nobody listening
  std::optional<TimePoint> foreign_since_;
  std::string last_trouble_;
  Duration retry_delay_ = retry_first;
  TimePoint retry_at_{}, out_since_{}, hello_at_{}, dialed_at_{};

  TimePoint heard_of_{};                  ///< sending of the last thing that was answered
  std::optional<TimePoint> refused_at_;   ///< nobody listened then, and nothing was answered since
  std::optional<TimePoint> returned_at_;  ///< first welcome after that
  std::optional<TimePoint> broke_at_;     ///< the connection broke, and no later one has proved itself
  TimePoint keep_alive_at_{};
  std::uint64_t keep_alive_number_ = 0;
  std::deque<std::pair<std::uint64_t, TimePoint>> unanswered_;
};

class ClientLink final : public AgentLink {
 public:
  explicit ClientLink(std::shared_ptr<Client> client) : client_{std::move(client)} { client_->start(); }
  ~ClientLink() override { client_->let_go(); }
  void send(AgentMessage message) override { client_->send(std::move(message)); }
  void finish(Duration linger, std::function<void()> done) override { client_->finish(linger, std::move(done)); }

 private:
  std::shared_ptr<Client> client_;
};

}  // namespace

std::unique_ptr<AgentLink> connect_agent(asio::io_context& loop, AgentClientSettings settings,
                                         AgentLink::Handler handler) {
  return std::make_unique<ClientLink>(std::make_shared<Client>(loop, std::move(settings), std::move(handler)));
}

}  // namespace torchup

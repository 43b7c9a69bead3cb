#include "rendezvous/net/agent/torchrun_link.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "rendezvous/core/torchrun/torchrun_peer.hpp"
#include "rendezvous/core/torchrun/torchrun_static.hpp"
#include "rendezvous/core/torchrun_wire/torchrun_fence.hpp"
#include "rendezvous/net/io/background.hpp"
#include "rendezvous/net/io/lasting_clock.hpp"
#include "rendezvous/net/io/node_identity.hpp"
#include "rendezvous/net/store/store_client.hpp"
#include "rendezvous/net/store/worker_keys.hpp"

namespace torchup {

namespace asio = boost::asio;

namespace {

constexpr Duration connect_limit = std::chrono::seconds{5};
constexpr Duration retry_pace = std::chrono::milliseconds{200};
/// Longest wait for one answer of the store; less where the lease is shorter.
constexpr Duration answer_limit = std::chrono::seconds{10};
/// Longest wait for the store where the user wants to leave.
constexpr Duration leave_limit = std::chrono::seconds{2};

/// PyTorch's store through the blocking client. GET waits for a key, so it is asked for only where it is there.
class ClientStore final : public TorchrunStore {
 public:
  explicit ClientStore(std::unique_ptr<StoreClient> client) : client_{std::move(client)} {}

  Result<std::optional<std::string>> find(const std::string& key) override {
    auto there = client_->check(std::vector{key});
    if (!there) return there.error();
    if (!*there) return std::optional<std::string>{};
    auto value = client_->get(key);
    if (!value) return value.error();
    return std::optional{std::string{value->view()}};
  }
  Result<> set(const std::string& key, const std::string& value) override { return client_->set(key, value); }
  Result<std::int64_t> add(const std::string& key, std::int64_t delta) override { return client_->add(key, delta); }
  Result<std::string> compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) override {
    auto held = client_->compare_set(key, expected, desired);
    if (!held) return held.error();
    return std::string{held->view()};
  }
  void erase(const std::string&) override {}
  Result<> count_in() override {
    auto count = client_->count_worker();
    return count ? Result<>{} : count.error();
  }
  TorchrunCare* owner() override { return nullptr; }
  Result<std::optional<MeetingPlace>> common_place() override { return std::optional<MeetingPlace>{}; }
  bool empty(const MeetingPlace& place, std::int64_t) override {
    delete_worker_keys(place.address, place.port, worker_keys_limit);
    return true;
  }

  void set_timeout(Duration limit) { client_->set_timeout(limit); }

 private:
  std::unique_ptr<StoreClient> client_;
};

/// Whether the other machine may be there again later. One whose process has ended says so.
bool out_of_reach(const Error& error) {
  namespace errc = boost::system::errc;
  return error.code == errc::timed_out || error.code == errc::host_unreachable ||
         error.code == errc::network_unreachable || error.code == errc::network_down;
}

/// What loop and thread share. The thread holds it too, and outlives the link by one blocked call at most: nobody waits
/// for it.
class TorchrunSession : public std::enable_shared_from_this<TorchrunSession> {
 public:
  TorchrunSession(asio::io_context& loop, TorchrunLinkSettings settings, std::function<void(bool)> ready,
                  AgentLink::Handler handler)
      : settings_{std::move(settings)}, ready_{std::move(ready)}, handler_{std::move(handler)},
        fence_{to_string(settings_.endpoint)}, fence_timer_{std::in_place, loop},
        leave_timer_{std::in_place, loop}, loop_{&loop} {}

  // On the loop.

  void start() {
    const auto thread = in_background([self = shared_from_this()] { self->run(); });
    if (thread.valid()) return;
    post([this] {
      if (ready_) ready_(false);
    });
  }

  void send(AgentMessage message) {
    const auto* join = std::get_if<Join>(&message);
    if (join && stands_aside(*join)) {  // torchrun's agents know none
      return asio::post(*loop_, [self = shared_from_this(), why = unfit_text(*join)] {
        self->told(LinkLost{unfit_code, why});
      });
    }
    fence_.said(message);
    if (const auto* leave = std::get_if<Leave>(&message)) leave_in_time(*leave);
    const std::lock_guard lock{mutex_};
    said_.push_back(std::move(message));
    wake_.notify_one();
  }

  void let_go() {
    handler_ = {};
    ready_ = {};
    fence_timer_.reset();
    leave_timer_.reset();
    const std::lock_guard lock{mutex_};
    loop_ = nullptr;
    wake_.notify_one();
  }

 private:
  void told(LinkEvent event) {
    if (const auto* message = std::get_if<CoordinatorMessage>(&event)) fence_.told(*message);
    const AgentLink::Handler handler = handler_;  // which may destroy the link
    if (handler) handler(std::move(event));
  }

  void arm_fence() {
    const auto deadline = fence_.deadline();
    if (!fence_timer_ || !deadline || armed_) return;
    armed_ = true;
    fence_timer_->start(*deadline - lasting_now(), [self = shared_from_this()] {
      self->armed_ = false;
      if (!self->fence()) self->arm_fence();
    });
  }

  /// Whether workers must stop now.
  bool fence() {
    auto stop = fence_.due(lasting_now());
    if (stop) told(CoordinatorMessage{*std::move(stop)});
    return stop.has_value();
  }

  /// The thread may be waiting for a store that is out of reach. Then it leaves without a word to the others.
  void leave_in_time(const Leave& leave) {
    if (!leave_timer_) return;
    leave_timer_->expires_after(leave_limit);
    leave_timer_->async_wait([self = shared_from_this(), leave](const boost::system::error_code& error) {
      if (!error) self->told(CoordinatorMessage{End{verdict_of(leave)}});
    });
  }

  // On the thread.

  void run() {
    auto client = connect(connect_limit);
    const bool is_store = client && !(*client)->extended();  // ours is slow, not foreign
    post([this, is_store] {
      if (ready_) ready_(is_store);
    });
    if (!is_store) return;
    ClientStore store{std::move(*client)};
    const std::unique_ptr<TorchrunPart> part = own_part();
    TimePoint heard_at = lasting_now();
    while (!part->over()) {
      for (const AgentMessage& message : wait_for(part->pace())) {
        if (const auto* join = std::get_if<Join>(&message)) terms_ = join->terms;
        part->said(message, lasting_now());
      }
      if (stopped()) return;
      const TimePoint asked_at = lasting_now();
      store.set_timeout(std::min<Duration>(answer_limit, terms_.lease));
      auto messages =
          part->turn(store, asked_at, std::chrono::floor<std::chrono::microseconds>(std::chrono::system_clock::now()));
      if (messages) {
        heard_at = asked_at;
        answered(asked_at, *std::move(messages));
      } else if (!out_of_reach(messages.error())) {
        return gone(*part, messages.error());
      } else {
        auto again = find_again(heard_at);
        if (stopped()) return;
        if (!again) return gone(*part, again.error());
        store = ClientStore{*std::move(again)};
      }
    }
  }

  std::unique_ptr<TorchrunPart> own_part() const {
    if (settings_.is_static) {
      const MeetingPlace endpoint{settings_.endpoint.host, settings_.endpoint.port};
      return std::make_unique<TorchrunStatic>(
          TorchrunStatic::Settings{.run_id = settings_.run_id, .place = endpoint, .address = own_address()});
    }
    return std::make_unique<TorchrunPeer>(
        TorchrunPeer::Settings{.run_id = settings_.run_id, .address = own_address(), .pid = ::getpid()});
  }

  Result<std::unique_ptr<StoreClient>> connect(Duration limit) const {
    return StoreClient::connect({.host = settings_.endpoint.host, .port = settings_.endpoint.port, .timeout = limit});
  }

  void answered(TimePoint asked_at, std::vector<CoordinatorMessage> messages) {
    post([this, asked_at, messages = std::move(messages)]() mutable {
      fence_.answered(asked_at);
      static_cast<void>(fence());  // before anything is obeyed: we may have slept since we asked
      for (CoordinatorMessage& message : messages) told(std::move(message));
      arm_fence();
    });
  }

  /// Nobody answers: the link is cut, or the host's machine has lost its power. For as long as others may be waited for
  /// we try again.
  Result<std::unique_ptr<StoreClient>> find_again(TimePoint heard_at) {
    for (;;) {
      auto client = connect(connect_limit);
      const TimePoint now = lasting_now();
      if (client || !out_of_reach(client.error()) || now - heard_at > terms_.join_timeout) return client;
      rest(retry_pace);  // without a route the answer comes at once
      if (stopped() || wants_to_leave()) return client;
    }
  }

  void gone(const TorchrunPart& part, const Error& error) {
    if (const auto word = wants_to_leave()) return deliver(CoordinatorMessage{End{verdict_of(*word)}});
    if (part.finished_without_store()) {
      return deliver(CoordinatorMessage{End{{.exit_code = 0, .reason = "all workers exited 0"}}});
    }
    deliver(LinkLost{67, fmt::format("the torchrun agent that hosts the rendezvous at {} has ended: {}",
                                     to_string(settings_.endpoint), error.message())});
  }

  /// What others can use, where that differs from what leads to the endpoint: its name may mean 127.0.1.1 here.
  std::string own_address() const {
    if (!settings_.local_addr.empty()) return settings_.local_addr;
    const std::string address = address_for_others(settings_.endpoint.host);
    return address.empty() ? "127.0.0.1" : address;
  }

  std::vector<AgentMessage> wait_for(Duration limit) {
    std::unique_lock lock{mutex_};
    wake_.wait_for(lock, limit, [this] { return !loop_ || !said_.empty(); });
    return std::exchange(said_, {});
  }
  void rest(Duration limit) {
    std::unique_lock lock{mutex_};
    wake_.wait_for(lock, limit, [this] { return !loop_; });
  }
  std::optional<Leave> wants_to_leave() {
    const std::lock_guard lock{mutex_};
    for (const AgentMessage& message : said_) {
      if (const auto* leave = std::get_if<Leave>(&message)) return *leave;
    }
    return {};
  }
  bool stopped() {
    const std::lock_guard lock{mutex_};
    return !loop_;
  }
  void deliver(LinkEvent event) {
    post([this, event = std::move(event)]() mutable { told(std::move(event)); });
  }
  void post(auto work) {
    const std::lock_guard lock{mutex_};
    if (loop_) asio::post(*loop_, [self = shared_from_this(), work = std::move(work)]() mutable { work(); });
  }

  const TorchrunLinkSettings settings_;

  // The loop's own.
  std::function<void(bool)> ready_;
  AgentLink::Handler handler_;
  TorchrunFence fence_;
  std::optional<LastingTimer> fence_timer_;
  bool armed_ = false;
  std::optional<asio::steady_timer> leave_timer_;

  JobTerms terms_;  ///< the thread's own

  // Of both.
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<AgentMessage> said_;
  asio::io_context* loop_;  ///< null when the link is gone
};

class TorchrunLink final : public AgentLink {
 public:
  explicit TorchrunLink(asio::io_context& loop, std::shared_ptr<TorchrunSession> session)
      : loop_{loop}, session_{std::move(session)} {
    session_->start();
  }
  ~TorchrunLink() override { session_->let_go(); }
  void send(AgentMessage message) override { session_->send(std::move(message)); }
  void report_progress(const ProgressReport&) override {}  // nobody watches over the whole there
  void report_node(const NodeReport&) override {}
  [[nodiscard]] bool reaches() const override { return false; }
  [[nodiscard]] std::optional<ClockOffset::Estimate> clock() const override { return std::nullopt; }
  [[nodiscard]] std::optional<Duration> day_ahead() const override { return std::nullopt; }
  void finish(Duration, std::function<void()> done) override { asio::post(loop_, std::move(done)); }

 private:
  asio::io_context& loop_;
  std::shared_ptr<TorchrunSession> session_;
};

}  // namespace

std::unique_ptr<AgentLink> connect_torchrun(asio::io_context& loop, TorchrunLinkSettings settings,
                                            std::function<void(bool)> ready, AgentLink::Handler handler) {
  return std::make_unique<TorchrunLink>(
      loop, std::make_shared<TorchrunSession>(loop, std::move(settings), std::move(ready), std::move(handler)));
}

}  // namespace torchup

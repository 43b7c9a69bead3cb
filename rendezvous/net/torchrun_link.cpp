#include "rendezvous/net/torchrun_link.hpp"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "rendezvous/core/torchrun_peer.hpp"
#include "rendezvous/net/node_identity.hpp"
#include "rendezvous/net/store_client.hpp"

namespace torchup {

namespace asio = boost::asio;

namespace {

constexpr Duration connect_limit = std::chrono::seconds{5};
constexpr Duration retry_pace = std::chrono::milliseconds{200};
constexpr Duration answer_limit = std::chrono::seconds{10};
constexpr Duration empty_limit = std::chrono::seconds{2};

/// PyTorch's store through the blocking client. GET waits for a key, so it is asked for only where it is there.
class ClientStore final : public TorchrunStore {
 public:
  ClientStore(std::unique_ptr<StoreClient> client, WorkerStore itself)
      : client_{std::move(client)}, itself_{std::move(itself)} {}

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
  /// This very store: its host takes the job along anyway.
  Result<WorkerStore> worker_store() override { return itself_; }
  void empty_worker_store(const WorkerStore& workers) override {
    if (workers == itself_) return delete_workers_keys(*client_);
    const auto theirs = StoreClient::connect({.host = workers.address, .port = workers.port, .timeout = empty_limit});
    if (theirs) delete_workers_keys(**theirs);
  }

 private:
  static void delete_workers_keys(StoreClient& client) {
    const auto keys = client.list_keys();
    if (!keys) return;
    for (const std::string& key : *keys) {
      if (!key.starts_with("torch.rendezvous.") && !client.delete_key(key)) return;
    }
  }

  std::unique_ptr<StoreClient> client_;
  WorkerStore itself_;
};

/// Whether the other machine may be there again later. One whose process has ended says so.
bool out_of_reach(const Error& error) {
  namespace errc = boost::system::errc;
  return error.code == errc::timed_out || error.code == errc::host_unreachable ||
         error.code == errc::network_unreachable || error.code == errc::network_down;
}

/// What loop and thread share. The thread holds it too, and may outlive the link by one blocked call.
class TorchrunSession : public std::enable_shared_from_this<TorchrunSession> {
 public:
  TorchrunSession(asio::io_context& loop, TorchrunLinkSettings settings, std::function<void(bool)> ready,
                  AgentLink::Handler handler)
      : loop_{loop}, settings_{std::move(settings)}, ready_{std::move(ready)}, handler_{std::move(handler)} {}

  void start() {
    thread_ = std::thread{[self = shared_from_this()] { self->run(); }};
  }

  void send(AgentMessage message) {
    const std::lock_guard lock{mutex_};
    said_.push_back(std::move(message));
    wake_.notify_one();
  }

  void let_go() {
    handler_ = {};
    ready_ = {};
    {
      const std::lock_guard lock{mutex_};
      stopping_ = true;
      wake_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run() {
    auto client = StoreClient::connect(
        {.host = settings_.endpoint.host, .port = settings_.endpoint.port, .timeout = connect_limit});
    const bool is_store = client && !(*client)->extended();  // ours is slow, not foreign
    post([this, is_store] {
      if (ready_) ready_(is_store);
    });
    if (!is_store) return;
    (*client)->set_timeout(answer_limit);
    ClientStore store{std::move(*client), {hosting_address(), settings_.endpoint.port}};
    TorchrunPeer peer{{.run_id = settings_.run_id, .address = own_address(), .pid = ::getpid()}};
    TimePoint heard_at = std::chrono::steady_clock::now();
    while (!peer.over()) {
      for (const AgentMessage& message : wait_for(peer.pace())) {
        if (const auto* join = std::get_if<Join>(&message)) terms_ = join->terms;
        peer.said(message, std::chrono::steady_clock::now());
      }
      if (stopped()) return;
      auto told = peer.turn(store, std::chrono::steady_clock::now(),
                            std::chrono::floor<std::chrono::microseconds>(std::chrono::system_clock::now()));
      if (told) {
        heard_at = std::chrono::steady_clock::now();
        for (CoordinatorMessage& message : *told) deliver(std::move(message));
      } else if (!out_of_reach(told.error())) {
        return gone(peer, told.error());
      } else {
        auto again = find_again(peer.round(), heard_at);
        if (stopped()) return;
        if (!again) return gone(peer, again.error());
        store = ClientStore{*std::move(again), {hosting_address(), settings_.endpoint.port}};
      }
    }
  }

  /// Nobody answers: the link is cut, or the host's machine has lost its power. For as long as others may be waited for
  /// we try again; meanwhile they take us for dead and form a round without us, so our workers stop when the lease is
  /// over.
  Result<std::unique_ptr<StoreClient>> find_again(Round round, TimePoint heard_at) {
    const TimePoint fence_at = heard_at + terms_.lease;
    bool fenced = false;
    for (;;) {
      const TimePoint now = std::chrono::steady_clock::now();
      if (!fenced && now >= fence_at) {
        fenced = true;
        deliver(CoordinatorMessage{
            StopWorkers{round, StopCause::fenced,
                        "torchrun's rendezvous at " + to_string(settings_.endpoint) + " is out of reach"}});
      }
      const Duration limit = fenced ? connect_limit : std::clamp<Duration>(fence_at - now, retry_pace, connect_limit);
      auto client =
          StoreClient::connect({.host = settings_.endpoint.host, .port = settings_.endpoint.port, .timeout = limit});
      if (client) (*client)->set_timeout(answer_limit);
      if (client || !out_of_reach(client.error()) || now - heard_at > terms_.join_timeout) return client;
      rest(retry_pace);  // without a route the answer comes at once
      if (stopped() || wants_to_leave()) return client;
    }
  }

  void gone(const TorchrunPeer& peer, const Error& error) {
    if (const auto word = wants_to_leave()) {
      return deliver(
          CoordinatorMessage{End{{word->exit_code, word->reason, word->failures, word->stop_signal, word->kill_now}}});
    }
    if (peer.finished_without_store()) {
      return deliver(CoordinatorMessage{End{{.exit_code = 0, .reason = "all workers exited 0"}}});
    }
    deliver(LinkLost{67, "the torchrun agent that hosts the rendezvous at " + to_string(settings_.endpoint) +
                             " has ended: " + error.message()});
  }

  /// What others can use, where that differs from what leads to the endpoint: its name may mean 127.0.1.1 here.
  std::string own_address() const {
    if (!settings_.local_addr.empty()) return settings_.local_addr;
    std::string address = address_towards(settings_.endpoint.host);
    const bool loopback = address.starts_with("127.") || address == "::1";
    const bool meant = settings_.endpoint.host == "localhost" || settings_.endpoint.host == address;
    if (address.empty() || (loopback && !meant)) {
      if (const auto own = own_addresses(); !own.empty()) return own.front();
    }
    return address.empty() ? "127.0.0.1" : address;
  }

  /// By which other nodes reach the endpoint: its name may mean this machine's loopback here.
  std::string hosting_address() const {
    const std::string& name = settings_.endpoint.host;
    return is_loopback(address_towards(name)) ? own_address() : name;
  }

  std::vector<AgentMessage> wait_for(Duration limit) {
    std::unique_lock lock{mutex_};
    wake_.wait_for(lock, limit, [this] { return stopping_ || !said_.empty(); });
    return std::exchange(said_, {});
  }
  void rest(Duration limit) {
    std::unique_lock lock{mutex_};
    wake_.wait_for(lock, limit, [this] { return stopping_; });
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
    return stopping_;
  }
  void deliver(LinkEvent event) {
    post([this, event = std::move(event)]() mutable {
      const AgentLink::Handler handler = handler_;  // which may destroy the link
      if (handler) handler(std::move(event));
    });
  }
  void post(auto work) {
    asio::post(loop_, [self = shared_from_this(), work = std::move(work)]() mutable { work(); });
  }

  asio::io_context& loop_;
  const TorchrunLinkSettings settings_;
  JobTerms terms_;                   ///< the thread's own
  std::function<void(bool)> ready_;  ///< these two are the loop's own
  AgentLink::Handler handler_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<AgentMessage> said_;
  bool stopping_ = false;
  std::thread thread_;
};

class TorchrunLink final : public AgentLink {
 public:
  explicit TorchrunLink(asio::io_context& loop, std::shared_ptr<TorchrunSession> session)
      : loop_{loop}, session_{std::move(session)} {
    session_->start();
  }
  ~TorchrunLink() override { session_->let_go(); }
  void send(AgentMessage message) override { session_->send(std::move(message)); }
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

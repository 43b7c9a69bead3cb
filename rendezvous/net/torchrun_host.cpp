#include "rendezvous/net/torchrun_host.hpp"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <future>
#include <map>
#include <optional>
#include <utility>

#include "rendezvous/core/endpoint.hpp"
#include "rendezvous/core/torchrun_care.hpp"
#include "rendezvous/net/blocking_connect.hpp"
#include "rendezvous/net/store_server.hpp"

namespace torchup {

namespace asio = boost::asio;

namespace {

constexpr Duration question_limit = std::chrono::seconds{1};
constexpr std::size_t meetings_max = 1024;
/// So long an agent may be deaf to signals, and its store may seem slow to it.
constexpr Duration idle_limit = std::chrono::seconds{2};
/// A closed rendezvous is kept for so long for agents that come late.
constexpr Duration closed_kept = std::chrono::minutes{5};

/// Not more than that: PyTorch's server may look up our name for seconds before it says a word.
bool is_open(const WorkerStore& workers) {
  return listens(workers.address, workers.port, std::chrono::steady_clock::now() + question_limit);
}

}  // namespace

class TorchrunHost::Impl final : public StoreWatcher {
 public:
  Impl(asio::io_context& loop, StoreServer& server, std::string bind, Log log)
      : loop_{loop}, server_{server}, bind_{std::move(bind)}, log_{std::move(log)} {
    server_.watch(torchrun_keys, *this);  // from now to its end
  }

  /// A look at the state that has to wait.
  struct Held {
    ClientId client;
    Query query;
    std::vector<Value> values;
    std::optional<UtcTime> since = {};
  };

  /// One job's.
  struct Job final : TorchrunStore {
    Job(Impl& the_host, RunId id) : host{the_host}, run_id{std::move(id)}, care{run_id} {}

    Result<std::optional<std::string>> find(const std::string& key) override {
      const Value* value = host.keys().find("/" + key);
      return value ? std::optional{std::string{value->view()}} : std::nullopt;
    }
    Result<> set(const std::string& key, const std::string& value) override {
      if (!host.keys().set("/" + key, Value{value})) return fail(errc::limit_exceeded, "the store is full");
      return {};
    }
    Result<std::int64_t> add(const std::string& key, std::int64_t delta) override {
      const auto sum = host.keys().add("/" + key, delta);
      if (!sum) return fail(errc::bad_value, key + " holds no number");
      return *sum;
    }
    Result<std::string> compare_set(const std::string& key, const std::string& expected,
                                    const std::string& desired) override {
      const Value* present = host.keys().find("/" + key);
      if (!present && !expected.empty()) return expected;
      if (present && present->view() != expected) return std::string{present->view()};
      if (auto stored = set(key, desired); !stored) return stored.error();
      care.wrote({}, *this);
      return desired;
    }
    Result<WorkerStore> worker_store() override {
      care.adopt();
      if (!workers) {
        StoreServerOptions options;
        options.bind = host.bind_;
        workers = std::make_unique<StoreServer>(host.loop_, std::move(options));
        auto opened = workers->listen();
        if (!opened) {
          workers.reset();
          return opened.error();
        }
        port = *opened;
      }
      return WorkerStore{address.empty() ? "127.0.0.1" : address, port};
    }
    void empty_worker_store(const WorkerStore& meant) override {
      if (workers && meant.port == port) workers->store().erase_if([](std::string_view) { return true; });
    }

    void reached_by(const std::string& own) {
      if (own.empty() || (!address.empty() && !is_loopback(address))) return;
      if (address.empty() || !is_loopback(own)) address = own;
    }

    Impl& host;
    RunId run_id;
    TorchrunCare care;
    std::string address = {};  ///< of ours, by which others have come
    std::unique_ptr<StoreServer> workers;
    Port port{0};
    std::future<bool> question;
    std::optional<UtcTime> closed_at;
    std::vector<Held> held;  ///< until all have been told of a newcomer
    std::vector<Held> idle;  ///< until they can do something
  };

  Job& job(const RunId& run_id) { return jobs_.try_emplace(run_id, *this, run_id).first->second; }

  bool takes(ClientId client, Request& request) override {
    if (request.query == Query::set) return withholds(client, request);
    const auto found = jobs_.find(RunId{std::string{request.key.substr(torchrun_keys.size())}});
    if (found == jobs_.end()) return false;
    Job& its = found->second;
    if (its.care.holds(client)) {
      its.held.push_back({client, request.query, std::move(request.values)});
      release(its);
      return true;
    }
    if (request.query == Query::compare_set && its.care.outsider(client, its) && closes(request.values.at(1).view())) {
      if (log_) log_(its.run_id, "a torchrun agent that is no part of the job any more has ended; the job goes on");
      answer_as_written(client, request);
      return true;
    }
    if (request.query == Query::compare_set) write_now(client, request);
    if (!its.care.idles(client)) return false;
    its.idle.push_back({client, request.query, std::move(request.values)});
    return true;
  }

  static bool closes(std::string_view text) {
    const auto pickle = from_base64(text);
    const auto state = pickle ? read_torchrun_state(*pickle) : Result<TorchrunState>{pickle.error()};
    return state && state->closed;
  }

  /// By way of a key of its own, for a client is answered by the store alone.
  void answer_as_written(ClientId client, Request& request) {
    const std::string key = std::string{request.key} + ".refused";
    keys().set(key, std::move(request.values.at(1)));
    Request get;
    get.query = Query::get;
    get.key = key;
    server_.apply(client, get);
    keys().erase(key);
  }

  /// Ahead of its answer, which then is what an agent gets whose write was followed by another's.
  void write_now(ClientId client, const Request& request) {
    const Value* const present = keys().find(request.key);
    const std::string_view expected = request.values.at(0).view();
    if (present ? present->view() != expected : !expected.empty()) return;
    keys().set(request.key, Value{std::string{request.values.at(1).view()}});
    compared(client, request.key);
  }

  void compared(ClientId client, std::string_view key) override {
    const RunId run_id{std::string{key.substr(torchrun_keys.size())}};
    if (!jobs_.contains(run_id) && jobs_.size() >= meetings_max) return;
    Job& its = job(run_id);
    if (clients_.try_emplace(client, run_id).second) its.reached_by(server_.local_address(client));
    its.care.wrote(client, its);
    wake(its, {});
  }

  void gone(ClientId client) override {
    const auto known = clients_.extract(client);
    if (!known) return;
    const auto found = jobs_.find(known.mapped());
    if (found == jobs_.end()) return;
    Job& its = found->second;
    for (auto* list : {&its.held, &its.idle}) {
      std::erase_if(*list, [&](const Held& held) { return held.client == client; });
    }
    its.care.gone(client, its);
    release(its);
    wake(its, {});
  }

  void turn(UtcTime now) {
    for (auto it = jobs_.begin(); it != jobs_.end();) {
      Job& its = it->second;
      its.care.turn(
          its, [&](ClientId client) { return keys().waits(client) || is_idle(its, client); }, now);
      release(its);
      wake(its, now);
      ask(its);
      for (const std::string& line : its.care.notes()) {
        if (log_) log_(its.run_id, line);
      }
      if (its.care.state().closed && !its.closed_at) its.closed_at = now;
      it = its.closed_at && now - *its.closed_at > closed_kept ? forget(it) : std::next(it);
    }
  }

  Store& keys() { return server_.store(); }

  asio::io_context& loop_;
  StoreServer& server_;
  const std::string bind_;
  Log log_;
  std::map<RunId, Job> jobs_;
  std::map<ClientId, RunId> clients_;

 private:
  bool withholds(ClientId client, const Request& request) {
    const auto place = read_round_key(request.key);
    const auto found = place ? jobs_.find(place->run_id) : jobs_.end();
    if (found == jobs_.end()) return false;
    Job& its = found->second;
    its.reached_by(server_.local_address(client));
    return its.care.withholds(place->round, place->name, request.values.at(0).view());
  }

  void release(Job& its) {
    if (its.care.nobody_waits()) answer(its, std::exchange(its.held, {}));
  }

  void wake(Job& its, std::optional<UtcTime> now) {
    std::vector<Held> due;
    std::erase_if(its.idle, [&](Held& held) {
      if (now && !held.since) held.since = now;
      const bool stays = its.care.idles(held.client) && (!now || *now - *held.since < idle_limit);
      if (!stays) due.push_back(std::move(held));
      return !stays;
    });
    answer(its, std::move(due));
  }

  void answer(const Job& its, std::vector<Held> list) {
    const std::string key = std::string{torchrun_keys} + its.run_id.value();
    for (Held& held : list) {
      Request request;
      request.query = held.query;
      request.key = key;
      request.values = std::move(held.values);
      server_.apply(held.client, request);
    }
  }

  static bool is_idle(const Job& its, ClientId client) {
    return std::ranges::any_of(its.idle, [&](const Held& held) { return held.client == client; });
  }

  /// On a thread of its own, for names are looked up and machines may be silent.
  static void ask(Job& its) {
    if (!its.care.in_question()) return;
    if (!its.question.valid()) {
      its.question = std::async(std::launch::async, is_open, *its.care.in_question());
    } else if (its.question.wait_for(Duration::zero()) == std::future_status::ready) {
      its.care.answered(its.question.get(), its);
    }
  }

  std::map<RunId, Job>::iterator forget(std::map<RunId, Job>::iterator it) {
    const std::string main_key = std::string{torchrun_keys} + it->first.value();
    keys().erase_if([&](std::string_view key) {
      const auto place = read_round_key(key);
      return key == main_key || (place && place->run_id == it->first);
    });
    return jobs_.erase(it);
  }
};

TorchrunHost::TorchrunHost(asio::io_context& loop, StoreServer& server, std::string bind, Log log)
    : impl_{std::make_unique<Impl>(loop, server, std::move(bind), std::move(log))} {}
TorchrunHost::~TorchrunHost() = default;

TorchrunStore* TorchrunHost::find(const RunId& run_id) {
  const auto found = impl_->jobs_.find(run_id);
  return found == impl_->jobs_.end() ? nullptr : &found->second;
}
TorchrunStore& TorchrunHost::store(const RunId& run_id) { return impl_->job(run_id); }
void TorchrunHost::reached_by(const RunId& run_id, const std::string& address) {
  impl_->job(run_id).reached_by(address);
}
void TorchrunHost::turn(UtcTime now) { impl_->turn(now); }

std::vector<RunId> TorchrunHost::jobs() const {
  std::vector<RunId> list;
  for (const auto& [run_id, job] : impl_->jobs_) list.push_back(run_id);
  return list;
}

JobView TorchrunHost::view(const RunId& run_id, JobView known) const {
  const auto found = impl_->jobs_.find(run_id);
  const bool met = found != impl_->jobs_.end() && !found->second.care.state().last_heartbeats.empty();
  return met ? found->second.care.view(std::move(known)) : known;
}

}  // namespace torchup

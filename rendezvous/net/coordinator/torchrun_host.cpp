#include "rendezvous/net/coordinator/torchrun_host.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/core/torchrun/torchrun_care.hpp"
#include "rendezvous/net/coordinator/held_requests.hpp"
#include "rendezvous/net/coordinator/helper_threads.hpp"
#include "rendezvous/net/store/blocking_connect.hpp"
#include "rendezvous/net/store/store_server.hpp"
#include "rendezvous/net/store/worker_keys.hpp"

namespace torchup {

namespace asio = boost::asio;

namespace {

constexpr Duration question_limit = std::chrono::seconds{1};
/// So long an agent may be deaf to signals, and its store may seem slow to it.
constexpr Duration idle_limit = std::chrono::seconds{2};

/// Not more than that: PyTorch's server may look up our name for seconds before it says a word.
bool is_open(const MeetingPlace& workers) {
  return listens(workers.address, workers.port, std::chrono::steady_clock::now() + question_limit);
}

}  // namespace

class TorchrunHost::Impl final : public StoreWatcher {
 public:
  Impl(asio::io_context& loop, StoreServer& server, TorchrunHostOptions options, Log log)
      : loop_{loop}, server_{server}, options_{std::move(options)}, log_{std::move(log)} {
    server_.watch(torchrun_keys, *this);  // from now to its end
  }

  using Held = HeldRequest;

  /// One job's meeting, as its participants see the store.
  struct Meeting final : TorchrunStore {
    Meeting(Impl& the_host, RunId id)
        : host{the_host}, run_id{std::move(id)}, care{{.run_id = run_id,
                                                       .common_place = the_host.options_.common_place}} {}

    Result<std::optional<std::string>> find(const std::string& key) override {
      const Value* value = host.keys().find("/" + key);
      return value ? std::optional{std::string{value->view()}} : std::nullopt;
    }
    Result<> set(const std::string& key, const std::string& value) override {
      const std::string full = "/" + key;
      if (!host.keys().set(full, Value{value})) return fail(errc::limit_exceeded, "the store is full");
      const auto place = read_round_key(full);  // a view of it
      if (place) care.place().published_by_ours(place->round, place->name, value);
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
    void erase(const std::string& key) override { host.keys().erase("/" + key); }
    Result<> count_in() override { return {}; }  // nobody waits for that
    TorchrunCare* owner() override { return &care; }
    Result<std::optional<MeetingPlace>> common_place() override {
      if (!host.options_.common_place) return std::optional<MeetingPlace>{};
      care.place().adopt();
      if (!workers) {
        StoreServerOptions options;
        options.bind = host.options_.bind;
        options.admits = host.options_.admits;
        workers = std::make_unique<StoreServer>(host.loop_, std::move(options));
        auto opened = workers->listen();
        if (!opened) {
          workers.reset();
          return opened.error();
        }
        port = *opened;
      }
      return std::optional{MeetingPlace{address.empty() ? "127.0.0.1" : address, port}};
    }
    bool empty(const MeetingPlace& place, std::int64_t round) override {
      if (workers && place.port == port) {
        workers->store().erase_if([](std::string_view) { return true; });
        return true;
      }
      if (emptying.valid() && !HelperThreads::over(emptying)) return false;  // one at a time, however rounds pass
      if (emptying.valid() && emptied_round == round) return true;
      emptied_round = round;
      emptying = host.helpers_.run([place] { delete_worker_keys(place.address, place.port, worker_keys_limit); });
      return false;
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
    std::future<void> emptying;
    std::int64_t emptied_round = -1;
    std::optional<MeetingPlace> asked_about;
    std::future<bool> answer;
    std::size_t clients = 0;              ///< torchrun's agents
    std::optional<TimePoint> over_since;  ///< closed, or without anybody
    std::vector<Held> held;               ///< looks at the state, until all have been told of a newcomer
    std::vector<Held> idle;               ///< the same, until there is something to do
    std::vector<Held> roles;              ///< until the workers' store is empty
  };

  Meeting& meeting(const RunId& run_id) { return meetings_.try_emplace(run_id, *this, run_id).first->second; }

  Taken takes(ClientId client, Request& request) override {
    if (request.query == Query::set) return takes_set(client, request);
    const auto found = meetings_.find(RunId{std::string{request.key.substr(torchrun_keys.size())}});
    if (found == meetings_.end()) return Taken::no;
    Meeting& its = found->second;
    if (its.care.holds(client) && hold(its.held, client, request)) {
      release(its);
      return waits_in(its.held, client) ? Taken::held : Taken::yes;
    }
    if (request.query == Query::get) {
      auto text = its.care.recall(client, its);
      if (text && show(client, request.key, Value{*std::move(text)})) return Taken::yes;
    }
    if (request.query == Query::compare_set && its.care.outsider(client, its) && closes(request.values.at(1).view())) {
      if (log_) log_(its.run_id, "a torchrun agent that is no part of the job any more has ended; the job goes on");
      if (show(client, request.key, request.values.at(1))) return Taken::yes;
    }
    if (request.query == Query::compare_set) write_now(client, request);
    return its.care.idles(client) && hold(its.idle, client, request) ? Taken::held : Taken::no;
  }

  /// Keeps the request for later. False: there is no room, it is to be served now.
  bool hold(std::vector<Held>& list, ClientId client, Request& request) {
    auto taken = held_.take(client, request);
    if (taken) list.push_back(*std::move(taken));
    return taken.has_value();
  }

  static bool waits_in(const std::vector<Held>& list, ClientId client) {
    return std::ranges::any_of(list, [&](const Held& held) { return held.client == client; });
  }

  static Result<TorchrunState> state_in(std::string_view text) {
    const auto pickle = from_base64(text);
    return pickle ? read_torchrun_state(*pickle) : Result<TorchrunState>{pickle.error()};
  }

  static bool closes(std::string_view text) {
    const auto state = state_in(text);
    return state && state->closed;
  }

  /// Answers with that value in place of the key's. By way of a key of its own, for a client is answered by the store
  /// alone. False: the store is full.
  bool show(ClientId client, std::string_view wire_key, Value value) {
    const std::string key = std::string{wire_key} + ".shown";
    if (!keys().set(key, std::move(value))) return false;
    Request get;
    get.query = Query::get;
    get.key = key;
    server_.apply(client, get);
    keys().erase(key);
    return true;
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
    if (!meetings_.contains(run_id) && !may_begin(run_id, key)) return;
    Meeting& its = meeting(run_id);
    const auto [place, newcomer] = clients_.try_emplace(client, run_id);
    if (newcomer) {
      ++its.clients;
      its.reached_by(server_.local_address(client));
    }
    // Nobody is an agent of two jobs: its end is told to one meeting.
    its.care.wrote(place->second == run_id ? std::optional{client} : std::nullopt, its);
    wake(its, {});
  }

  /// Whether a state of torchrun's stands at that key, for whose job there is room.
  bool may_begin(const RunId& run_id, std::string_view key) {
    const Value* const value = keys().find(key);
    if (!value || !state_in(value->view())) return false;
    if (meetings_.size() < meetings_max || make_room()) return true;
    if (log_ && !std::exchange(full_told_, true)) {
      log_(run_id, fmt::format("meetings_max: torchrun's agents of {} jobs are looked after; those of this one, and of "
                               "others that come, are left to themselves",
                               meetings_max));
    }
    return false;
  }

  /// The meeting that has been over for the longest time goes. False: none is.
  bool make_room() {
    auto oldest = meetings_.end();
    for (auto it = meetings_.begin(); it != meetings_.end(); ++it) {
      const auto& since = it->second.over_since;
      if (since && (oldest == meetings_.end() || *since < *oldest->second.over_since)) oldest = it;
    }
    if (oldest == meetings_.end()) return false;
    let_go(oldest);  // its keys stay: to find them takes a look at all that the store holds
    full_told_ = false;
    return true;
  }

  void gone(ClientId client) override {
    if (held_.gone(client)) {  // by a meeting that it has no part in, too
      for (auto& [run_id, its] : meetings_)
        for (auto* list : {&its.held, &its.idle, &its.roles})
          std::erase_if(*list, [&](const Held& held) { return held.client == client; });
    }
    const auto known = clients_.extract(client);
    const auto found = known ? meetings_.find(known.mapped()) : meetings_.end();
    if (found == meetings_.end()) return;
    Meeting& its = found->second;
    --its.clients;
    its.care.gone(client, its);
    release(its);
    wake(its, {});
  }

  void turn(TimePoint now, UtcTime utc) {
    std::set<RunId> due;
    for (auto& [run_id, its] : meetings_) {
      its.care.turn(
          its, [&, &idle = its.idle](ClientId client) { return keys().waits(client) || waits_in(idle, client); }, now,
          utc);
      release(its);
      wake(its, now);
      ask(its);
      for (const std::string& line : its.care.notes()) {
        if (log_) log_(its.run_id, line);
      }
      const bool over = its.care.state().closed || (its.clients == 0 && !its.care.has_ours());
      if (!over) its.over_since.reset();
      if (over && !its.over_since) its.over_since = now;
      if (over && now - *its.over_since >= meeting_kept) due.insert(run_id);
    }
    if (due.empty() || now < next_sweep_) return;
    next_sweep_ = now + meetings_sweep_pace;
    forget(due);
  }

  void forget(const std::set<RunId>& over) {
    keys().erase_if([&](std::string_view key) {
      if (!key.starts_with(torchrun_keys)) return false;
      const auto place = read_round_key(key);
      return over.contains(RunId{std::string{key.substr(torchrun_keys.size())}}) ||
             (place && over.contains(place->run_id));
    });
    for (const RunId& run_id : over) {
      if (const auto found = meetings_.find(run_id); found != meetings_.end()) let_go(found);
    }
  }

  Store& keys() { return server_.store(); }

  asio::io_context& loop_;
  StoreServer& server_;
  const TorchrunHostOptions options_;
  Log log_;
  HeldRequests held_;  ///< of all meetings; outlives them
  HelperThreads helpers_;
  bool full_told_ = false;
  TimePoint next_sweep_{};
  std::map<RunId, Meeting> meetings_;
  std::map<ClientId, RunId> clients_;

 private:
  Taken takes_set(ClientId client, Request& request) {
    const auto key = read_round_key(request.key);
    const auto found = key ? meetings_.find(key->run_id) : meetings_.end();
    if (found == meetings_.end()) return Taken::no;
    Meeting& its = found->second;
    its.reached_by(server_.local_address(client));
    const bool is_role = key->name.starts_with(torchrun_key::roles);
    if (is_role && its.care.place().holds_roles() && hold(its.roles, client, request)) return Taken::yes;
    return its.care.place().withholds(key->round, key->name, request.values.at(0).view()) ? Taken::yes : Taken::no;
  }

  void release(Meeting& its) {
    if (its.care.nobody_waits()) answer(std::exchange(its.held, {}));
    if (!its.care.place().holds_roles()) answer(std::exchange(its.roles, {}));
  }

  void wake(Meeting& its, std::optional<TimePoint> now) {
    std::vector<Held> due;
    std::erase_if(its.idle, [&](Held& held) {
      if (now && !held.since) held.since = now;
      const bool stays = its.care.idles(held.client) && (!now || *now - *held.since < idle_limit);
      if (!stays) due.push_back(std::move(held));
      return !stays;
    });
    answer(std::move(due));
  }

  void answer(std::vector<Held> list) {
    for (Held& held : list) {
      Request request;
      request.query = held.query;
      request.key = held.key;
      request.values = std::move(held.values);
      server_.apply(held.client, request);
    }
  }

  /// On a thread of its own, for names are looked up and machines may be silent.
  void ask(Meeting& its) {
    if (its.answer.valid() && !HelperThreads::over(its.answer)) return;
    if (its.answer.valid()) its.care.place().answered(*its.asked_about, its.answer.get(), its);
    if (!its.answer.valid() && its.care.place().question()) {
      its.asked_about = its.care.place().question();
      its.answer = helpers_.run([about = *its.asked_about] { return is_open(about); });
    }
  }

  void let_go(std::map<RunId, Meeting>::iterator it) {
    std::erase_if(clients_, [&](const auto& entry) { return entry.second == it->first; });
    meetings_.erase(it);
  }
};

TorchrunHost::TorchrunHost(asio::io_context& loop, StoreServer& server, TorchrunHostOptions options, Log log)
    : impl_{std::make_unique<Impl>(loop, server, std::move(options), std::move(log))} {}
TorchrunHost::~TorchrunHost() = default;

TorchrunStore* TorchrunHost::find(const RunId& run_id) {
  const auto found = impl_->meetings_.find(run_id);
  return found == impl_->meetings_.end() ? nullptr : &found->second;
}
bool TorchrunHost::attended(const RunId& run_id) const {
  const auto found = impl_->meetings_.find(run_id);
  return found != impl_->meetings_.end() && found->second.clients > 0;
}
bool TorchrunHost::closed(const RunId& run_id) const {
  const auto found = impl_->meetings_.find(run_id);
  return found != impl_->meetings_.end() && found->second.care.state().closed;
}
void TorchrunHost::forget(const RunId& run_id) {
  if (impl_->meetings_.contains(run_id)) impl_->forget({run_id});
}
TorchrunStore& TorchrunHost::store(const RunId& run_id) { return impl_->meeting(run_id); }
void TorchrunHost::reached_by(const RunId& run_id, const std::string& address) {
  impl_->meeting(run_id).reached_by(address);
}
void TorchrunHost::turn(TimePoint now, UtcTime utc) { impl_->turn(now, utc); }

std::vector<RunId> TorchrunHost::jobs() const {
  std::vector<RunId> list;
  for (const auto& [run_id, meeting] : impl_->meetings_) list.push_back(run_id);
  return list;
}

JobView TorchrunHost::view(const RunId& run_id, JobView known) const {
  const auto found = impl_->meetings_.find(run_id);
  const bool met = found != impl_->meetings_.end() && !found->second.care.state().last_heartbeats.empty();
  return met ? found->second.care.view(std::move(known)) : known;
}

}  // namespace torchup

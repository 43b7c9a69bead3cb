#include "rendezvous/net/coordinator/torchrun_host.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/core/torchrun/torchrun_care.hpp"
#include "rendezvous/net/coordinator/held_requests.hpp"
#include "rendezvous/net/coordinator/helper_threads.hpp"
#include "rendezvous/net/coordinator/hosted_meeting.hpp"
#include "rendezvous/net/store/blocking_connect.hpp"
#include "rendezvous/net/store/store_server.hpp"

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

/// Of the store, that are looked at in one go.
constexpr std::size_t keys_of_sweep = 8192;

}  // namespace

class TorchrunHost::Impl final : public StoreWatcher {
 public:
  Impl(asio::io_context& loop, StoreServer& server, TorchrunHostOptions options, Log log, Fault fault)
      : server_{server}, options_{std::move(options)}, log_{std::move(log)}, fault_{std::move(fault)},
        around_{loop, server, options_, helpers_, states_bytes_, [this](Meeting& its, std::size_t bytes) {
                  return make_room_for_state(meetings_, its, bytes,
                                             [this](const Meeting& other) { left_to_themselves(other); });
                }} {
    server_.watch(torchrun_keys, *this);  // from now to its end
  }

  using Held = HeldRequest;
  using Meeting = HostedMeeting;

  /// For somebody who needs it: it is over no more.
  Meeting& meeting(const RunId& run_id) {
    if (sweep_) sweep_->over.erase(run_id);
    return meetings_.try_emplace(run_id, around_, run_id).first->second;
  }

  Taken takes(ClientId client, Request& request) override {
    const auto round_key = request.query == Query::set ? read_round_key(request.key) : std::nullopt;
    if (request.query == Query::set && !round_key) return Taken::no;
    const auto found = meetings_.find(round_key ? round_key->run_id : run_id_in(request.key));
    if (found == meetings_.end() || found->second.fault) return Taken::no;
    try {
      return round_key ? takes_set(found->second, client, request, *round_key)
                       : takes_state(found->second, client, request);
    } catch (const std::bad_alloc&) {
      throw;  // the client's request has cost too much: the server closes its connection
    } catch (const std::exception& fault) {
      found->second.fault = fault.what();
      server_.refuse(client, "an internal fault where torchrun's agents of its job are looked after");
      return Taken::yes;
    }
  }

  Taken takes_state(Meeting& its, ClientId client, Request& request) {
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

  static bool closes(std::string_view text) {
    const auto state = torchrun_state_in(text);
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
    const RunId run_id = run_id_in(key);
    try {
      if (!meetings_.contains(run_id) && !may_begin(run_id, key)) return;
      Meeting& its = meeting(run_id);
      if (!its.fault) compared_in(its, run_id, client);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& fault) {
      meeting(run_id).fault = fault.what();
    }
  }

  void compared_in(Meeting& its, const RunId& run_id, ClientId client) {
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
    if (!value || !torchrun_state_in(value->view())) return false;
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
    if (its.fault) return;
    try {
      its.care.gone(client, its);
      release(its);
      wake(its, {});
    } catch (const std::exception& fault) {
      its.fault = fault.what();
    }
  }

  void turn(TimePoint now, UtcTime utc) {
    std::set<RunId> due;
    for (auto& [run_id, its] : meetings_) {
      if (its.fault) continue;
      try {
        turn_in(its, now, utc);
      } catch (const std::exception& fault) {
        its.fault = fault.what();
      }
      if (its.over_since && now - *its.over_since >= meeting_kept) due.insert(run_id);
    }
    end_faulty();
    if (sweep_ || due.empty() || now < next_sweep_) return;
    next_sweep_ = now + meetings_sweep_pace;
    begin_sweep(std::move(due));
  }

  void turn_in(Meeting& its, TimePoint now, UtcTime utc) {
    const auto waits = [&](ClientId client) { return keys().waits(client) || waits_in(its.idle, client); };
    its.care.turn(its, waits, now, utc);
    release(its);
    wake(its, now);
    ask(its);
    for (const std::string& line : its.care.notes()) {
      if (log_) log_(its.run_id, line);
    }
    const bool over = its.care.state().closed || (its.clients == 0 && !its.care.has_ours());
    if (!over) its.over_since.reset();
    if (over && !its.over_since) its.over_since = now;
  }

  /// Their keys stay.
  void end_faulty() {
    for (auto it = meetings_.begin(); it != meetings_.end();) {
      const auto each = it++;
      if (!each->second.fault) continue;
      const auto ended = let_go(each);
      if (fault_) fault_(ended.key(), *ended.mapped().fault);
    }
  }

  /// False: not yet.
  bool forget(const RunId& run_id) {
    if (!meetings_.contains(run_id)) return true;
    if (!sweep_) begin_sweep({run_id});
    return !meetings_.contains(run_id);
  }

  /// What meetings of jobs that are over have left goes in steps, with the loop's other work in between: others may
  /// have written millions of keys, and all are looked at.
  void begin_sweep(std::set<RunId> over) {
    sweep_.emplace(Sweep{std::move(over)});
    go_on_sweeping();
  }

  void go_on_sweeping() {
    const auto of_them = [&](std::string_view key) {
      if (!key.starts_with(torchrun_keys)) return false;
      const auto round_key = read_round_key(key);
      return sweep_->over.contains(run_id_in(key)) || (round_key && sweep_->over.contains(round_key->run_id));
    };
    if (!keys().erase_some(of_them, keys_of_sweep, sweep_->next)) {
      return asio::post(around_.loop, [this, alive = std::weak_ptr{alive_}] {
        if (!alive.expired()) go_on_sweeping();
      });
    }
    const auto sweep = std::exchange(sweep_, std::nullopt);
    for (const RunId& run_id : sweep->over) {
      if (const auto found = meetings_.find(run_id); found != meetings_.end()) let_go(found);
    }
  }

  Store& keys() { return server_.store(); }

  StoreServer& server_;
  const TorchrunHostOptions options_;
  Log log_;
  Fault fault_;
  HeldRequests held_;  ///< of all meetings; outlives them
  std::size_t states_bytes_ = 0;
  HelperThreads helpers_;
  MeetingSurroundings around_;
  bool full_told_ = false;
  struct Sweep {
    std::set<RunId> over;
    std::size_t next = 0;
  };
  std::optional<Sweep> sweep_;
  TimePoint next_sweep_{};
  HostedMeetings meetings_;
  std::map<ClientId, RunId> clients_;
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);

 private:
  static RunId run_id_in(std::string_view state_key) {
    return RunId{std::string{state_key.substr(torchrun_keys.size())}};
  }

  Taken takes_set(Meeting& its, ClientId client, Request& request, const TorchrunRoundKey& key) {
    its.reached_by(server_.local_address(client));
    const bool is_role = key.name.starts_with(torchrun_key::roles);
    if (is_role && its.care.place().holds_roles() && hold(its.roles, client, request)) return Taken::yes;
    return its.care.place().withholds(key.round, key.name, request.values.at(0).view()) ? Taken::yes : Taken::no;
  }

  void left_to_themselves(const Meeting& its) const {
    if (!log_) return;
    log_(its.run_id, fmt::format("states_bytes_max: what is kept of the states of torchrun's agents takes up {} bytes, "
                                 "and this job's is among the largest; they are left to themselves",
                                 states_bytes_max));
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

  /// Who waits there for an answer gets the store's own.
  HostedMeetings::node_type let_go(HostedMeetings::iterator it) {
    std::erase_if(clients_, [&](const auto& entry) { return entry.second == it->first; });
    auto gone = meetings_.extract(it);
    for (auto* list : {&gone.mapped().held, &gone.mapped().idle, &gone.mapped().roles})
      answer(std::exchange(*list, {}));
    return gone;
  }
};

TorchrunHost::TorchrunHost(asio::io_context& loop, StoreServer& server, TorchrunHostOptions options, Log log,
                           Fault fault)
    : impl_{std::make_unique<Impl>(loop, server, std::move(options), std::move(log), std::move(fault))} {}
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
bool TorchrunHost::forget(const RunId& run_id) { return impl_->forget(run_id); }
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

JobView TorchrunHost::view(const RunId& run_id, JobView known,
                           const std::map<TorchrunNode, JobView::Node>& ours) const {
  const auto found = impl_->meetings_.find(run_id);
  const bool met = found != impl_->meetings_.end() && !found->second.care.state().last_heartbeats.empty();
  return met ? found->second.care.view(std::move(known), ours) : known;
}

}  // namespace torchup

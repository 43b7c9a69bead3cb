#include "candidate_node.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/core/membership/ended_jobs.hpp"
#include "rendezvous/core/membership/job_codec.hpp"

namespace torchup::simulation {
namespace {

Endpoint place_of(std::size_t node, int life) {
  return {fmt::format("n{}", node), Port{static_cast<std::uint16_t>(1000 + life)}};
}

}  // namespace

void TakeoverWorld::workers_start(std::size_t node, Round round) {
  working[node].round = round;
  ++rounds;
  check();
}

void TakeoverWorld::check() const {
  std::optional<Round> running;
  for (const Working& each : working) {
    if (!each.round || !each.process->alive() || each.process->stopped()) continue;
    // What wakes looks at its clock before all else, and its workers are gone a moment later.
    if (each.process->stops() > 0 && world.now() < each.process->awake_since() + 50ms) continue;
    if (running && *running != *each.round) {
      world.broken(fmt::format("workers of rounds {} and {} at once", running->value(), each.round->value()));
    }
    running = each.round;
  }
}

void TakeoverWorld::ends(const Verdict& told) {
  if (verdict && (verdict->exit_code != told.exit_code || verdict->reason != told.reason)) {
    world.broken(fmt::format("two verdicts: {} ({}) and {} ({})", verdict->exit_code, verdict->reason, told.exit_code,
                             told.reason));
  }
  verdict = told;
}

CandidateNode::CandidateNode(TakeoverWorld& around, std::size_t node, int life, double rate)
    : around_{around}, world_{around.world}, node_{node}, life_{life}, process_{around.world, rate} {
  around_.working[node_] = {{}, &process_};
}

std::string CandidateNode::name() const { return fmt::format("n{}_{}", node_, life_); }

void CandidateNode::begin() {
  world_.say(name() + " starts");
  CoordinatorLinkSettings settings{.run_id = RunId{"job"},
                                   .join_timeout = around_.terms.join_timeout,
                                   .directed = true,
                                   .seed = static_cast<std::uint64_t>(world_.pick(0, 1 << 30))};
  link_.emplace(std::move(settings), process_.clock());
  candidacy_.emplace(CandidacySettings{.lease = around_.terms.lease, .campaign_wait = world_.milliseconds(0, 500)},
                     process_.clock());
  process_.on_wake([this] {
    step(link::Wake{});
    if (alive()) seek(candidacy::Wake{});
    if (alive() && rendezvous_) decide(Tick{});
    return due();
  });
  seek(candidacy::Wake{});
  join();
}

std::optional<TimePoint> CandidateNode::due() const {
  std::optional<TimePoint> first = link_->deadline();
  const auto consider = [&](std::optional<TimePoint> at) {
    if (at && (!first || *at < *first)) first = at;
  };
  consider(candidacy_->deadline());
  if (rendezvous_) consider(rendezvous_->deadline());
  return first;
}

void CandidateNode::kill() {
  world_.say(name() + " is killed");
  end_workers();
  process_.kill();
  around_.wires.kill(process_);
  lines_.clear();
  sessions_.clear();
  rendezvous_.reset();
  port_open_ = false;
}

void CandidateNode::go_on() {
  if (!alive() || !process_.stopped()) return;
  if (world_.one_in(2)) process_.run([this] { step(link::Wake{}); });
  process_.go_on();
  world_.after(51ms, [this] { around_.check(); });
}

// ---- the agent

void CandidateNode::step(const link::Event& event) {
  if (!alive() || !link_) return;  // it may be stopped before it has begun
  auto actions = link_->step(event, process_.clock());
  for (const link::Action& action : actions) {
    std::visit([this](const auto& wanted) { perform(wanted); }, action);
  }
  process_.arm(due());
}

void CandidateNode::perform(const link::Dial& dial) {
  const Endpoint to = dial.endpoint.value_or(Endpoint{});
  const LineId line_id = dial.line;
  const auto fail = [this, line_id](bool refused) {
    process_.run([this, line_id, refused] {
      step(link::DialFailed{line_id, refused, refused ? "refused" : "no answer"});
    });
  };
  CandidateNode* target = nullptr;
  for (CandidateNode* each : around_.nodes) {
    if (each->node_ == static_cast<std::size_t>(to.host.size() > 1 ? to.host[1] - '0' : 99)) target = each;
  }
  if (!target) return world_.after(1ms, [fail] { fail(false); });
  const std::size_t there = target->node_;
  world_.after(world_.milliseconds(1, 10), [this, there, to, line_id, fail, limit = dial.limit] {
    if (!alive()) return;
    if (!around_.wires.reaches(node_, there)) return world_.after(limit, [fail] { fail(false); });
    CandidateNode* host = around_.nodes[there];
    const bool listens = host->alive() && host->port_open_ && place_of(there, host->life_) == to;
    if (!listens) return fail(true);
    const auto line = around_.wires.connect(node_, process_, there, host->process_);
    process_.run([this, host, line, line_id] {
      lines_.emplace(line_id, line);
      line->ends[0].on_closed = [this, line_id](bool end_of_file) {
        if (lines_.erase(line_id) > 0) step(link::Closed{line_id, end_of_file ? "" : "reset"});
      };
      host->process_.run([this, host, line, line_id] {
        host->accept(line, [this, line, line_id](CoordinatorFrame frame) {
          process_.run([this, line_id, frame = std::move(frame)] {
            if (lines_.contains(line_id)) step(link::Heard{line_id, frame});
          });
        });
      });
      step(link::Dialled{line_id});
    });
  });
}

void CandidateNode::perform(const link::Write& write) {
  const auto found = lines_.find(write.line);
  if (found == lines_.end()) return;
  CandidateNode* const host = around_.nodes[found->second->nodes[1]];
  around_.wires.send(found->second, 0, [host, line = found->second, frame = write.frame] {
    if (line->ends[1].process != &host->process_) return;
    host->process_.run([host, line, frame] { host->heard(line, frame); });
  });
}

void CandidateNode::perform(const link::Close& close) {
  const auto found = lines_.find(close.line);
  if (found == lines_.end()) return;
  const auto line = found->second;
  lines_.erase(found);
  around_.wires.close(line, 0, close.how == link::Close::How::after_writes);
}

void CandidateNode::perform(const link::Tell& tell) {
  if (const auto* lost = std::get_if<LinkLost>(&tell.event)) {
    world_.broken(name() + " gives up: " + lost->reason);
  }
  auto message = std::get<CoordinatorMessage>(tell.event);
  process_.later(0s, [this, message = std::move(message)] {
    if (!over_) std::visit([this](const auto& said) { obey(said); }, message);
  });
}

void CandidateNode::join() {
  if (over_) return;
  Join join;
  join.node = NodeId{fmt::format("{}_{}", name(), link_->incarnation())};
  join.host = fmt::format("n{}", node_);
  join.local_world_size = 1;
  join.terms = around_.terms;
  step(link::Say{std::move(join)});
}

void CandidateNode::obey(const HostStore& host) {
  process_.later(world_.milliseconds(0, 20), [this, round = host.round] {
    if (!over_) step(link::Say{StoreReady{round, Port{static_cast<std::uint16_t>(world_.pick(1024, 65535))}}});
  });
}

void CandidateNode::obey(const Placed& placed) {
  world_.say(fmt::format("{} starts workers of round {}", name(), placed.placement.round.value()));
  seek_later(candidacy::Hint{});
  candidacy_->set_campaign_wait(campaign_wait_of(placed.placement.group_rank));
  around_.workers_start(node_, placed.placement.round);
  work(placed.placement.round, ++workers_number_);
}

void CandidateNode::obey(const StopWorkers& stop) {
  const bool fenced = stop.cause == StopCause::fenced;
  world_.say(fmt::format("{} stops round {}{}: {}", name(), stop.round.value(), fenced ? " (fenced)" : "", stop.reason));
  const int number = ++workers_number_;
  if (fenced) ++around_.fences;
  if (fenced && around_.without == Without::fence) {
    return process_.later(around_.terms.lease * 2, [this] {
      end_workers();
      join();
    });
  }
  if (fenced) {
    world_.after(world_.milliseconds(1, 20), [this, number] {
      if (alive() && number == workers_number_) end_workers();
    });
  }
  process_.later(fenced ? world_.milliseconds(21, 40) : world_.milliseconds(0, 300), [this, number] {
    if (number != workers_number_ || over_) return;
    end_workers();
    join();
  });
}

void CandidateNode::obey(const End& end) {
  world_.say(fmt::format("{} ends with {}: {}", name(), end.verdict.exit_code, end.verdict.reason));
  around_.ends(end.verdict);
  over_ = true;
  ++workers_number_;
  end_workers();
  // As a launcher does: whoever serves stays a while for the others, and then gives the seat back.
  process_.later(3s, [this] {
    step(link::Finish{});
    seek(candidacy::Leave{});
    for (const auto& [id, line] : std::exchange(lines_, {})) around_.wires.close(line, 0, true);
  });
}

void CandidateNode::work(Round round, int number) {
  process_.later(world_.milliseconds(100, 3000), [this, round, number] {
    if (number != workers_number_ || over_) return;
    if (around_.workers_may_finish) {
      end_workers();
      return step(link::Say{WorkersSucceeded{round}});
    }
    if (!around_.workers_may_fail || !world_.one_in(30)) return work(round, number);
    world_.say(name() + ": a worker fails");
    WorkersFailed failed{.round = round};
    failed.failures.push_back({.exit_code = 1, .host = fmt::format("n{}", node_)});
    ++workers_number_;
    step(link::Say{std::move(failed)});
  });
}

// ---- the candidate

void CandidateNode::seek_later(candidacy::Event event) {
  process_.later(0s, [this, event = std::move(event)] { seek(event); });
}

void CandidateNode::seek(const candidacy::Event& event) {
  if (!alive()) return;
  for (const candidacy::Action& action : candidacy_->step(event, process_.clock())) {
    std::visit([this](const auto& wanted) { perform(wanted); }, action);
  }
  process_.arm(due());
}

void CandidateNode::perform(const candidacy::Look& look) {
  auto seen = std::make_shared<std::pair<std::optional<EtcdModel::Seat>, std::int64_t>>();
  auto verdict = std::make_shared<std::optional<Verdict>>();
  around_.etcd.ask(
      node_, process_,
      [this, seen, verdict] {
        *seen = {around_.etcd.seat(), around_.etcd.revision()};
        if (around_.etcd.state()) *verdict = around_.etcd.state()->verdict;
      },
      [this, seen, verdict, number = look.number](bool answered) {
        if (!answered) return seek(candidacy::Failed{number});
        if (*verdict && candidacy_->role() != Candidacy::Role::holding) step(link::Ended{**verdict});
        candidacy::View view{.revision = etcd::Revision{seen->second}};
        if (const auto& seat = seen->first) {
          view.term = Term{seat->term};
          view.lease = etcd::LeaseId{seat->lease};
          const int life = seat->agent.back() - '0';
          view.holder.endpoints = {place_of(seat->node, life)};
          if (candidacy_->role() != Candidacy::Role::holding) former_ = seat;
        }
        seek(candidacy::Read{number, std::move(view)});
      });
}

void CandidateNode::perform(const candidacy::Grant& grant) {
  auto lease = std::make_shared<std::int64_t>(0);
  around_.etcd.ask(
      node_, process_, [this, lease, ttl = grant.ttl] { *lease = around_.etcd.grant(ttl); },
      [this, lease, number = grant.number](bool answered) {
        if (!answered) return seek(candidacy::Failed{number});
        seek(candidacy::Granted{number, etcd::LeaseId{*lease}});
      });
}

void CandidateNode::perform(const candidacy::Take& take) {
  port_open_ = true;
  struct Taking {
    bool taken = false;
    std::int64_t term = 0;
    std::optional<EtcdModel::State> state;
  };
  auto taking = std::make_shared<Taking>();
  around_.etcd.ask(
      node_, process_,
      [this, taking, take] {
        taking->taken = around_.etcd.take(take.was.value(), {node_, 0, take.lease.value(), name()});
        if (!taking->taken) return;
        taking->term = around_.etcd.seat()->term;
        taking->state = around_.etcd.state();
      },
      [this, taking, number = take.number](bool answered) {
        if (!answered) return seek(candidacy::Failed{number});
        if (!taking->taken) return seek(candidacy::Missed{number});
        read_ = taking->state;
        seek(candidacy::Taken{number, Term{taking->term}});
      });
}

void CandidateNode::perform(const candidacy::Renew& renew) {
  auto alive_there = std::make_shared<bool>(false);
  around_.etcd.ask(
      node_, process_, [this, alive_there, lease = renew.lease] { *alive_there = around_.etcd.renew(lease.value()); },
      [this, alive_there, number = renew.number](bool answered) {
        if (!answered) return seek(candidacy::Failed{number});
        seek(candidacy::Renewed{number, *alive_there});
      });
}

void CandidateNode::perform(const candidacy::Revoke& revoke) {
  around_.etcd.ask(
      node_, process_, [this, lease = revoke.lease] { around_.etcd.revoke(lease.value()); }, [](bool) {});
}

void CandidateNode::perform(const candidacy::Vacate& vacate) {
  around_.etcd.ask(
      node_, process_, [this, vacate] { around_.etcd.vacate_of(vacate.term.value()); }, [](bool) {});
}

void CandidateNode::perform(const candidacy::Serve& serve) {
  world_.say(fmt::format("{} serves, term {}{}{}", name(), serve.term.value(), serve.again ? ", again" : "",
                         serve.proved ? ", proved" : ""));
  ++around_.takeovers;
  const bool ours = rendezvous_ && ((read_ ? read_->changed : 0) == head_ ||
                                    (writing_ && read_ && read_->serial == serial_ && read_->bytes == bytes_));
  if (serve.again && ours) {
    term_ = serve.term;
    head_ = read_ ? read_->changed : 0;
    if (writing_) look_at_state();
  } else {
    if (serves_now_) end_tenure({serve.term.value(), {to_string(place_of(node_, life_))}});
    term_ = serve.term;
    serves_now_ = true;
    ++tenure_;
    head_ = read_ ? read_->changed : 0;
    serial_ = read_ ? read_->serial : 0;
    writing_ = false;
    held_.clear();
    proof_ = {};
    proof_round_.reset();
    RendezvousSettings settings;
    settings.started = TimePoint{TimePoint::min().time_since_epoch() / 2};
    if (around_.without == Without::waiting) settings.return_limit = 1s;
    if (read_) {
      Takeover from{.proved = serve.proved || around_.without == Without::witness};
      if (serve.proved && former_ && former_->term == serve.before.value()) from.holder = former_->agent;
      rendezvous_.emplace(settings, decode_job(read_->bytes)->snapshot, process_.clock(), from);
    } else {
      rendezvous_.emplace(settings);
    }
    saved_ = rendezvous_->revision();
    decide(Tick{});
  }
  step(link::Directed{serve.term.value(), {place_of(node_, life_)}});
}

void CandidateNode::perform(const candidacy::Yield& yield) {
  world_.say(fmt::format("{} yields to term {}", name(), yield.term.value()));
  Elsewhere elsewhere{yield.term.value(), {}};
  for (const Endpoint& each : yield.endpoints) elsewhere.endpoints.push_back(to_string(each));
  end_tenure(elsewhere);
}

void CandidateNode::perform(const candidacy::Attend& attend) {
  elsewhere_ = {attend.term.value(), {}};
  for (const Endpoint& each : attend.endpoints) elsewhere_.endpoints.push_back(to_string(each));
  step(link::Directed{attend.term.value(), attend.endpoints});
}

// ---- the coordinator

void CandidateNode::end_tenure(const Elsewhere& elsewhere) {
  elsewhere_ = elsewhere;
  serves_now_ = false;
  ++tenure_;
  rendezvous_.reset();
  held_.clear();
  writing_ = false;
  by_peer_.clear();
  for (auto& [key, session] : std::exchange(sessions_, {})) {
    write(session, elsewhere);
    session.line->ends[1].on_closed = {};
    around_.wires.close(session.line, 1, true);
  }
}

void CandidateNode::accept(const Wires::LinePtr& line, std::function<void(CoordinatorFrame)> deliver) {
  if (!line->ends[1].open) return;
  sessions_.emplace(line.get(), Session{line, std::move(deliver)});
  line->ends[1].on_closed = [this, weak = std::weak_ptr{line}](bool end_of_file) {
    if (const auto self = weak.lock()) closed(self, end_of_file);
  };
}

void CandidateNode::heard(const Wires::LinePtr& line, const AgentFrame& frame) {
  const auto found = sessions_.find(line.get());
  if (found == sessions_.end() || !alive()) return;
  Session& session = found->second;
  if (std::holds_alternative<Hello>(frame)) {
    if (!serves_now_) {
      write(session, elsewhere_);
      around_.wires.close(line, 1, true);
      sessions_.erase(found);
      return;
    }
    session.peer = Peer{static_cast<std::uint32_t>(by_peer_.size())};
    by_peer_.push_back(line.get());
    decide(Connected{*session.peer, "10.0.0.1", "10.0.0.254", false});
    return write(session, Welcome{.term = term_.value()});
  }
  if (!session.peer) return;
  const Peer peer = *session.peer;
  if (const auto* alive_word = std::get_if<KeepAlive>(&frame)) {
    decide(Alive{peer});
    return answer(session, *alive_word);
  }
  if (const auto* moved = std::get_if<Moved>(&frame)) {
    candidacy::Outvoted outvoted{Term{moved->term}};
    for (const std::string& text : moved->endpoints) outvoted.endpoints.push_back(*parse_endpoint(text, Port{0}));
    closed(line, false);
    return seek(outvoted);
  }
  if (const auto* resume = std::get_if<Resume>(&frame)) return decide(Resumed{peer, *resume});
  std::visit(
      [&](const auto& message) {
        using Message = std::decay_t<decltype(message)>;
        if constexpr (std::is_constructible_v<AgentMessage, Message>) decide(Said{peer, message});
      },
      frame);
}

void CandidateNode::closed(const Wires::LinePtr& line, bool end_of_file) {
  const auto found = sessions_.find(line.get());
  if (found == sessions_.end()) return;
  const auto peer = found->second.peer;
  sessions_.erase(found);
  line->ends[1].on_closed = {};
  if (!peer || !rendezvous_) return;
  by_peer_[peer->value()] = nullptr;
  if (const auto slot = rendezvous_->members().connection(*peer).member) {
    proof_.detached(rendezvous_->members().at(*slot).join->node);
  }
  decide(Gone{*peer, end_of_file});
}

void CandidateNode::answer(Session& session, const KeepAlive& alive_word) {
  if (!rendezvous_) return;
  const TimePoint now = process_.clock();
  if (const auto slot = rendezvous_->members().connection(*session.peer).member) {
    const NodeId& node = rendezvous_->members().at(*slot).join->node;
    if (alive_word.seen != 0) proof_.echoed(node, alive_word.seen);
    proof_.answered(node, alive_word.number, now);
    if (around_.without == Without::echo) proof_.echoed(node, alive_word.number);
  }
  const Duration age = around_.without == Without::age ? Duration{0} : proof_.age(now).value_or(duration_max);
  write(session, KeepAliveAnswer{.number = alive_word.number,
                                 .age = age,
                                 .seated = candidacy_->seated(),
                                 .term = term_.value()});
}

void CandidateNode::update_proof() {
  auto complete = rendezvous_->complete_round();
  if (!complete && around_.without == Without::decision && proof_round_) complete = proof_round_;
  if (complete == proof_round_) return;
  proof_round_ = complete;
  if (!complete) return proof_.round_over();
  std::vector<NodeId> members;
  for (const auto& [node, slot] : rendezvous_->members().slots()) {
    if (rendezvous_->members().at(slot).in_round()) members.emplace_back(node);
  }
  proof_.round_runs(members);
}

void CandidateNode::decide(const RendezvousEvent& event) {
  if (!rendezvous_) return;
  auto actions = rendezvous_->step(event, process_.clock());
  update_proof();
  keep(std::move(actions));
  process_.arm(due());
}

void CandidateNode::write(const Session& session, CoordinatorFrame frame) {
  around_.wires.send(session.line, 1, [deliver = session.deliver, frame = std::move(frame)] { deliver(frame); });
}

void CandidateNode::tell(std::vector<RendezvousAction> actions) {
  for (RendezvousAction& action : actions) {
    if (const auto* note = std::get_if<Note>(&action); note && world_.verbose()) world_.say("    " + to_text(*note));
    world_.promise(!std::holds_alternative<Refuse>(action), "an agent that fits was refused");
    auto* const said = std::get_if<Tell>(&action);
    if (!said || !by_peer_.at(said->peer.value())) continue;
    const Session& session = sessions_.at(by_peer_[said->peer.value()]);
    std::visit([&](auto& message) { write(session, std::move(message)); }, said->message);
  }
}

// As net/coordinator/job_keeper has it for an archive that binds.

void CandidateNode::keep(std::vector<RendezvousAction> actions) {
  const auto is_fence = [](const RendezvousAction& action) {
    const auto* said = std::get_if<Tell>(&action);
    const auto* stop = said ? std::get_if<StopWorkers>(&said->message) : nullptr;
    return stop && stop->cause == StopCause::fenced;
  };
  std::vector<RendezvousAction> fences;
  std::ranges::copy_if(actions, std::back_inserter(fences), is_fence);
  for (const RendezvousAction& fence : fences) {
    for (Held& held : held_) {
      std::erase_if(held.actions, [&](const RendezvousAction& action) {
        const auto* said = std::get_if<Tell>(&action);
        return said && said->peer == std::get<Tell>(fence).peer;
      });
    }
  }
  std::erase_if(actions, is_fence);
  tell(std::move(fences));
  const auto waits = [](const RendezvousAction& action) {
    const auto* said = std::get_if<Tell>(&action);
    return decides(action) && !(said && std::holds_alternative<HostStore>(said->message));
  };
  const std::uint64_t revision = rendezvous_->revision();
  const bool wait =
      revision > saved_ && std::ranges::any_of(actions, waits) && around_.without != Without::commit;
  if (wait || !held_.empty()) {
    held_.push_back({wait ? revision : saved_, std::move(actions)});
  } else {
    tell(std::move(actions));
  }
  if (revision == saved_ || writing_) return;
  if (wait) return save();
  process_.later(2s, [this, tenure = tenure_] {
    if (tenure == tenure_ && rendezvous_ && !writing_ && rendezvous_->revision() != saved_) save();
  });
}

void CandidateNode::save() {
  writing_ = true;
  writing_revision_ = rendezvous_->revision();
  bytes_ = encode_job({RunId{"job"}, rendezvous_->snapshot(process_.clock())});
  ++serial_;
  auto done = std::make_shared<std::pair<bool, std::int64_t>>();
  around_.etcd.ask(
      node_, process_,
      [this, done, term = term_, head = head_, serial = serial_, bytes = bytes_, verdict = rendezvous_->verdict()] {
        done->first = around_.etcd.write(term.value(), head, serial, bytes, verdict);
        done->second = around_.etcd.revision();
      },
      [this, done, tenure = tenure_](bool answered) {
        if (tenure != tenure_ || !writing_) return;
        if (answered && done->first) return kept(done->second);
        look_at_state();
      });
}

void CandidateNode::look_at_state() {
  struct Seen {
    std::optional<EtcdModel::Seat> seat;
    std::optional<EtcdModel::State> state;
  };
  auto seen = std::make_shared<Seen>();
  around_.etcd.ask(
      node_, process_, [this, seen] { *seen = {around_.etcd.seat(), around_.etcd.state()}; },
      [this, seen, tenure = tenure_](bool answered) {
        if (tenure != tenure_ || !writing_) return;
        const auto again = [this, tenure] {
          process_.later(100ms, [this, tenure] {
            if (tenure == tenure_ && writing_) look_at_state();
          });
        };
        if (!answered) return again();
        if (!seen->seat || seen->seat->term != term_.value()) {
          seek(candidacy::Outvoted{Term{0}});
          return again();
        }
        head_ = seen->state ? seen->state->changed : 0;
        if (seen->state && seen->state->serial == serial_) return kept(head_);
        save();
      });
}

void CandidateNode::kept(std::int64_t changed) {
  head_ = changed;
  writing_ = false;
  saved_ = writing_revision_;
  while (!held_.empty() && held_.front().revision <= saved_) {
    Held next = std::move(held_.front());
    held_.pop_front();
    tell(std::move(next.actions));
  }
  if (rendezvous_ && rendezvous_->revision() != saved_) {
    if (!held_.empty()) return save();
    keep({});
  }
}

}  // namespace torchup::simulation

#include "coordinator.hpp"

#include <algorithm>

#include "rendezvous/core/membership/ended_jobs.hpp"
#include "rendezvous/core/membership/job_codec.hpp"

namespace torchup::simulation {

Coordinator::Coordinator(World& world, Network& network, Promises& promises, double rate, bool keeps_state,
                         Mutation mutation)
    : world_{world}, network_{network}, promises_{promises}, rate_{rate}, keeps_state_{keeps_state}, mutation_{
                                                                                                         mutation} {
  if (mutation == Mutation::short_return) settings_.return_limit = settings_.patience = 5s;
  start();
}

void Coordinator::start() {
  if (process_) former_.push_back(std::move(process_));
  process_ = std::make_unique<Process>(world_, rate_);
  settings_.started = process_->clock();
  process_->on_wake([this] {
    step(Tick{});
    return rendezvous_->deadline();
  });
  if (saved_.empty() || !keeps_state_) {
    if (!saved_.empty()) promises_.lost_memory();
    rendezvous_.emplace(settings_);
    return save();
  }
  const auto saved = decode_job(saved_);
  world_.promise(saved.has_value() && encode_job(*saved) == saved_, "the saved job cannot be read back");
  rendezvous_.emplace(settings_, saved->snapshot, process_->clock());
  world_.promise(rendezvous_->snapshot(process_->clock()) == saved->snapshot, "the restored job is another one");
  step(Tick{});
}

void Coordinator::kill() {
  for (auto& [number, session] : sessions_) {
    network_.close(session.connection, Connection::coordinator, !world_.one_in(4));
  }
  sessions_.clear();
  by_peer_.clear();
  rendezvous_.reset();
  process_->kill();
}

void Coordinator::pause(Duration lasts) {
  process_->stop();
  Process* const paused = process_.get();
  world_.after(lasts, [this, paused] {
    if (paused != process_.get()) return;
    // What wakes it first is its timer, or what lies unread.
    if (rendezvous_ && world_.one_in(2)) {
      paused->run([this] { step(Tick{}); });
    }
    paused->go_on();
  });
}

bool Coordinator::order(const Order& order) {
  if (!rendezvous_ || process_->stopped()) return false;
  const OrderAnswer answer = rendezvous_->answer(order, process_->clock());
  world_.say("order: " + std::string{verb_of(order)} + ": " + answer.text);
  if (answer.accepted) {
    promises_.ordered(order, [&](const std::string& name) { return agent_at(name); });
  }
  step(Ordered{order, "the simulation"});
  return answer.accepted;
}

/// The agent on that host, by its name in node ids.
std::string Coordinator::agent_at(const std::string& host) const {
  const Membership& members = rendezvous_->members();
  for (const auto& [node, slot] : members.slots()) {
    if (members.at(slot).join->host == host) return agent_name(NodeId{node});
  }
  return {};
}

bool Coordinator::is_drained(const std::string& agent) const {
  const Membership& members = rendezvous_->members();
  return std::ranges::any_of(members.slots(), [&](const auto& entry) {
    return agent_name(NodeId{entry.first}) == agent && members.at(entry.second).drained;
  });
}

void Coordinator::accept(const ConnectionPtr& connection, std::function<void(const CoordinatorFrame&)> deliver) {
  sessions_.emplace(connection->number, Session{connection, std::move(deliver)});
  connection->sides[Connection::coordinator].on_closed = [this, number = connection->number](bool end_of_file) {
    closed(number, end_of_file);
  };
}

void Coordinator::heard(const ConnectionPtr& connection, const AgentFrame& frame) {
  const auto found = sessions_.find(connection->number);
  if (found == sessions_.end()) return;
  Session& session = found->second;
  if (std::holds_alternative<Hello>(frame)) {
    session.peer = Peer{static_cast<std::uint32_t>(by_peer_.size())};
    by_peer_.push_back(&session);
    step(Connected{*session.peer, "10.0.0.1", "10.0.0.254", false});
    return write(session, Welcome{});
  }
  const Peer peer = *session.peer;
  if (const auto* alive = std::get_if<KeepAlive>(&frame)) {
    step(Alive{peer});
    return write(session, KeepAliveAnswer{alive->number});
  }
  if (const auto* resume = std::get_if<Resume>(&frame)) {
    session.node = resume->join.node.value();
    return step(Resumed{peer, *resume});
  }
  std::visit(
      [&](const auto& message) {
        using Message = std::decay_t<decltype(message)>;
        if constexpr (std::is_constructible_v<AgentMessage, Message>) {
          if constexpr (std::is_same_v<Message, Join>) session.node = message.node.value();
          step(Said{peer, message});
        }
      },
      frame);
}

void Coordinator::closed(std::uint64_t connection, bool end_of_file) {
  const auto found = sessions_.find(connection);
  if (found == sessions_.end()) return;
  const auto peer = found->second.peer;
  if (peer) by_peer_[peer->value()] = nullptr;
  sessions_.erase(found);
  if (peer) step(Gone{*peer, end_of_file || mutation_ == Mutation::reset_is_end});
}

void Coordinator::save() { saved_ = encode_job({RunId{"job"}, rendezvous_->snapshot(process_->clock())}); }

void Coordinator::step(const RendezvousEvent& event) {
  const TimePoint now = process_->clock();
  const std::uint64_t revision = rendezvous_->revision();
  std::optional<JobSnapshot> before;
  if (world_.one_in(16)) before = rendezvous_->snapshot(now);
  std::vector<RendezvousAction> actions = rendezvous_->step(event, now);
  const bool changed = rendezvous_->revision() != revision;
  if (before) world_.promise(changed || rendezvous_->snapshot(now) == *before, "a change was not counted");
  // As net/job_keeper has it: nothing is told that is not saved, the rest is saved now and then.
  const bool must = std::any_of(actions.begin(), actions.end(), decides) && mutation_ != Mutation::told_before_saved;
  if (keeps_state_ && changed && (must || world_.one_in(4))) save();
  for (RendezvousAction& action : actions) {
    if (const auto* note = std::get_if<Note>(&action)) {
      if (world_.verbose()) world_.say("    " + to_text(*note));
      if (std::holds_alternative<JobBegunAnew>(*note)) promises_.job_begins();
      if (std::holds_alternative<JobConcluded>(*note)) promises_.decided(*rendezvous_->verdict(), false);
    }
    world_.promise(!std::holds_alternative<Refuse>(action), "an agent that fits was refused");
    if (auto* tell = std::get_if<Tell>(&action)) perform(*tell);
  }
  process_->arm(rendezvous_->deadline());
}

void Coordinator::perform(Tell& tell) {
  const Session* const session = by_peer_.at(tell.peer.value());
  if (!session) return;
  if (const auto* placed = std::get_if<Placed>(&tell.message)) promises_.placed(session->node, placed->placement);
  if (const auto* stop = std::get_if<StopWorkers>(&tell.message)) promises_.stopped(*stop);
  if (const auto* end = std::get_if<End>(&tell.message)) {
    const bool own = end->verdict.reason == leave_reason || end->verdict.reason == saved_reason;  // or it is noted
    promises_.decided(end->verdict, own);
  }
  std::visit([&](auto& message) { write(*session, std::move(message)); }, tell.message);
}

void Coordinator::write(const Session& session, CoordinatorFrame frame) {
  network_.send(session.connection, Connection::coordinator,
                [deliver = session.deliver, frame = std::move(frame)] { deliver(frame); });
}

}  // namespace torchup::simulation

#include "tests/simulation/fan_out/front.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace torchup::simulation {

Front::Front(Around& around, FanOutSettings settings, Starter starter)
    : around_{around}, world_{around.world}, settings_{std::move(settings)}, starter_{std::move(starter)},
      process_{around.world, 1.0}, machine_{settings_} {
  process_.on_wake([this] { return wake(); });
}

void Front::begin() { step(fan::Begin{}); }

void Front::signal(int number) {
  world_.say(fmt::format("the front gets signal {}", number));
  process_.run([this, number] { step(fan::SignalCame{number}); });
}

void Front::list(std::vector<Host> hosts) {
  process_.run([this, hosts = std::move(hosts)] { step(fan::Listed{hosts}); });
}

void Front::kill() {
  world_.say("the front is killed");
  for (const auto& [number, link] : links_) link.wire->close(Wire::front);
  links_.clear();
  process_.kill();
}

void Front::stop() {
  world_.say("the front is stopped");
  process_.stop();
}

void Front::go_on() {
  if (!alive()) return;
  world_.say("the front goes on");
  process_.go_on();
}

void Front::kill_a_client() {
  if (links_.empty()) return;
  const auto which = std::next(links_.begin(), world_.pick(0, static_cast<int>(links_.size()) - 1));
  world_.say(fmt::format("the ssh of link {} is killed", which->first.value()));
  which->second.wire->lose_client();
}

// ---- the machine

void Front::step(const fan::Event& event) {
  if (!alive()) return;
  for (const fan::Action& action : machine_.step(event, process_.clock())) {
    std::visit([&](const auto& wanted) { perform(wanted); }, action);
  }
  if (alive()) process_.arm(machine_.deadline());
}

void Front::perform(const fan::Start& start) {
  around_.truth.starts(start.link, start.host.name);
  const WirePtr wire = std::make_shared<Wire>(world_);
  wire->attach(Wire::front, process_);
  wire->on_closed(Wire::front, [this, number = start.link] { lose(number, "its ssh ended"); });
  SimulatedHost::Ears ears{
      .control = [this, number = start.link](const FarMessage& message) { hear(number, message); },
      .agent = [this, number = start.link](const AgentFrame& frame) { hear(number, frame); },
  };
  Link& link = links_[start.link];
  link.wire = wire;
  link.host = starter_(start, wire, std::move(ears));
  LinkPlan plan{.version = std::string{here_version}, .name = start.host.name, .node = start.node};
  perform(fan::Send{start.link, std::move(plan)});
  ping(start.link);
}

void Front::perform(const fan::Send& send) {
  const auto found = links_.find(send.link);
  if (found == links_.end()) return;
  SimulatedHost* const host = found->second.host;
  found->second.wire->send(Wire::front, [host, message = send.message] { host->hear(message); });
}

void Front::perform(const fan::Close& close) {
  around_.truth.closes(close.link);
  part(close.link);
}

void Front::perform(const fan::Expect& expect) {
  Foretold foretold{.agents = expect.agents, .others_come = expect.others_come};
  if (expect.exit_code) foretold.verdict = Verdict{.exit_code = *expect.exit_code, .reason = expect.reason};
  step(foretold);
}

void Front::perform(const fan::Finish& finish) {
  world_.say(fmt::format("the front ends with {}", finish.exit_code));
  around_.truth.finishes();
  exit_code_ = finish.exit_code;
  world_.promise(!verdict_told_ || verdict_->exit_code == finish.exit_code, "the front does not end with the verdict");
  for (const auto& [number, link] : links_) link.wire->close(Wire::front);
  links_.clear();
  process_.kill();
}

// ---- links

std::optional<TimePoint> Front::wake() {
  const TimePoint now = process_.clock();
  step(fan::Wake{});
  if (alive()) step(Tick{});
  std::vector<HostLink> silent;
  std::optional<TimePoint> next;
  const auto consider = [&next](std::optional<TimePoint> at) {
    if (at) next = std::min(next.value_or(*at), *at);
  };
  for (const auto& [number, link] : links_) {
    if (!link.greeted || around_.mutation == FanOutMutation::front_patient) continue;
    if (now >= link.heard_at + link_silence_max) silent.push_back(number);
    consider(link.heard_at + link_silence_max);
  }
  for (const HostLink number : silent) lose(number, "it was silent for 15 s");
  if (!alive()) return std::nullopt;
  consider(machine_.deadline());
  consider(rendezvous_.deadline());
  return next;
}

void Front::hear(HostLink number, const FarMessage& message) {
  const auto found = links_.find(number);
  if (found == links_.end()) return;
  found->second.heard_at = process_.clock();
  if (!std::exchange(found->second.greeted, true)) process_.arm(found->second.heard_at + link_silence_max);
  if (const auto* hello = std::get_if<LinkHello>(&message)) {
    around_.truth.greets(number);
    if (hello->version != here_version) fails(number);
    return step(fan::HelloCame{number, *hello});
  }
  if (const auto* refusal = std::get_if<LinkRefuse>(&message)) {
    fails(number);
    return step(fan::RefusalCame{number, *refusal});
  }
  if (const auto* ended = std::get_if<LinkEnded>(&message)) {
    fails(number);
    step(fan::EndCame{number, ended->code});
  }
}

void Front::hear(HostLink number, const AgentFrame& frame) {
  const auto found = links_.find(number);
  if (found == links_.end()) return;
  found->second.heard_at = process_.clock();
  if (std::holds_alternative<Hello>(frame)) {
    const Peer peer{static_cast<std::uint32_t>(by_peer_.size())};
    by_peer_.push_back(number);
    found->second.peer = peer;
    step(Connected{peer, "10.0.0.1", "10.0.0.254", false});
    return write(number, Welcome{.embedded = true});
  }
  const Peer peer = *found->second.peer;
  if (const auto* alive = std::get_if<KeepAlive>(&frame)) {
    step(Alive{peer});
    return write(number, KeepAliveAnswer{alive->number});
  }
  if (const auto* resume = std::get_if<Resume>(&frame)) return step(Resumed{peer, *resume});
  std::visit(
      [&](const auto& message) {
        using Message = std::decay_t<decltype(message)>;
        if constexpr (std::is_constructible_v<AgentMessage, Message>) step(Said{peer, message});
      },
      frame);
}

void Front::lose(HostLink number, const std::string& why) {
  if (!links_.contains(number)) return;
  world_.say(fmt::format("link {} is lost: {}", number.value(), why));
  fails(number);
  step(fan::Broken{number, why});
}

/// Where hosts are not tried again: one is not there any more for a job that is not over.
void Front::fails(HostLink number) {
  if (settings_.discovers || verdict_) return;
  around_.truth.fails(number, static_cast<int>(settings_.hosts.size()), settings_.min_nodes);
}

/// Its command is ended, and the agent behind it is gone for the coordinator.
void Front::part(HostLink number) {
  const auto found = links_.find(number);
  if (found == links_.end()) return;
  const auto peer = found->second.peer;
  found->second.wire->close(Wire::front);
  links_.erase(found);
  if (peer && around_.mutation != FanOutMutation::loss_untold) step(Gone{*peer, true});
}

void Front::ping(HostLink number) {
  process_.later(link_ping_interval, [this, number] {
    if (!links_.contains(number)) return;
    perform(fan::Send{number, LinkPing{}});
    ping(number);
  });
}

void Front::write(HostLink number, CoordinatorFrame frame) {
  const auto found = links_.find(number);
  if (found == links_.end()) return;
  SimulatedHost* const host = found->second.host;
  found->second.wire->send(Wire::front, [host, frame = std::move(frame)] { host->hear(frame); });
}

// ---- the coordinator

void Front::step(const RendezvousEvent& event) {
  if (!alive()) return;
  const std::vector<RendezvousAction> actions = rendezvous_.step(event, process_.clock());
  for (const RendezvousAction& action : actions) {
    std::visit([&](const auto& wanted) { perform(wanted); }, action);
  }
  around_.truth.placed_all();
  process_.arm(rendezvous_.deadline());
  if (!rendezvous_.verdict() || verdict_) return;
  verdict_ = rendezvous_.verdict();
  process_.later(0s, [this] {
    verdict_told_ = true;
    step(fan::JobOver{verdict_->exit_code});
  });
}

void Front::perform(const Tell& tell) {
  const HostLink number = by_peer_.at(tell.peer.value());
  if (const auto* placed = std::get_if<Placed>(&tell.message)) around_.truth.places(number, placed->placement);
  std::visit([&](const auto& message) { write(number, message); }, tell.message);
}

void Front::perform(const Refuse& refuse) {
  world_.broken(fmt::format("an agent that fits was refused: {}", refuse.reason));
}

void Front::perform(const Note& note) {
  if (world_.verbose()) world_.say("    " + to_text(note));
}

}  // namespace torchup::simulation

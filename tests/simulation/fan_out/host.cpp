#include "tests/simulation/fan_out/host.hpp"

#include <fmt/format.h>

#include <csignal>

#include "launcher/core/text/signals.hpp"

namespace torchup::simulation {
namespace {

constexpr Duration link_ended_limit = 5s, silent_limit = 20s;
/// Of a lease of 10 s nine are left to an agent, and one of them may have passed since its last keep-alive.
constexpr Duration short_cut = 7s;
/// What was held in both directions has come, and so have the answers to it.
constexpr Duration answered_within = 100ms;

}  // namespace

SimulatedHost::SimulatedHost(Around& around, HostLink link, std::string name, Nature nature, WirePtr wire, Ears front)
    : around_{around}, world_{around.world}, number_{link}, name_{std::move(name)}, nature_{nature},
      wire_{std::move(wire)}, front_{std::move(front)}, process_{around.world, 1.0} {}

void SimulatedHost::begin() {
  wire_->attach(Wire::host, process_);
  wire_->on_closed(Wire::host, [this] {
    must_end(link_ended_limit);
    if (far_) step(far::InputEnded{});
    if (alive() && !far_) perform(far::Exit{});
  });
  if (nature_ == Nature::unreachable) return process_.later(world_.milliseconds(0, 12'000), [this] { kill(); });
  if (nature_ == Nature::mute) return;
  process_.later(world_.milliseconds(10, nature_ == Nature::slow ? 40'000 : 1500), [this] {
    if (nature_ == Nature::lying) return lie();
    far_.emplace(std::string{here_version}, process_.clock());
    watch_cut();
    process_.on_wake([this] {
      step(far::Wake{});
      if (link_) step(link::Wake{});
      const auto far_due = far_->deadline(), link_due = link_ ? link_->deadline() : std::nullopt;
      return far_due && link_due ? std::min(far_due, link_due) : far_due ? far_due : link_due;
    });
    tell(LinkHello{.version = nature_ == Nature::other_version ? "0.9" : std::string{here_version}, .host = name_});
    step(far::Heard{});
  });
}

void SimulatedHost::tell(const FarMessage& message) {
  wire_->send(Wire::host, [hear = front_.control, message] { hear(message); });
}

/// Whatever it says, whenever: also nothing for long, and nothing any more.
void SimulatedHost::lie() {
  const FarMessage lies[] = {LinkHello{.version = std::string{here_version}},
                             LinkHello{.version = ""},
                             LinkPing{},
                             LinkPing{},
                             LinkPing{},
                             LinkRefuse{world_.pick(0, 255), "no"},
                             LinkEnded{world_.pick(0, 255)}};
  tell(lies[world_.pick(0, std::ssize(lies) - 1)]);
  process_.later(world_.milliseconds(0, world_.one_in(4) ? 20'000 : 1000), [this] { lie(); });
}

void SimulatedHost::hear(const FrontMessage& message) {
  process_.run([this, message] {
    if (far_) step(far::MessageCame{message});
    // What was sent before it greeted lies in its input.
    if (!far_) process_.later(100ms, [this, message] { hear(message); });
  });
}

// ---- what befalls it

void SimulatedHost::kill() {
  if (!alive()) return;
  world_.say(name_ + " is gone");
  end_workers();
  link_.reset();
  process_.kill();
  wire_->close(Wire::host);
}

void SimulatedHost::kill_agent() {
  if (!link_ || agent_ending_) return;
  world_.say(name_ + ": the agent is killed");
  agent_ends(137, 100ms);
}

void SimulatedHost::cut() {
  if (wire_->is_cut()) return;
  world_.say(name_ + ": its link is cut");
  // What lay between two cuts may be too short for an answer: then they are as one.
  if (world_.now() > wire_->healed_at() + answered_within) cut_since_ = world_.now();
  wire_->cut();
  ++cuts_;
  watch_cut();
  world_.at(cut_since_ + short_cut,
            [this, number = cuts_] { was_cut_ = was_cut_ || (wire_->is_cut() && number == cuts_); });
}

/// Where both sides are there and one cut lasts as long, each gives the other up.
void SimulatedHost::watch_cut() {
  if (!far_ || !wire_->is_cut()) return;
  world_.after(link_silence_max + 1s, [this, number = cuts_] {
    if (!wire_->is_cut() || number != cuts_) return;
    around_.truth.silent(number_);
    must_end(silent_limit - link_silence_max - 1s);
  });
}

void SimulatedHost::must_end(Duration within) {
  // One that was stopped hears only then what came before, and counts from there.
  world_.after(within, [this, stops = process_.stops()] {
    const bool hindered = process_.stopped() || process_.stops() != stops ||
                          (stops > 0 && world_.now() < process_.awake_since() + silent_limit);
    if (far_ && alive() && !hindered) world_.broken(name_ + " still lives after its link");
  });
}

// ---- the far end

void SimulatedHost::step(const far::Event& event) {
  if (around_.mutation == FanOutMutation::no_lifeline && std::holds_alternative<far::Wake>(event)) {
    for (const far::Action& action : far_->step(far::Heard{}, process_.clock())) {
      std::visit([&](const auto& wanted) { perform(wanted); }, action);
    }
  }
  for (const far::Action& action : far_->step(event, process_.clock())) {
    std::visit([&](const auto& wanted) { perform(wanted); }, action);
  }
  if (alive()) process_.arm(far_->deadline());
}

void SimulatedHost::perform(const far::StartAgent&) {
  if (nature_ == Nature::refusing) return step(far::NotStarted{{2, "no such directory"}});
  process_.later(world_.milliseconds(5, 200), [this] {
    world_.say(name_ + ": its agent starts");
    link_.emplace(CoordinatorLinkSettings{.endpoint = {"front", Port{1}},
                                          .run_id = RunId{"job"},
                                          .join_timeout = around_.terms.join_timeout,
                                          .one_connection = true,
                                          .seed = static_cast<std::uint64_t>(world_.pick(0, 1 << 30))},
                  process_.clock());
    join();
  });
}

void SimulatedHost::perform(const far::SignalAgent& signal) {
  if (signal.number == SIGKILL && around_.mutation != FanOutMutation::no_kill) return agent_ends(137, 100ms);
  const int number = signal.number == dismissal_signal ? SIGTERM : signal.number;
  if (!link_) return agent_ends(128 + number, 200ms);  // it has not come so far
  if (number == SIGINT || number == SIGTERM) leave(number);
}

/// The agent's connection ends.
void SimulatedHost::perform(const far::Deafen&) {
  if (around_.mutation == FanOutMutation::no_fence || !line_) return;
  process_.later(1ms, [this, line = *line_] { step(link::Closed{line, ""}); });
}

void SimulatedHost::perform(const far::Exit&) {
  world_.say(name_ + " exits");
  process_.later(0s, [this] { kill(); });
}

// ---- the agent

void SimulatedHost::step(const link::Event& event) {
  if (!link_) return;
  for (const link::Action& action : link_->step(event, process_.clock())) {
    std::visit([&](const auto& wanted) { perform(wanted); }, action);
  }
  if (link_) process_.arm(link_->deadline());
}

void SimulatedHost::hear(const CoordinatorFrame& frame) {
  process_.run([this, frame] {
    if (far_) step(far::Heard{});
    if (line_) step(link::Heard{*line_, frame});
  });
}

/// There is one connection, which is handed down to it.
void SimulatedHost::perform(const link::Dial& dial) {
  process_.later(1ms, [this, line = dial.line] {
    if (std::exchange(dialled_, true)) return step(link::DialFailed{line, false, "it has ended"});
    line_ = line;
    step(link::Dialled{line});
  });
}

void SimulatedHost::perform(const link::Write& write) {
  wire_->send(Wire::host, [hear = front_.agent, frame = write.frame] { hear(frame); });
}

void SimulatedHost::perform(const link::Tell& told) {
  if (const auto* lost = std::get_if<LinkLost>(&told.event)) {
    const bool excused =
        was_cut_ || process_.stops() > 0 || !wire_->open(Wire::host) || around_.truth.front_was_hindered();
    if (!excused) world_.broken(name_ + " has lost its coordinator, and its link stands: " + lost->reason);
    end_workers();
    return agent_ends(lost->exit_code, nature_ == Nature::stubborn ? 60s : 200ms);
  }
  std::visit([&](const auto& message) { obey(message); }, std::get<CoordinatorMessage>(told.event));
}

void SimulatedHost::join() {
  if (agent_ending_ || !link_) return;
  Join join;
  join.node = NodeId{fmt::format("{}_{}_{}", name_, number_.value(), link_->incarnation())};
  join.host = name_;
  join.terms = around_.terms;
  step(link::Say{std::move(join)});
}

void SimulatedHost::obey(const HostStore& host) {
  process_.later(world_.milliseconds(0, 50), [this, round = host.round] {
    if (!agent_ending_) step(link::Say{StoreReady{round, Port{static_cast<std::uint16_t>(world_.pick(1024, 65535))}}});
  });
}

void SimulatedHost::obey(const Placed& placed) {
  if (agent_ending_) return;
  world_.say(fmt::format("{} starts workers of round {}", name_, placed.placement.round.value()));
  around_.truth.workers_start(number_, placed.placement.round, process_, *wire_);
  work(placed.placement.round, ++workers_number_);
}

void SimulatedHost::obey(const StopWorkers& stop) {
  if (agent_ending_) return;
  world_.say(fmt::format("{} stops round {}: {}", name_, stop.round.value(), stop.reason));
  const int number = ++workers_number_;
  const bool fenced = stop.cause == StopCause::fenced;
  process_.later(fenced ? world_.milliseconds(1, 20) : world_.milliseconds(0, 500), [this, number] {
    if (number != workers_number_) return;
    end_workers();
    join();
  });
}

void SimulatedHost::obey(const End& end) {
  if (nature_ == Nature::stubborn) {
    ++workers_number_;
    return end_workers();
  }
  agent_ends(end.verdict.exit_code, world_.one_in(3) ? 1500ms : 50ms);
}

void SimulatedHost::work(Round round, int number) {
  process_.later(world_.milliseconds(100, 4000), [this, round, number] {
    if (number != workers_number_ || agent_ending_) return;
    if (around_.workers_may_finish) {
      end_workers();
      return step(link::Say{WorkersSucceeded{round}});
    }
    if (!around_.workers_may_fail || !world_.one_in(40)) return work(round, number);
    world_.say(name_ + ": a worker fails");
    WorkersFailed failed{.round = round};
    failed.failures.push_back({.exit_code = 1, .host = name_});
    ++workers_number_;
    step(link::Say{std::move(failed)});
  });
}

void SimulatedHost::leave(int signal) {
  if (agent_ending_ || nature_ == Nature::stubborn) return;
  world_.say(fmt::format("{}: its agent gets signal {}", name_, signal));
  ++workers_number_;
  end_workers();
  step(link::Say{Leave{.ends_job = signal == SIGINT, .exit_code = 128 + signal, .reason = "signalled"}});
}

/// With its workers; upon which the far end goes too.
void SimulatedHost::agent_ends(int exit_code, Duration within) {
  if (std::exchange(agent_ending_, true) && exit_code != 137) return;
  ++workers_number_;
  process_.later(within, [this, exit_code] {
    if (!alive()) return;
    end_workers();
    if (link_) step(link::Finish{});
    link_.reset();
    line_.reset();
    step(far::AgentEnded{exit_code});
  });
}

}  // namespace torchup::simulation

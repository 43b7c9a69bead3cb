#include "launcher/core/fan_out/far_agent.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "launcher/core/text/signals.hpp"
#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {

FarAgent::FarAgent(std::string version, TimePoint now)
    : version_{std::move(version)}, heard_at_{now}, pinged_at_{now} {}

std::vector<far::Action> FarAgent::step(const far::Event& event, TimePoint now) {
  if (state_ == State::over) return {};
  std::visit([&](const auto& happened) { on(happened, now); }, event);
  due(now);
  return std::exchange(actions_, {});
}

std::optional<TimePoint> FarAgent::deadline() const {
  switch (state_) {
    case State::waiting:
    case State::running:
      return std::min(heard_at_ + link_silence_max, pinged_at_ + link_ping_interval);
    case State::ending:
      return asked_at_ + lifeline_patience;
    case State::killed:
    case State::over:
      break;
  }
  return std::nullopt;
}

void FarAgent::on(const far::MessageCame& event, TimePoint now) {
  heard_at_ = now;
  std::visit([&](const auto& message) { hear(message); }, event.message);
}

void FarAgent::hear(const LinkPlan& plan) {
  if (state_ != State::waiting) return;  // there is one only
  if (plan.version != version_) {
    return refuse({exit_code::mismatch, fmt::format("torchup {} is here and {} where the job was started; "
                                                    "--remote-torchup names another",
                                                    version_, printable_start(plan.version))});
  }
  state_ = State::running;
  connected_ = plan.own_coordinator;
  act(far::StartAgent{plan});
}

void FarAgent::hear(const LinkSignal& signal) {
  if (state_ == State::running) act(far::SignalAgent{signal.number});
}

void FarAgent::on(const far::InputEnded&, TimePoint now) { lose_front(now); }

void FarAgent::on(const far::NotStarted& event, TimePoint) {
  if (state_ == State::ending || state_ == State::killed) return exit(event.refusal.code);
  refuse(event.refusal);
}

void FarAgent::on(const far::AgentEnded& event, TimePoint) {
  if (state_ == State::running) act(far::Send{LinkEnded{event.exit_code}});
  exit(event.exit_code);
}

void FarAgent::on(const far::SignalCame& event, TimePoint) {
  if (state_ == State::waiting) return exit(shell_code(event.number));
  if (state_ == State::running) act(far::SignalAgent{event.number});
}

void FarAgent::due(TimePoint now) {
  const bool connected = state_ == State::waiting || state_ == State::running;
  if (connected && now >= heard_at_ + link_silence_max) return lose_front(now);
  if (connected && now >= pinged_at_ + link_ping_interval) {
    pinged_at_ = now;
    act(far::Send{LinkPing{}});
  }
  if (state_ == State::ending && now >= asked_at_ + lifeline_patience) {
    state_ = State::killed;
    act(far::SignalAgent{SIGKILL});
  }
}

void FarAgent::lose_front(TimePoint now) {
  if (state_ == State::waiting) return exit(exit_code::failed);
  if (state_ != State::running) return;
  state_ = State::ending;
  asked_at_ = now;
  act(far::Deafen{});
  // Who has lost its place has no grace to give. One whose coordinator is elsewhere leaves.
  if (!connected_) act(far::SignalAgent{dismissal_signal});
}

void FarAgent::refuse(LinkRefuse refusal) {
  const int code = refusal.code;
  act(far::Send{std::move(refusal)});
  exit(code);
}

void FarAgent::exit(int exit_code) {
  state_ = State::over;
  act(far::Exit{exit_code});
}

}  // namespace torchup

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/link_codec.hpp"

/// `torchup --link`, the far end of a fan-out's link: starts one agent as the plan says, and is its lifeline. Pure; the
/// shell is launcher/os/link_agent.
namespace torchup {

/// How long an agent may take to end whose front is gone, before it is killed.
inline constexpr Duration lifeline_patience = std::chrono::seconds{2};

namespace far {

// Events.

/// Anything has come from the front.
struct Heard {};
struct MessageCame {
  FrontMessage message;
};
/// The front is gone, or speaks another language.
struct InputEnded {};
/// The plan's directory cannot be entered, or the agent cannot be started.
struct NotStarted {
  LinkRefuse refusal = {};
};
/// The agent's process and everything below it is gone, and its output has been sent.
struct AgentEnded {
  int exit_code = 0;
};
/// Somebody has signalled this process.
struct SignalCame {
  int number = 0;
};
struct Wake {};
using Event = std::variant<Heard, MessageCame, InputEnded, NotStarted, AgentEnded, SignalCame, Wake>;

// Actions.

struct Send {
  FarMessage message;
  friend bool operator==(const Send&, const Send&) = default;
};
struct StartAgent {
  LinkPlan plan;
  friend bool operator==(const StartAgent&, const StartAgent&) = default;
};
struct SignalAgent {
  int number = 0;
  friend bool operator==(const SignalAgent&, const SignalAgent&) = default;
};
/// Output and events of the agent: so much more may be sent.
struct Credit {
  std::uint32_t bytes = 0;
  friend bool operator==(const Credit&, const Credit&) = default;
};
/// Nobody reads any more: what the agent writes is thrown away. Where its connection to the coordinator is ours that is
/// closed, by which it knows that others may have its place: it kills its workers and ends.
struct Deafen {
  friend bool operator==(const Deafen&, const Deafen&) = default;
};
/// After everything that was sent. Nothing of ours lives.
struct Exit {
  int exit_code = 0;
  friend bool operator==(const Exit&, const Exit&) = default;
};
using Action = std::variant<Send, StartAgent, SignalAgent, Credit, Deafen, Exit>;

}  // namespace far

class FarAgent {
 public:
  /// `version`: of this program; a plan of another one is refused.
  FarAgent(std::string version, TimePoint now);

  /// Applies `event`, then everything that is due at `now`. `now` never goes backwards.
  [[nodiscard]] std::vector<far::Action> step(const far::Event& event, TimePoint now);
  [[nodiscard]] std::optional<TimePoint> deadline() const;

 private:
  enum class State : std::uint8_t {
    waiting,  ///< for the plan
    running,  ///< the agent
    ending,   ///< the front is gone, and the agent was asked to end
    killed,
    over,
  };
  void on(const far::Heard&, TimePoint now) { heard_at_ = now; }
  void on(const far::MessageCame& event, TimePoint now);
  void on(const far::InputEnded&, TimePoint now);
  void on(const far::NotStarted& event, TimePoint now);
  void on(const far::AgentEnded& event, TimePoint now);
  void on(const far::SignalCame& event, TimePoint now);
  void on(const far::Wake&, TimePoint) {}
  void hear(const LinkPlan& plan);
  void hear(const LinkSignal& signal);
  void hear(const LinkAck& ack) { act(far::Credit{ack.bytes}); }
  void hear(const LinkPing&) {}
  void due(TimePoint now);
  void lose_front(TimePoint now);
  void refuse(LinkRefuse refusal);
  void exit(int exit_code);
  void act(far::Action action) { actions_.push_back(std::move(action)); }

  const std::string version_;
  std::vector<far::Action> actions_;
  State state_ = State::waiting;
  TimePoint heard_at_;
  TimePoint pinged_at_;
  TimePoint asked_at_{};    ///< ending: since then
  bool connected_ = false;  ///< the agent reaches its coordinator through us
};

}  // namespace torchup

#pragma once

#include <functional>
#include <optional>
#include <string>

#include "launcher/core/fan_out/far_agent.hpp"
#include "rendezvous/core/link/coordinator_link.hpp"
#include "tests/simulation/fan_out/truth.hpp"
#include "tests/simulation/fan_out/wire.hpp"

namespace torchup::simulation {

inline constexpr std::string_view here_version = "1.0";

/// How a start of a host turns out.
enum class Nature : std::uint8_t {
  good,
  stubborn,       ///< its agent ends when it has lost its coordinator, late, else only when it is killed
  slow,           ///< to greet
  unreachable,    ///< its ssh ends without a greeting
  mute,           ///< it never says anything
  other_version,  ///< of torchup
  refusing,       ///< the directory is missing
  lying,          ///< it greets, and says anything at any time
};
inline constexpr int natures = 8;

/// What both sides are surrounded by.
struct Around {
  World& world;
  Truth& truth;
  JobTerms terms;
  FanOutMutation mutation = FanOutMutation::none;
  bool workers_may_fail = true, workers_may_finish = false;
};

/// One `torchup --link` on a host, and the agent that it starts: the machines of both, and workers that do as the agent
/// says.
class SimulatedHost {
 public:
  /// What it says goes to `front` by the wire: control, or the agent's frames.
  struct Ears {
    std::function<void(const FarMessage&)> control;
    std::function<void(const AgentFrame&)> agent;
  };
  SimulatedHost(Around& around, HostLink link, std::string name, Nature nature, WirePtr wire, Ears front);

  void begin();
  // What the front says.
  void hear(const FrontMessage& message);
  void hear(const CoordinatorFrame& frame);

  // What befalls it.
  void kill();        ///< all of its processes
  void kill_agent();  ///< that alone
  void stop() { process_.stop(); }
  void go_on() { process_.go_on(); }
  void cut();  ///< its wire, for long or short
  void heal() { wire_->heal(); }

  [[nodiscard]] bool alive() const { return process_.alive(); }
  [[nodiscard]] bool works() const { return process_.alive() && link_; }
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  // The far end.
  void step(const far::Event& event);
  void perform(const far::Send& send) { tell(send.message); }
  void perform(const far::StartAgent&);
  void perform(const far::SignalAgent& signal);
  void perform(const far::Credit&) {}
  void perform(const far::Deafen&);
  void perform(const far::Exit&);
  void tell(const FarMessage& message);
  void lie();

  // The agent.
  void step(const link::Event& event);
  void perform(const link::Dial& dial);
  void perform(const link::Write& write);
  void perform(const link::Close&) {}
  void perform(const link::SetPatience&) {}
  void perform(const link::Tell& told);
  void perform(const link::MeetForeigner&) {}
  void perform(const link::NobodyListens&) {}
  void perform(const link::Attends&) {}
  void perform(const link::Doubts&) {}
  void perform(const link::SawEnd&) {}
  void obey(const HostStore& host);
  void obey(const Placed& placed);
  void obey(const StopWorkers& stop);
  void obey(const End& end);
  void obey(const Waiting&) {}
  void obey(const BesideRounds auto&) {}
  void join();
  void work(Round round, int number);
  void leave(int signal);
  void end_workers() { around_.truth.workers_end(number_); }
  void agent_ends(int exit_code, Duration within);
  void watch_cut();
  void must_end(Duration within);

  Around& around_;
  World& world_;
  HostLink number_;
  std::string name_;
  Nature nature_;
  WirePtr wire_;
  Ears front_;
  Process process_;
  std::optional<FarAgent> far_;
  std::optional<CoordinatorLink> link_;  ///< the agent's; empty while there is no agent
  std::optional<LineId> line_;
  bool dialled_ = false;
  bool agent_ending_ = false;
  int workers_number_ = 0;  ///< counts starts and stops: what belongs to former workers does nothing
  int cuts_ = 0;
  TimePoint cut_since_{};
  bool was_cut_ = false;  ///< once, for so long that an agent may lose its coordinator
};

}  // namespace torchup::simulation

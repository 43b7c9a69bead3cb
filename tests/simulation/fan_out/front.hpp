#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/fan_out/fan_out.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "tests/simulation/fan_out/host.hpp"

namespace torchup::simulation {

/// The front's process: the machine, the coordinator beside it, and what the shell does for both.
class Front {
 public:
  /// Begins the start of a host by that wire; what it says comes to the ears.
  using Starter = std::function<SimulatedHost*(const fan::Start& start, WirePtr wire, SimulatedHost::Ears ears)>;

  Front(Around& around, FanOutSettings settings, Starter starter);

  void begin();
  void signal(int number);
  void list(std::vector<Host> hosts);
  void kill();
  void stop();
  void go_on();
  /// Its ssh to one of the hosts, by chance.
  void kill_a_client();

  [[nodiscard]] bool alive() const { return process_.alive(); }
  [[nodiscard]] const std::optional<int>& exit_code() const { return exit_code_; }
  [[nodiscard]] const Rendezvous& rendezvous() const { return rendezvous_; }

 private:
  struct Link {
    WirePtr wire;
    SimulatedHost* host = nullptr;
    std::optional<Peer> peer = {};
    TimePoint heard_at{};
    bool greeted = false;
  };
  void step(const fan::Event& event);
  void perform(const fan::Start& start);
  void perform(const fan::Send& send);
  void perform(const fan::Close& close);
  void perform(const fan::Expect& expect);
  void perform(const fan::Say& say) { world_.say("front: " + say.text); }
  void perform(const fan::Finish& finish);

  void step(const RendezvousEvent& event);
  void perform(const Tell& tell);
  void perform(const Refuse& refuse);
  void perform(const Note& note);

  void hear(HostLink number, const FarMessage& message);
  void hear(HostLink number, const AgentFrame& frame);
  void lose(HostLink number, const std::string& why);
  void fails(HostLink number);
  void part(HostLink number);
  void ping(HostLink number);
  void write(HostLink number, CoordinatorFrame frame);
  [[nodiscard]] std::optional<TimePoint> wake();

  Around& around_;
  World& world_;
  FanOutSettings settings_;
  Starter starter_;
  Process process_;
  FanOut machine_;
  Rendezvous rendezvous_;
  std::map<HostLink, Link> links_;  ///< those that stand
  std::vector<HostLink> by_peer_;
  std::optional<Verdict> verdict_;
  std::optional<int> exit_code_;
  bool verdict_told_ = false;
};

}  // namespace torchup::simulation

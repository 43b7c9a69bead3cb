#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator.hpp"
#include "network.hpp"
#include "promises.hpp"
#include "rendezvous/core/link/coordinator_link.hpp"
#include "settings.hpp"

namespace torchup::simulation {

/// One agent's process: sockets and clock around the link machine, and workers that do as the agent says.
class Agent {
 public:
  struct Surroundings {
    World& world;
    Network& network;
    Coordinator& coordinator;
    Promises& promises;
    std::vector<Workers>& workers;  ///< by node
    const JobTerms& terms;
    const bool& workers_may_fail;
    const bool& workers_may_finish;
    Mutation mutation = Mutation::none;
  };
  /// `life` tells it from earlier agents on the same host.
  Agent(Surroundings around, std::size_t node, std::string host, int life, double rate);

  void begin();
  void kill();
  void stop();
  void go_on();
  void leave();
  /// Its workers have saved their state and ended, of which its coordinator hears only now.
  void save_and_end();
  /// One of its connections breaks: at its own end, at the coordinator's, or at both.
  void break_connection(bool here, bool there);
  void skip_clock(Duration gap) { process_.skip(gap); }

  [[nodiscard]] const std::string& host() const { return host_; }
  /// In its node ids.
  [[nodiscard]] std::string name() const { return host_ + "_" + std::to_string(life_); }
  [[nodiscard]] int stops() const { return process_.stops(); }
  [[nodiscard]] bool stopped() const { return alive() && process_.stopped(); }
  [[nodiscard]] bool alive() const { return process_.alive(); }
  [[nodiscard]] bool over() const { return verdict_ || lost_; }
  [[nodiscard]] bool left() const { return left_; }
  [[nodiscard]] bool saved() const { return saved_; }
  [[nodiscard]] bool welcomed() const { return welcomed_; }  ///< once at least
  [[nodiscard]] const std::optional<Verdict>& verdict() const { return verdict_; }
  [[nodiscard]] const std::optional<LinkLost>& lost() const { return lost_; }

 private:
  void step(const link::Event& event);
  void perform(const link::Dial& dial);
  void perform(const link::Write& write);
  void perform(const link::Close& close);
  void perform(const link::SetPatience&) {}
  void perform(const link::Tell& tell);
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
  void end_workers() { around_.workers[node_].place.reset(); }
  void work(Round round, int workers_number);
  void finish();

  Surroundings around_;
  World& world_;
  std::size_t node_;
  std::string host_;
  int life_;
  Process process_;
  std::optional<CoordinatorLink> link_;
  std::map<LineId, ConnectionPtr> connections_;
  int workers_number_ = 0;  ///< counts starts and stops: what belongs to former workers does nothing
  std::optional<Verdict> verdict_;
  std::optional<LinkLost> lost_;
  std::optional<TimePoint> stopped_at_;  ///< by its clock, where it is to believe that no time has passed
  bool left_ = false;
  bool saved_ = false;  ///< and was not told that this was void
  bool welcomed_ = false;
};

}  // namespace torchup::simulation

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/fan_out/front.hpp"

namespace torchup::simulation {

/// One fan-out and what befalls it: all of it follows from the seed.
///
/// For `faults_end` things go wrong: hosts cannot be reached, say nothing, refuse, have another version, or lie; their
/// processes, their agents or the ssh to them are killed, they are stopped, their links are cut for short or long; the
/// front is killed, stopped or signalled; the list of hosts changes. Then workers may finish, and by `end` the front
/// must have ended, and nothing live on any host.
class FanOutHistory {
 public:
  FanOutHistory(std::uint64_t seed, FanOutMutation mutation, bool verbose);
  void run();

  /// What the histories of a campaign did, so that one that shows nothing is seen.
  struct Deeds {
    std::uint64_t starts = 0, rounds = 0, faults = 0, successes = 0;
  };
  [[nodiscard]] Deeds deeds() const;

 private:
  void choose_hosts();
  SimulatedHost* start(const fan::Start& start, WirePtr wire, SimulatedHost::Ears ears);
  [[nodiscard]] Nature nature(const std::string& host);
  void plan_fault();
  void fault(int kind);
  void change_list();
  [[nodiscard]] SimulatedHost* any_host();
  void check_end();

  World world_;
  Truth truth_;
  Around around_;
  FanOutSettings settings_;
  std::map<std::string, Nature> natures_;
  bool quiet_;                                         ///< nothing goes wrong
  std::vector<std::unique_ptr<SimulatedHost>> hosts_;  ///< a start each
  std::unique_ptr<Front> front_;
  std::uint64_t faults_ = 0;
  int front_stops_ = 0;
};

}  // namespace torchup::simulation

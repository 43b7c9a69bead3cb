#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/core/round/rendezvous.hpp"
#include "rendezvous/core/torchrun/torchrun_part.hpp"

namespace torchup {

/// A job that torchrun's agents and ours share, where coordinator and store are ours: for each of our agents a
/// part in torchrun's rendezvous (core/torchrun_part). They go on speaking our language and notice nothing.
///
/// As long as all agents are ours, the round machine decides; this takes over from it. Here is decided only who of our
/// agents has a part in the job: a lost connection and a lease that is over end it, as in the round machine. When
/// rounds form is torchrun's rule, and what is done beyond that is decided by core/torchrun_care alone.
class MixedJob {
 public:
  explicit MixedJob(RunId run_id) : run_id_{std::move(run_id)} {}

  // Before the job is mixed.

  /// Whether the nodes of that job have their group ranks by --node-rank: torchrun's agents then meet without a shared
  /// state.
  [[nodiscard]] static bool is_static(const Rendezvous& pure);
  /// Whether a torchrun agent waits at the store, and there is room for it.
  [[nodiscard]] bool wanted(TorchrunStore& store, const Rendezvous& pure) const;
  /// From here on this job is decided here. Rounds that run are stopped.
  [[nodiscard]] std::vector<RendezvousAction> begin(const Rendezvous& pure, TimePoint now);

  // From then on.

  [[nodiscard]] bool active() const { return active_; }
  /// As Rendezvous::step. To be called with Tick at least every 100 ms.
  [[nodiscard]] std::vector<RendezvousAction> step(const RendezvousEvent& event, TorchrunStore& store, TimePoint now,
                                                   UtcTime utc);
  [[nodiscard]] const std::optional<Verdict>& verdict() const { return verdict_; }
  [[nodiscard]] int member_count() const { return static_cast<int>(members_.size()); }

 private:
  struct Connection {
    std::string observed = {};
    bool in_process = false;
    std::string node = {};     ///< its member
    std::uint64_t number = 0;  ///< in the order of their beginnings
  };
  struct Member {
    std::unique_ptr<TorchrunPart> part = {};
    std::string host = {};
    Duration lease{};
    std::optional<Peer> peer = {};
    std::uint64_t connection = 0;  ///< number of the last one; what an older one still brings was said before
    bool in_process = false;
    TimePoint alive_at{};
    std::optional<TimePoint> turn_at = {};
    std::optional<CoordinatorMessage> last = {};  ///< what it was told last, Waiting aside
    bool leaves_alone = false;
  };

  void on(const Connected& event, TimePoint);
  void on(const Said& event, TimePoint now);
  void on(const Resumed& event, TimePoint now);
  void on(const Alive& event, TimePoint now);
  void on(const Gone& event, TimePoint now);
  void on(const Tick&, TimePoint) {}

  void join(Peer peer, const Join& join, TimePoint now);
  [[nodiscard]] std::unique_ptr<TorchrunPart> part_for(const Join& join, const Connection& connection);
  void give_up(Member& member, const std::string& why, TimePoint now);
  void take_turns(TorchrunStore& store, TimePoint now, UtcTime utc);
  void tell(Member& member, CoordinatorMessage message);
  void bind(Member& member, Peer peer, TimePoint now);
  [[nodiscard]] bool outdated(Peer peer, const NodeId& node) const;
  [[nodiscard]] Member* member_of(Peer peer);
  [[nodiscard]] static std::string address_of(const Join& join, const Connection& connection);
  void note(Note note) { actions_.emplace_back(std::move(note)); }

  RunId run_id_;
  bool active_ = false;
  bool static_ = false;
  std::map<Peer, Connection> connections_;
  std::uint64_t connection_count_ = 0;
  std::map<std::string, std::unique_ptr<Member>> members_;  ///< by node id
  std::int64_t next_number_ = 0;
  std::optional<Verdict> verdict_;
  std::vector<RendezvousAction> actions_;
};

}  // namespace torchup

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "rendezvous/core/torchrun/torchrun_store.hpp"
#include "rendezvous/core/torchrun_wire/torchrun_state.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

class StoreServer;

struct TorchrunHostOptions {
  std::string bind = {};  ///< where workers' stores listen, as in StoreServerOptions
  std::function<bool(const std::string& address)> admits = {};  ///< whom they serve, likewise
  /// Workers of a job meet at a store beside this one, on a port of its own, which outlives every node; not on group
  /// rank 0's node.
  bool common_place = false;
};

/// Meetings of torchrun's agents in one store; further ones are left to themselves.
inline constexpr std::size_t meetings_max = 1024;
/// What is kept of the states that torchrun's agents of all jobs have written: room for jobs of 16,384 nodes and some
/// thousand small ones. Beyond it the largest are left to themselves, those of jobs that are over before them.
inline constexpr std::size_t states_bytes_max = std::size_t{64} << 20;
/// A meeting that was closed, or that nobody has a part in any more, is kept for so long for agents that come late.
inline constexpr Duration meeting_kept = std::chrono::minutes{5};
/// Those who have been kept for so long are forgotten together, and not oftener than that: it takes a look at all keys.
inline constexpr Duration meetings_sweep_pace = std::chrono::seconds{10};

/// Torchrun's agents of all jobs that meet in a store of this process, and what is done for them (core/torchrun_care).
///
/// On the loop's thread only. The server must outlive the loop's run.
class TorchrunHost {
 public:
  using Log = std::function<void(const RunId& run_id, const std::string& line)>;
  /// A fault of ours in that job's meeting, which has ended for it: its agents are left to themselves.
  using Fault = std::function<void(const RunId& run_id, const std::string& what)>;

  TorchrunHost(boost::asio::io_context& loop, StoreServer& server, TorchrunHostOptions options, Log log,
               Fault fault = {});
  TorchrunHost(const TorchrunHost&) = delete;
  TorchrunHost& operator=(const TorchrunHost&) = delete;
  ~TorchrunHost();

  /// The store as the agents of that job use it; null while none has come.
  [[nodiscard]] TorchrunStore* find(const RunId& run_id);
  /// As `find`; from then on some may come.
  [[nodiscard]] TorchrunStore& store(const RunId& run_id);
  /// Whether an agent of torchrun's that has a part in that job is connected.
  [[nodiscard]] bool attended(const RunId& run_id) const;
  /// Whether the rendezvous of that job was closed.
  [[nodiscard]] bool closed(const RunId& run_id) const;
  /// The job is over for all: the next one of the same run id meets anew. False: not yet, for the store holds many
  /// keys; to be asked again.
  bool forget(const RunId& run_id);
  /// An address by which other nodes reach this process, to be used for workers where torchrun's agents show none.
  void reached_by(const RunId& run_id, const std::string& address);
  /// To be called some times a second.
  void turn(TimePoint now, UtcTime utc);

  /// All jobs in which torchrun's agents have met.
  [[nodiscard]] std::vector<RunId> jobs() const;
  /// As TorchrunCare::view; `known` itself where no torchrun agent has come.
  [[nodiscard]] JobView view(const RunId& run_id, JobView known,
                             const std::map<TorchrunNode, JobView::Node>& ours = {}) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace torchup

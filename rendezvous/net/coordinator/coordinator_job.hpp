#pragma once

#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/core/round/job_watch.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "rendezvous/core/seat/proof.hpp"
#include "rendezvous/core/text/log_line.hpp"
#include "rendezvous/core/text/source_list.hpp"
#include "rendezvous/core/torchrun/mixed_job.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"

namespace torchup {

class JobKeeper;

/// One job as its coordinator has it: the machine that decides, and the connections of its agents.
class CoordinatorJob {
 public:
  CoordinatorJob(boost::asio::io_context& loop, RunId id, Rendezvous machine, LogSink sink);

  // Its connections.

  Peer add(const Coordinator::Visitor& visitor, Coordinator::Listener& listener);
  void remove(Peer peer, bool in_process);
  /// After its end was told to the machine: the number may be given away when nothing waits to be told to it.
  void give_back(Peer peer);
  [[nodiscard]] bool alone() const { return others + own == 0; }
  /// Members without a connection may yet come back to hear the verdict, and some may only come now.
  [[nodiscard]] bool nobody_else() const;
  /// Somebody has said more than hello. What it said tells where members may come from.
  void heard(const Join& join, const std::string& observed, const std::string& reached);
  [[nodiscard]] bool joined() const { return joined_; }
  /// It was joined in a former life of this process: where its members may come from is known before they are back.
  void restored();
  /// It is another coordinator's: nothing that comes of it is told, written or logged any more.
  void let_go();
  [[nodiscard]] bool is_let_go() const { return let_go_; }
  /// Closes the connections to a job that is no more.
  void let_go_of_all(const std::string& reason);
  /// Memory for what its agents told.
  [[nodiscard]] std::size_t held_bytes() const;
  std::size_t counted_bytes = 0;  ///< of them, as the JobRegistry has them in its sum
  /// What it would take up more if that agent joined.
  [[nodiscard]] std::size_t growth_by(const Join& join) const;
  [[nodiscard]] bool knows_address(const std::string& address) const;

  // Those who look at it and steer it.

  std::shared_ptr<const Coordinator::Onlooker> onlooker;  ///< null: nobody
  [[nodiscard]] OrderAnswer answer(const Order& order, TimePoint now) const;
  /// A member has said that by this connection; of others nothing is heard.
  void show(Peer peer, Coordinator::NodeWord word) const;
  /// As Coordinator::tell_node.
  bool tell_node(const NodeId& node, CoordinatorMessage message);
  /// As Coordinator::is_near.
  [[nodiscard]] bool is_near(const NodeId& node) const;

  // What was decided.

  void perform(std::vector<RendezvousAction> actions);
  void perform(RendezvousAction&& action);

  // A fault of ours, with which this job ends.

  void end_by_fault(const std::string& what);
  [[nodiscard]] bool faulty() const { return !fault_.empty(); }
  void refuse_after_fault(const RendezvousEvent& event) const;

  void log(LogLevel level, std::string kind, const std::string& text) const;
  void log(const Note& note) const;

  struct Waiter {
    std::unique_ptr<boost::asio::steady_timer> limit;
    std::function<void()> done;
  };

  RunId run_id;
  std::uint64_t age = 0;  ///< the smaller the older
  Rendezvous rendezvous;
  JobWatch watch;
  MixedJob mixed;  ///< decides instead, from when a torchrun agent has come until that job is over
  bool had_torchrun = false;
  bool meeting_over = false;  ///< torchrun's keys are those of a job that is over
  boost::asio::steady_timer timer;
  std::optional<TimePoint> armed;
  std::shared_ptr<JobKeeper> keeper;  ///< empty: not kept
  int others = 0;                     ///< connections from other processes
  int own = 0;                        ///< connections of this process
  std::vector<Waiter> waiters;
  std::string own_address = {};  ///< by which agents of other processes that joined have come last
  bool stepping = false;
  Proof proof = {};  ///< that nobody else decides about it; of one coordinator among several
  std::optional<Round> proof_round = {};  ///< whose members count there

 private:
  [[nodiscard]] const Membership& members() const { return mixed.active() ? mixed.members() : rendezvous.members(); }
  [[nodiscard]] End fault_verdict() const;
  void remember(const std::string& address);
  [[nodiscard]] std::vector<std::string> sources();

  LogSink sink_;
  std::vector<Coordinator::Listener*> listeners_;  ///< by peer; null where the number is free
  std::vector<Peer> free_peers_;
  std::vector<Peer> gone_peers_;  ///< gone while something waits to be told to them
  bool joined_ = false;
  std::string fault_ = {};
  bool let_go_ = false;
  std::set<AddressBytes> addresses_ = {};           ///< of its members, announced and observed
  std::vector<AddressBytes> fresh_addresses_ = {};  ///< of them, those that are not in sources_ yet
  SourceList sources_ = {};
};

}  // namespace torchup

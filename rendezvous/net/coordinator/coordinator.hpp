#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/link/agent_codec.hpp"
#include "rendezvous/core/round/job_watch.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "rendezvous/core/seat/candidacy.hpp"
#include "rendezvous/core/text/log_line.hpp"
#include "rendezvous/net/coordinator/agent_link.hpp"
#include "rendezvous/net/coordinator/torchrun_host.hpp"
#include "rendezvous/net/io/lasting_clock.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

class JobArchive;
class StateDirectory;
class StoreServer;

/// What agents of all jobs have answered to looks and windows that are under way. Beyond it ranks are not known.
inline constexpr std::size_t answers_bytes_max = std::size_t{256} << 20;

/// Brings the agents of many jobs together: one round machine (core/rendezvous) per run id, and one timer for each.
/// A fault of ours in one job ends that job, with 70 and the reason, and no other.
/// Where a torchrun agent writes its state into the store beside it, core/mixed_job decides that job from then on.
/// Lives on one loop, in torchupd or in the agent that hosts the rendezvous. Agents of other processes come through
/// agent_sessions.
class Coordinator {
 public:
  /// `log`: what was decided about which job, and why. By `clock` a suspension of this machine is a gap, as any other
  /// sleep of ours.
  explicit Coordinator(boost::asio::io_context& loop, LogSink log = {}, RendezvousSettings settings = {},
                       LastingClock clock = lasting_now, std::size_t answers_max = answers_bytes_max);
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;
  ~Coordinator();

  /// A link for the agent of this same process. It is never silent and never fenced; when it leaves, the job ends for
  /// all, because the coordinator goes with it. The coordinator must outlive it.
  [[nodiscard]] std::unique_ptr<AgentLink> connect(RunId run_id, AgentLink::Handler handler);

  /// One connection, as the coordinator speaks to it. Both are called from within `Attendance` calls of any agent, so
  /// they must only queue.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void tell(CoordinatorMessage message) = 0;
    /// Not wanted: to be told and closed.
    virtual void refuse(int exit_code, std::string reason) = 0;
    /// Its job made room for another before anybody joined: to be closed, so that it may come back.
    virtual void let_go(std::string reason) = 0;
  };

  /// By what right we speak to an agent.
  struct Right {
    std::int64_t term = 0;  ///< of our seat; 0: nobody else can have one
    bool seated = true;     ///< etcd's last answer showed our term
    Duration age{0};        ///< of the proof that nobody else has it
  };

  /// One connection, as it speaks to the coordinator. Destroying it without `gone` is an end of file.
  class Attendance {
   public:
    virtual ~Attendance() = default;
    virtual void said(AgentMessage message) = 0;
    virtual void resumed(Resume resume) = 0;
    virtual void alive() = 0;
    /// The keep-alive of that number is answered now; of the answers on this connection the agent has `seen` the one of
    /// that number, 0 for none. Returns by what right it is answered.
    virtual Right answers(std::uint64_t number, std::uint64_t seen) = 0;
    /// How far the workers of its node are.
    virtual void progressed(const ProgressReport& report) = 0;
    /// What they do.
    virtual void reported(const NodeReport& report) = 0;
    /// Last call. `end_of_file` false: the connection broke, the agent may come back by another.
    virtual void gone(bool end_of_file) = 0;
  };

  struct Visitor {
    std::string observed = {};     ///< numeric address the connection comes from; empty inside one process
    std::string coordinator = {};  ///< numeric address by which it reached us
    bool in_process = false;
  };
  /// Begins one connection's attendance in the job `run_id`, which begins to exist if it did not. Nothing when there
  /// are jobs_max with members. `listener` must live until the attendance ends.
  [[nodiscard]] std::unique_ptr<Attendance> open(const RunId& run_id, Visitor visitor, Listener& listener);

  /// Whoever starts the job's agents says how many there may be, or that it is over (core/round/rendezvous). False:
  /// there are too many jobs.
  bool foretell(const RunId& run_id, Foretold foretold);

  // Those who look at jobs and steer them.

  /// What a member says to them.
  using NodeWord = std::variant<NodeReport, NodeEvent, Ask, Answer>;
  struct Onlooker {
    /// Called from within `Attendance` calls. An Ask is to be answered by `tell_node`.
    std::function<void(const RunId&, const NodeId&, NodeWord)> heard = {};
    /// What was decided, once it is on disk where jobs are kept there. Must not call the coordinator.
    std::function<void(const RunId&, const Note&)> noted = {};
  };
  /// Before any agent comes, and before `keep_state`.
  void set_onlooker(Onlooker onlooker);
  /// `by` as in Ordered. Nothing: there is no such job.
  [[nodiscard]] std::optional<OrderAnswer> order(const RunId& run_id, const Order& order, std::string by);
  /// Whether what is ordered of that job is noted some time: it is there, and no fault of ours has ended it.
  [[nodiscard]] bool obeys(const RunId& run_id) const;
  /// Says that to the member. Of what is large no more than a few at a time: who has too much to read is dropped.
  /// False: there is none, or it has no connection now.
  bool tell_node(const RunId& run_id, const NodeId& node, CoordinatorMessage message);
  /// Whether the member was seen to come from this machine, whatever it calls itself.
  [[nodiscard]] bool is_near(const RunId& run_id, const NodeId& node) const;

  /// Torchrun's agents may join jobs here: in the store of `server`, which must outlive the loop's run.
  void admit_torchrun(StoreServer& server, TorchrunHostOptions options);
  /// Whether torchrun's agents have a part in that job.
  [[nodiscard]] bool mixed(const RunId& run_id) const;

  /// Restores the jobs that `directory` holds, and keeps there from now on each job that our agents have to themselves
  /// (net/job_keeper says what is promised). Before any agent comes. `directory` must outlive the loop's run.
  ///
  /// Errors, which name the file and the remedy: a file that cannot be read, is damaged, or of another version.
  [[nodiscard]] Result<> keep_state(StateDirectory& directory);
  /// The jobs' last states go to the directory. At the end of the process, before agents' connections are closed: what
  /// is then heard of them is no news, and is not logged.
  void release_state();
  /// The files stay as they are: this process ends by a fault of its own, and what it hears of agents while it does so
  /// is no news.
  void abandon_state();

  // One coordinator of several (core/seat): without a tenure it stands by, and sends whoever comes elsewhere.

  struct Found {
    RunId run_id{""};
    JobSnapshot snapshot = {};
  };
  struct Tenure {
    Term term{0};
    TimePoint taken{};       ///< when the txn was sent that took the seat
    Takeover takeover = {};  ///< from whom
  };
  /// From now on there are others: until its first tenure it stands by.
  void stand_by(Elsewhere elsewhere);
  /// The jobs that were found begin again under that term, and all are kept in `archive`, which binds and outlives the
  /// tenure. While it stands by.
  void begin_tenure(JobArchive& archive, const Tenure& tenure, std::vector<Found> found);
  /// The seat was taken again, and what is kept is still ours: all go on under another term.
  void go_on(Term term, TimePoint taken);
  /// A read that was sent then showed our term.
  void confirm(TimePoint sent);
  void set_seated(bool seated);
  /// All jobs are let go of; their agents are sent elsewhere, and whoever comes from now on.
  void end_tenure(Elsewhere elsewhere);
  /// How it stands, for those who ask; nothing: it is the only one.
  struct Role {
    std::string role = {};                            ///< "active", "standby"
    std::int64_t term = 0;                            ///< of who is active, as far as that is known
    std::vector<std::string> endpoints = {};          ///< where that one is; empty: not known
    std::optional<Duration> last_confirmed = {};      ///< since etcd has answered last; nothing: never
    std::string error = {};                           ///< what is wrong with etcd now
  };
  void set_role(std::function<Role()> role);
  [[nodiscard]] std::optional<Role> role() const;
  /// Where to go instead; nothing: here.
  [[nodiscard]] const std::optional<Elsewhere>& elsewhere() const;
  [[nodiscard]] Right right() const;
  /// Called when a tenure ends, for those who have connections. Once for each call of this.
  void when_moved(std::function<void(const Elsewhere&)> moved);
  /// An agent says that it has met a coordinator of that term.
  void met(std::int64_t term, const std::vector<std::string>& endpoints);
  void set_met(std::function<void(std::int64_t term, const std::vector<std::string>& endpoints)> met);

  /// Whether a member of any job has announced that numeric address, or was seen to come from it.
  [[nodiscard]] bool knows_address(const std::string& address) const;

  /// How the job of that run id has ended, if our agents had it to themselves; nothing: it has not, or is not known.
  [[nodiscard]] std::optional<Verdict> verdict(const RunId& run_id) const;

  /// Whether torchrun's agents have had a part in a job of that run id.
  [[nodiscard]] bool had_torchrun(const RunId& run_id) const;

  /// Calls `done` when no agent of the job but those of this process is left to hear the verdict, or `linger` is over.
  void when_others_left(const RunId& run_id, Duration linger, std::function<void()> done);

  [[nodiscard]] std::size_t job_count() const;
  /// All jobs, by run id.
  [[nodiscard]] std::vector<std::pair<RunId, JobView>> jobs() const;
  /// One of them; nothing: there is no such job.
  [[nodiscard]] std::optional<JobView> view(const RunId& run_id) const;
  /// Of all jobs, how late workers are at their collectives, the latest first in each.
  [[nodiscard]] std::vector<std::pair<RunId, std::vector<LateWorker>>> late_workers() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

/// What agents of other processes told of themselves, and of how workers failed, of all jobs. Beyond it nobody joins
/// anew, and of failures only the beginnings are kept.
inline constexpr std::size_t told_bytes_max = std::size_t{128} << 20;
inline constexpr std::size_t jobs_max = 1024;  ///< run ids per coordinator; jobs that nobody joined give way

}  // namespace torchup

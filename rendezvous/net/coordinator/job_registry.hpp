#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "rendezvous/core/text/log_line.hpp"
#include "rendezvous/net/coordinator/coordinator_job.hpp"
#include "rendezvous/net/io/lasting_clock.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

class JobArchive;
class JobKeeper;
class StateDirectory;

/// The jobs of one coordinator, by run id: how they begin to exist, which of them give way to others, which are kept on
/// disk, and when they are forgotten. What becomes of an event in a job is the Coordinator's matter.
class JobRegistry {
 public:
  using Job = CoordinatorJob;
  using Jobs = std::map<RunId, std::shared_ptr<Job>>;
  /// Does what a job has decided, once that is on disk.
  using Perform = std::function<void(Job& job, std::vector<RendezvousAction> actions)>;

  JobRegistry(boost::asio::io_context& loop, LogSink log, RendezvousSettings settings, LastingClock clock,
              Perform perform);

  [[nodiscard]] const Jobs& all() const { return jobs_; }
  /// Null: there is none.
  [[nodiscard]] std::shared_ptr<Job> find(const RunId& run_id) const;
  /// A job that begins, of a run id that has none, where `before` is its past. Null: there are jobs_max, and none gives
  /// way.
  [[nodiscard]] std::shared_ptr<Job> begin(const RunId& run_id);

  /// From here on on disk too, where jobs are kept there. Not while it is mixed.
  void keep(Job& job);
  /// It is no more, on disk neither. Nothing where another has taken its run id.
  void forget(const Job& job);
  /// The same, where nobody is there and nobody can come back.
  void forget_if_over(Job& job);

  /// Jobs that `directory` holds, which begin again; from now on all are kept there.
  ///
  /// Of two files of one run id, which a power cut between the end of one job and the next may leave, the later one
  /// stands; the other is removed. Errors, which name the file and the remedy: one that cannot be read, is damaged, or
  /// of another version.
  [[nodiscard]] Result<std::vector<std::shared_ptr<Job>>> restore(StateDirectory& directory);
  /// A job as its state was read from an archive; the same. From now on all are kept there, if `archive` is any.
  struct Found {
    RunId run_id{""};
    JobSnapshot snapshot = {};
  };
  [[nodiscard]] std::vector<std::shared_ptr<Job>> restore(JobArchive& archive, std::vector<Found> found,
                                                          const std::optional<Takeover>& takeover);
  /// What is kept is all that there is to know: nobody needs to be heard before a job that is not kept may begin.
  void know_all() { settings_.started = TimePoint{TimePoint::min().time_since_epoch() / 2}; }
  /// All jobs are another coordinator's from now on: nothing is told of them, written or logged any more.
  void let_go_of_jobs();
  /// What agents have told of themselves, of all jobs, takes up this much, as far as each was counted last.
  [[nodiscard]] std::size_t told_bytes() const { return told_bytes_; }
  /// After a step in which that may have changed.
  void count(Job& job);

  /// Nothing is kept, nor logged, from here on.
  void let_go_of_state(void (JobKeeper::*last_call)());

  /// For all that concerns its jobs; says nothing any more once the state is let go of.
  [[nodiscard]] LogSink sink();

 private:
  [[nodiscard]] std::shared_ptr<Job> add(const RunId& run_id, Rendezvous machine);
  [[nodiscard]] bool make_room();
  [[nodiscard]] Jobs::iterator next_forgotten();
  [[nodiscard]] Jobs::iterator oldest_without_members();
  void forget_old();
  void end(Job& job);
  void keep(Job& job, std::uint64_t number, bool on_disk);

  boost::asio::io_context& loop_;
  LogSink log_;
  RendezvousSettings settings_;
  LastingClock clock_;
  Perform perform_;
  Jobs jobs_;
  JobArchive* state_ = nullptr;  ///< null: nothing is kept
  std::uint64_t next_file_ = 0;
  std::uint64_t next_age_ = 0;
  std::size_t told_bytes_ = 0;  ///< the sum of all jobs' counted_bytes
};

}  // namespace torchup

#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "rendezvous/net/io/lasting_clock.hpp"

namespace torchup {

class JobArchive;

/// Keeps one job in an archive, so that its coordinator may be killed and started again at any moment, or another take
/// its place.
///
/// What is promised: no agent is told of a decision (to host a store, to start, to stop, the end) before a state that
/// holds it would survive a power cut. What agents say of themselves and restate when they come back (who waits, whose
/// workers are done) is written within the archive's save_delay. A fence waits for no disk: it is told at once, and takes the place
/// of whatever else was to be told to that agent. A disk that fails or takes longer than `slow_limit` does not hold up
/// a job: it goes on unkept, with a line in the log, its file is removed, and every `retry_delay` it is tried again.
/// An archive that binds does hold it up, for others may go on from what it holds; only HostStore is told at once, for
/// a round that was hosted and forgotten does no harm. After `slow_limit` members are told what they wait for, and after
/// the join timeout that they waited in vain: 67.
class JobKeeper : public std::enable_shared_from_this<JobKeeper> {
 public:
  static constexpr Duration slow_limit = std::chrono::seconds{2};
  static constexpr Duration retry_delay = std::chrono::seconds{5};

  using Perform = std::function<void(std::vector<RendezvousAction>)>;
  using Log = std::function<void(const std::string& line)>;

  /// The file is `number` of `archive`. `rendezvous` must live until the keeper is let go; it is in the file already
  /// (`on_disk`), or new. A shared_ptr must own the keeper.
  JobKeeper(boost::asio::io_context& loop, JobArchive& archive, std::uint64_t number, bool on_disk, RunId run_id,
            const Rendezvous& rendezvous, LastingClock clock, Perform perform, Log log);

  /// After each step: has its actions performed now or, in the same order, when they may be told.
  void stepped(std::vector<RendezvousAction> actions);
  /// Whether actions wait.
  [[nodiscard]] bool holds() const { return !held_.empty(); }
  /// The job's state as it is now goes to the directory; whatever still waits is performed. The last call.
  void finish();
  /// The file stays as it is, and what still waits is told to nobody. The last call, when this process ends by a fault
  /// of its own: as if it had been killed.
  void abandon();
  /// The job is over, or is none of ours any more: its file goes, where there is one, whatever still waits is
  /// performed. The last call.
  void forget();
  /// As `forget`, but what still waits is told to nobody.
  void drop();

 private:
  struct Held {
    std::uint64_t revision;
    std::vector<RendezvousAction> actions;
    TimePoint since;
  };

  void tell_fences(std::vector<RendezvousAction>& actions);
  [[nodiscard]] bool waits(const RendezvousAction& action) const;
  void save();
  void watch_save();
  void tell_slow();
  [[nodiscard]] std::function<std::string()> content() const;
  void save_after(Duration delay);
  void saved(std::uint64_t revision, const Result<>& result);
  void release(std::uint64_t revision);
  void let_go();

  JobArchive& archive_;
  std::uint64_t number_;
  RunId run_id_;
  const Rendezvous* rendezvous_;
  LastingClock clock_;
  Perform perform_;
  Log log_;
  boost::asio::steady_timer soon_, slow_;
  std::uint64_t saved_ = 0;  ///< revision that the file holds
  bool on_disk_;             ///< there may be a file: a job that nobody joined never has one
  bool saving_ = false, waiting_ = false, too_slow_ = false, failing_ = false;
  bool told_slow_ = false;  ///< of the write that is under way
  std::deque<Held> held_;
};

}  // namespace torchup

#pragma once

#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "launcher/core/record/launch_event.hpp"
#include "launcher/os/worker/attempt_cgroup.hpp"
#include "rendezvous/net/io/asio.hpp"

namespace torchup {

/// Ends what the workers of an attempt leave behind, whatever its session, and removes the attempt's cgroup. Lives on
/// the loop and never waits on it.
class AttemptSweep {
 public:
  using Recorder = std::function<void(EventBody)>;
  /// `gone` is called once for each sweep: nothing is left that can be ended. `record`: why that takes so long, and
  /// what was left because nothing ends it.
  AttemptSweep(asio::io_context& loop, std::string cgroup_tag, Recorder record, std::function<void()> gone);

  /// Children of ours that have a pidfd watched, so that others do not reap them.
  struct Known {
    std::function<std::vector<pid_t>()> spared = [] { return std::vector<pid_t>{}; };  ///< of no attempt: lives on
    std::function<std::vector<pid_t>()> workers = [] { return std::vector<pid_t>{}; };
  };
  void know(Known known) { known_ = std::move(known); }

  /// Makes the coming attempt's cgroup, if there is none and one is ours to make. Those in which workers live on from
  /// the attempt before stay beside it.
  void make_cgroup();
  /// Its open folder; -1: none.
  [[nodiscard]] int cgroup() const { return cgroups_.empty() ? -1 : cgroups_.back()->folder(); }
  /// That of the attempt behind it, which is made now.
  [[nodiscard]] int next_cgroup();

  /// No attempt follows.
  void discard_cgroup() { cgroups_.clear(); }
  /// The same, for when nobody lives any more.
  void discard_next_cgroup();

  /// Begins a sweep: for `patience` it waits for what is still there, then it sends each process TERM (what one starts
  /// after that gets it when that one has ended), and after `grace` SIGKILL. To begin while one is under way makes its
  /// times shorter, never longer. Where `some_stay` the attempt's cgroup goes on with them, and what is to end is found
  /// by parentage alone.
  void begin(Duration patience, Duration grace, bool some_stay);
  /// Kills all in the cgroup, whoever they run as. Nothing without one.
  void kill_cgroup() const;
  /// SIGKILL does not end this process: no sweep waits for it.
  void expect_no_end_of(pid_t pid);
  /// Those, and what sweeps had to leave.
  [[nodiscard]] const std::vector<pid_t>& given_up() const { return given_up_; }
  /// A child of this process has ended.
  void child_ended();
  /// Ends everything now, and waits for it: for the moment when nobody is left to answer to.
  void end_everything();

 private:
  void reap();
  void go_on();
  [[nodiscard]] bool all_gone(TimePoint now);
  void drop_empty_cgroups();
  void signal_descendants();
  void tell_of_waiting(TimePoint now);
  void forget_who_ended();
  void give_up(const std::vector<pid_t>& stay);
  [[nodiscard]] bool is_given_up(pid_t pid) const;
  [[nodiscard]] std::vector<pid_t> left() const;

  asio::io_context& loop_;
  const std::string tag_;
  Recorder record_;
  std::function<void()> gone_;
  asio::steady_timer timer_;
  Known known_;
  std::vector<std::unique_ptr<AttemptCgroup>> cgroups_;  ///< the newest one last
  std::unique_ptr<AttemptCgroup> next_cgroup_;
  std::vector<pid_t> given_up_;
  std::vector<pid_t> signalled_;  ///< have had SIGTERM
  int attempts_begun_ = 0;
  bool sweeping_ = false;
  bool some_stay_ = false;
  bool told_ = false;
  TimePoint tell_at_{};
  bool only_cgroup_ = false;  ///< no child is left that can be ended, only the cgroup is not yet empty or removed
  TimePoint patient_until_{};
  TimePoint signal_at_{};
  TimePoint kill_at_{};
};

}  // namespace torchup

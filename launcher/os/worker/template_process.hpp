#pragma once

#include <sys/resource.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/agent/template_life.hpp"
#include "launcher/core/options/launch_config.hpp"
#include "launcher/os/worker/child_process.hpp"
#include "launcher/os/worker/parked_process.hpp"
#include "launcher/os/worker/spawner.hpp"
#include "rendezvous/net/io/asio.hpp"

namespace torchup {

/// The process of --preload that has the imports behind it, and the processes that are forked from it and parked until
/// a worker is wanted. Lives on the loop.
///
/// It runs launcher/python/injected/template.py (what is said between it and us stands there), or, as far as to its
/// worker_main, a native program with the mark, which says the same; in a session of its own, with the workers' common
/// environment. It and the parked processes belong to no attempt: whoever ends what an attempt
/// leaves behind spares `known`. All of them end with this process, whoever is killed: the template by the
/// parent-death signal of its spawner's thread, the others by that of the main thread.
class TemplateProcess {
 public:
  using Handler = Spawner::Handler;
  struct Settings {
    std::vector<std::string> modules;  ///< or `program`, for a native one
    WorkerProgram program;
    std::shared_ptr<const std::vector<std::string>> environment;  ///< common to all workers
    std::string hook = {};                                        ///< its folder; empty: there is none
    std::optional<Heritage> heritage;                             ///< as in ChildRequest
    CpuSet cpus;                                                  ///< as in ChildRequest
    int spare = 0;  ///< parked processes to make beforehand; 0: no attempt may follow the first
    Duration import_limit = preload_limit;
    Duration fork_limit = std::chrono::seconds{10};  ///< without an answer
    Duration pause = std::chrono::seconds{1};        ///< from an attempt's last start to making those
  };
  struct Hooks {
    std::function<void(EventBody)> record;
    /// Nobody needs to wait for the imports any more.
    std::function<void()> settled;
    /// One of `known` has ended and is reaped: orphans behind it can be reaped now.
    std::function<void()> reaped;
    /// Starts a worker by exec.
    std::function<void(ChildRequest, Handler)> exec;
    /// Where the template's own output goes.
    std::function<Result<std::array<UniqueFd, 2>>()> streams;
    /// The folder of the next attempt's cgroup; -1: none.
    std::function<int()> next_cgroup;
  };
  TemplateProcess(asio::io_context& loop, Settings settings, Hooks hooks);
  TemplateProcess(const TemplateProcess&) = delete;
  TemplateProcess& operator=(const TemplateProcess&) = delete;

  void begin();
  /// Whether it is worth to wait for `settled` before a worker is started.
  [[nodiscard]] bool is_loading() const { return life_.state() == TemplateLife::State::loading; }

  /// Starts a worker in a parked process; where there is none it is made, and where that cannot be it is started by
  /// exec. The handlers are called on the loop in the order of these calls; one whose attempt was cancelled before its
  /// worker ran gets ECANCELED.
  void start(ChildRequest request, Handler handler);
  /// The attempt's last worker is started: before long the next one's parked processes are made.
  void attempt_runs();
  /// The attempt's workers are stopped before all were started: ends the parked processes, which are in its cgroup.
  void attempt_cancelled();

  /// The template and the parked processes: what no sweep of an attempt ends.
  [[nodiscard]] std::vector<pid_t> known();
  /// Ends all of them, for good.
  void end();

 private:
  struct Order {
    ChildRequest request;
    Handler handler;
    std::optional<Result<ChildProcess>> answer;
    ParkedProcess* process = nullptr;  ///< that was told to start
    int tries = 0;
    bool by_exec = false;
    bool cancelled = false;
  };
  using Descriptor = asio::posix::stream_descriptor;

  [[nodiscard]] Result<UniqueFd> descriptor_4() const;
  void on_started(Result<ChildProcess> child);
  void hear();
  void on_ended();
  void note(std::optional<EventBody> event);
  void on_changed(ParkedProcess& process);
  void serve();
  bool hand_out(Order& order);
  void exec(const std::shared_ptr<Order>& order);
  void answer(Order& order, Result<ChildProcess> child);
  void tell_answers();
  void fork(std::size_t count, int cgroup);
  void stock();
  void watch_silence();
  void on_silence();
  [[nodiscard]] std::size_t count(ParkedProcess::State state) const;

  asio::io_context& loop_;
  const Settings settings_;
  Hooks hooks_;
  TemplateLife life_;
  Spawner spawner_;  ///< of its own: a worker's start must not wait for the template's
  pid_t pid_ = 0;
  Descriptor process_;  ///< its pidfd
  Descriptor control_;
  asio::steady_timer import_timer_;
  asio::steady_timer silence_timer_;
  asio::steady_timer stock_timer_;
  std::list<ParkedProcess> processes_;
  std::deque<std::shared_ptr<Order>> orders_;
  bool stocked_ = false;  ///< this attempt's successors are made, and replaced when they end
  int unmade_ = 0;        ///< processes that ended before they parked, since one did
  int replacements_ = 0;  ///< that may still be made for this attempt
  bool refused_ = false;  ///< one of this job could not become what it was told
  bool ended_ = false;
};

}  // namespace torchup

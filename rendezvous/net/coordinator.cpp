#include "rendezvous/net/coordinator.hpp"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "rendezvous/core/job_codec.hpp"
#include "rendezvous/core/mixed_job.hpp"
#include "rendezvous/net/job_keeper.hpp"
#include "rendezvous/net/node_identity.hpp"
#include "rendezvous/net/state_directory.hpp"
#include "rendezvous/net/torchrun_host.hpp"

namespace torchup {

namespace asio = boost::asio;

namespace {

/// How often the store is looked at, for torchrun's agents write without telling us.
constexpr Duration torchrun_pace = std::chrono::milliseconds{100};

UtcTime utc_now() { return std::chrono::floor<std::chrono::microseconds>(std::chrono::system_clock::now()); }

}  // namespace

class Coordinator::Impl : public std::enable_shared_from_this<Coordinator::Impl> {
 public:
  Impl(asio::io_context& loop, LogSink log, RendezvousSettings settings)
      : loop_{loop}, torchrun_timer_{loop}, log_{std::move(log)}, settings_{settings} {}

  struct Waiter {
    std::unique_ptr<asio::steady_timer> limit;
    std::function<void()> done;
  };

  struct Job {
    Job(asio::io_context& loop, RunId id, Rendezvous machine)
        : run_id{std::move(id)}, rendezvous{std::move(machine)}, mixed{run_id}, timer{loop} {}
    RunId run_id;
    Rendezvous rendezvous;
    MixedJob mixed;  ///< decides instead, once a torchrun agent has come
    asio::steady_timer timer;
    std::optional<TimePoint> armed;
    std::vector<Listener*> listeners;  ///< by peer; null where the number is free
    std::vector<Peer> free_peers;
    std::vector<Peer> gone_peers;       ///< gone while something waits to be told to them
    std::shared_ptr<JobKeeper> keeper;  ///< empty: not kept
    int others = 0;                     ///< connections from other processes
    int own = 0;                        ///< connections of this process
    std::vector<Waiter> waiters;
    std::string own_address = {};  ///< by which agents of other processes have come last
  };

  std::shared_ptr<Job> job(const RunId& run_id) {
    if (const auto found = jobs_.find(run_id); found != jobs_.end()) return found->second;
    forget_old();
    if (jobs_.size() >= jobs_max) return nullptr;
    auto made = std::make_shared<Job>(loop_, run_id, Rendezvous{settings_});
    jobs_.emplace(run_id, made);
    if (state_) keep(*made, next_file_++);
    return made;
  }

  Result<> keep_state(StateDirectory& directory) {
    auto files = directory.read();
    if (!files) return files.error();
    std::vector<std::pair<std::uint64_t, SavedJob>> saved;
    for (const StateDirectory::File& file : *files) {
      auto job = decode_job(file.content);
      if (!job) {
        return Error{job.error().code,
                     file.path + ": " + job.error().context +
                         "; move the file away: then the agents of that job tell what they know of it"};
      }
      saved.emplace_back(file.number, std::move(*job));
    }
    state_ = &directory;
    for (auto& [number, job] : saved) {
      next_file_ = number + 1;
      auto made = std::make_shared<Job>(loop_, job.run_id,
                                        Rendezvous{settings_, job.snapshot, std::chrono::steady_clock::now()});
      if (!jobs_.emplace(job.run_id, made).second) continue;
      keep(*made, number);
      step(*made, Tick{});
    }
    return {};
  }

  void release_state() {
    for (const auto& [id, job] : jobs_) {
      if (job->keeper) std::exchange(job->keeper, {})->finish();
    }
    state_ = nullptr;
    log_ = {};  // agents that we leave have not ended, though it looks so from here
  }

  Peer enter(Job& job, Visitor visitor, Listener& listener) {
    if (job.free_peers.empty()) {
      job.free_peers.push_back(Peer{static_cast<std::uint32_t>(job.listeners.size())});
      job.listeners.push_back(nullptr);
    }
    const Peer peer = job.free_peers.back();
    job.free_peers.pop_back();
    job.listeners[peer.value()] = &listener;
    ++(visitor.in_process ? job.own : job.others);
    if (!visitor.coordinator.empty()) job.own_address = visitor.coordinator;
    step(job, Connected{peer, std::move(visitor.observed), std::move(visitor.coordinator), visitor.in_process});
    return peer;
  }

  void leave(const std::shared_ptr<Job>& job, Peer peer, bool in_process, bool end_of_file) {
    job->listeners[peer.value()] = nullptr;
    --(in_process ? job->own : job->others);
    step(*job, Gone{peer, end_of_file});
    (job->keeper && job->keeper->holds() ? job->gone_peers : job->free_peers).push_back(peer);
    check_waiters(*job);
  }

  /// One event, its actions, and the timer for what comes next.
  void step(Job& job, const RendezvousEvent& event) {
    const TimePoint now = std::chrono::steady_clock::now();
    if (job.mixed.active()) return step_mixed(job, event, now);
    auto actions = job.rendezvous.step(event, now);
    if (job.keeper) {
      job.keeper->stepped(std::move(actions));
    } else {
      perform_all(job, std::move(actions));
    }
    arm(job);
  }

  void step_mixed(Job& job, const RendezvousEvent& event, TimePoint now) {
    if (!job.own_address.empty()) torchrun_->reached_by(job.run_id, job.own_address);
    const UtcTime utc = utc_now();
    for (RendezvousAction& action : job.mixed.step(event, torchrun_->store(job.run_id), now, utc))
      perform(job, std::move(action));
  }

  void admit_torchrun(StoreServer& server, TorchrunHostOptions options) {
    torchrun_.emplace(loop_, server, std::move(options),
                      [this](const RunId& run_id, const std::string& line) { log(run_id, line); });
    look_for_torchrun();
  }

  void look_for_torchrun() {
    torchrun_timer_.expires_after(torchrun_pace);
    torchrun_timer_.async_wait([self = weak_from_this()](const boost::system::error_code& error) {
      const auto impl = self.lock();
      if (error || !impl) return;
      impl->torchrun_->turn(std::chrono::steady_clock::now(), utc_now());
      const auto jobs = impl->jobs_;  // a step may end one
      for (const auto& [id, job] : jobs) {
        TorchrunStore* const store = impl->torchrun_->find(id);
        if (store && job->mixed.wanted(*store, job->rendezvous)) {
          if (job->keeper) std::exchange(job->keeper, {})->forget();
          for (RendezvousAction& action : job->mixed.begin(job->rendezvous, std::chrono::steady_clock::now()))
            impl->perform(*job, std::move(action));
        }
        if (!job->mixed.active()) continue;
        impl->step_mixed(*job, Tick{}, std::chrono::steady_clock::now());
        impl->check_waiters(*job);
      }
      impl->look_for_torchrun();
    });
  }

  void when_others_left(const RunId& run_id, Duration linger, std::function<void()> done) {
    const auto found = jobs_.find(run_id);
    if (found == jobs_.end() || nobody_else(*found->second)) return asio::post(loop_, std::move(done));
    Job& job = *found->second;
    Waiter waiter{std::make_unique<asio::steady_timer>(loop_, linger), std::move(done)};
    waiter.limit->async_wait([self = weak_from_this(), id = run_id](const boost::system::error_code& error) {
      const auto impl = self.lock();
      if (error || !impl) return;
      const auto still = impl->jobs_.find(id);
      if (still != impl->jobs_.end()) impl->release_waiters(*still->second);
    });
    job.waiters.push_back(std::move(waiter));
  }

  asio::io_context& loop_;
  asio::steady_timer torchrun_timer_;
  std::optional<TorchrunHost> torchrun_;
  std::map<RunId, std::shared_ptr<Job>> jobs_;

 private:
  void log(const RunId& run_id, const std::string& text) const {
    if (!log_) return;
    LogLine line{text};
    line.job = run_id.value();
    log_(std::move(line));
  }

  void keep(Job& job, std::uint64_t number) {
    job.keeper = std::make_shared<JobKeeper>(
        loop_, *state_, number, job.run_id, job.rendezvous,
        [this, &job](std::vector<RendezvousAction> actions) { perform_all(job, std::move(actions)); },
        [this, id = job.run_id](const std::string& line) { log(id, line); });
  }

  void forget(Job& job) {
    if (job.keeper) std::exchange(job.keeper, {})->forget();
  }

  void perform_all(Job& job, std::vector<RendezvousAction> actions) {
    for (RendezvousAction& action : actions) perform(job, std::move(action));
    if (job.keeper && job.keeper->holds()) return;
    job.free_peers.insert(job.free_peers.end(), job.gone_peers.begin(), job.gone_peers.end());
    job.gone_peers.clear();
  }

  void perform(Job& job, RendezvousAction&& action) {
    if (auto* tell = std::get_if<Tell>(&action)) {
      if (Listener* listener = job.listeners[tell->peer.value()]) listener->tell(std::move(tell->message));
    } else if (auto* refuse = std::get_if<Refuse>(&action)) {
      if (Listener* listener = job.listeners[refuse->peer.value()]) {
        listener->refuse(refuse->exit_code, std::move(refuse->reason));
      }
    } else if (auto* note = std::get_if<Note>(&action)) {
      log(job.run_id, to_text(*note));
    }
  }

  /// A timer that is early costs one look; setting it anew for each sign of life would cost more.
  void arm(Job& job) {
    const auto deadline = job.rendezvous.deadline();
    if (!deadline || (job.armed && *job.armed <= *deadline)) return;
    job.armed = deadline;
    job.timer.expires_at(*deadline);
    job.timer.async_wait([self = weak_from_this(), id = job.run_id](const boost::system::error_code& error) {
      const auto impl = self.lock();
      if (error || !impl) return;
      const auto found = impl->jobs_.find(id);
      if (found == impl->jobs_.end()) return;
      const auto due = found->second;
      due->armed.reset();
      impl->step(*due, Tick{});
      impl->check_waiters(*due);
      if (due->others + due->own == 0 && due->rendezvous.forgettable(std::chrono::steady_clock::now())) {
        impl->forget(*due);
        impl->jobs_.erase(id);
      }
    });
  }

  void forget_old() {
    const TimePoint now = std::chrono::steady_clock::now();
    std::erase_if(jobs_, [&](const auto& entry) {
      Job& job = *entry.second;
      const bool over = job.mixed.active() ? job.mixed.member_count() == 0 : job.rendezvous.forgettable(now);
      const bool goes = job.others + job.own == 0 && over;
      if (goes) forget(job);
      return goes;
    });
  }

  /// Members without a connection may yet come back to hear the verdict.
  static bool nobody_else(const Job& job) {
    const int members = job.mixed.active() ? job.mixed.member_count() : job.rendezvous.member_count();
    return job.others == 0 && members <= job.own;
  }

  void check_waiters(Job& job) {
    if (!job.waiters.empty() && nobody_else(job)) release_waiters(job);
  }
  void release_waiters(Job& job) {
    for (Waiter& waiter : std::exchange(job.waiters, {})) asio::post(loop_, std::move(waiter.done));
  }

  LogSink log_;
  RendezvousSettings settings_;
  StateDirectory* state_ = nullptr;  ///< null: nothing is kept
  std::uint64_t next_file_ = 0;
};

namespace {

class OpenAttendance final : public Coordinator::Attendance {
 public:
  OpenAttendance(Peer peer, std::function<void(const RendezvousEvent&)> step, std::function<void(bool)> leave)
      : peer_{peer}, step_{std::move(step)}, leave_{std::move(leave)} {}
  ~OpenAttendance() override { gone(true); }

  void said(AgentMessage message) override {
    if (leave_) step_(Said{peer_, std::move(message)});
  }
  void resumed(Resume resume) override {
    if (leave_) step_(Resumed{peer_, std::move(resume)});
  }
  void alive() override {
    if (leave_) step_(Alive{peer_});
  }
  void gone(bool end_of_file) override {
    if (const auto leave = std::exchange(leave_, {})) leave(end_of_file);
  }

 private:
  Peer peer_;
  std::function<void(const RendezvousEvent&)> step_;
  std::function<void(bool)> leave_;
};

/// The agent that shares a process with its coordinator. What it says and hears takes one turn of the loop, so neither
/// is ever called from within the other.
class OwnLink final : public AgentLink {
 public:
  OwnLink(asio::io_context& loop, Coordinator& coordinator, RunId run_id, Handler handler)
      : coordinator_{coordinator}, run_id_{std::move(run_id)}, state_{
                                                                   std::make_shared<State>(loop, std::move(handler))} {
    state_->attendance = coordinator.open(run_id_, {.in_process = true}, *state_);
  }
  ~OwnLink() override {
    state_->handler = {};
    state_->attendance.reset();
  }

  void send(AgentMessage message) override {
    if (auto* join = std::get_if<Join>(&message)) *join = completed(std::move(*join), 0);
    asio::post(state_->loop, [state = state_, message = std::move(message)]() mutable {
      if (state->attendance) state->attendance->said(std::move(message));
    });
  }

  void finish(Duration linger, std::function<void()> done) override {
    coordinator_.when_others_left(run_id_, linger, std::move(done));
  }

 private:
  struct State final : Coordinator::Listener, std::enable_shared_from_this<State> {
    State(asio::io_context& the_loop, Handler the_handler) : loop{the_loop}, handler{std::move(the_handler)} {}
    void tell(CoordinatorMessage message) override { deliver(std::move(message)); }
    void refuse(int exit_code, std::string reason) override { deliver(LinkLost{exit_code, std::move(reason)}); }
    void deliver(LinkEvent event) {
      asio::post(loop, [self = shared_from_this(), event = std::move(event)]() mutable {
        const Handler current = self->handler;  // which may destroy the link
        if (current) current(std::move(event));
      });
    }
    asio::io_context& loop;
    Handler handler;
    std::unique_ptr<Coordinator::Attendance> attendance;
  };

  Coordinator& coordinator_;
  RunId run_id_;
  std::shared_ptr<State> state_;
};

}  // namespace

Coordinator::Coordinator(asio::io_context& loop, LogSink log, RendezvousSettings settings)
    : impl_{std::make_shared<Impl>(loop, std::move(log), settings)} {}

Coordinator::~Coordinator() = default;

std::unique_ptr<AgentLink> Coordinator::connect(RunId run_id, AgentLink::Handler handler) {
  return std::make_unique<OwnLink>(impl_->loop_, *this, std::move(run_id), std::move(handler));
}

std::unique_ptr<Coordinator::Attendance> Coordinator::open(const RunId& run_id, Visitor visitor, Listener& listener) {
  auto job = impl_->job(run_id);
  if (!job) return nullptr;
  const bool in_process = visitor.in_process;
  const Peer peer = impl_->enter(*job, std::move(visitor), listener);
  return std::make_unique<OpenAttendance>(
      peer, [impl = impl_.get(), job](const RendezvousEvent& event) { impl->step(*job, event); },
      [impl = impl_.get(), job, peer, in_process](bool end_of_file) {
        impl->leave(job, peer, in_process, end_of_file);
      });
}

void Coordinator::admit_torchrun(StoreServer& server, TorchrunHostOptions options) {
  impl_->admit_torchrun(server, std::move(options));
}

Result<> Coordinator::keep_state(StateDirectory& directory) { return impl_->keep_state(directory); }
void Coordinator::release_state() { impl_->release_state(); }

bool Coordinator::mixed(const RunId& run_id) const {
  const auto found = impl_->jobs_.find(run_id);
  return found != impl_->jobs_.end() && found->second->mixed.active();
}

void Coordinator::when_others_left(const RunId& run_id, Duration linger, std::function<void()> done) {
  impl_->when_others_left(run_id, linger, std::move(done));
}

std::vector<std::pair<RunId, JobView>> Coordinator::jobs() const {
  std::vector<std::pair<RunId, JobView>> list;
  const TimePoint now = std::chrono::steady_clock::now();
  for (const auto& [run_id, job] : impl_->jobs_) {
    JobView view = job->rendezvous.view(now);
    if (job->mixed.active()) {
      view = impl_->torchrun_->view(run_id, std::move(view));
      view.verdict = job->mixed.verdict();
    }
    list.emplace_back(run_id, std::move(view));
  }
  if (!impl_->torchrun_) return list;
  for (const RunId& run_id : impl_->torchrun_->jobs()) {
    if (!impl_->jobs_.contains(run_id)) list.emplace_back(run_id, impl_->torchrun_->view(run_id, {}));
  }
  return list;
}

std::size_t Coordinator::job_count() const { return impl_->jobs_.size(); }

}  // namespace torchup

#include "rendezvous/net/coordinator/coordinator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "rendezvous/net/coordinator/coordinator_job.hpp"
#include "rendezvous/net/coordinator/job_keeper.hpp"
#include "rendezvous/net/coordinator/job_registry.hpp"
#include "rendezvous/net/coordinator/open_attendance.hpp"
#include "rendezvous/net/coordinator/own_link.hpp"
#include "rendezvous/net/coordinator/told_room.hpp"
#include "rendezvous/net/coordinator/torchrun_host.hpp"

namespace torchup {

namespace asio = boost::asio;

namespace {

/// How often the store is looked at, for torchrun's agents write without telling us.
constexpr Duration torchrun_pace = std::chrono::milliseconds{100};

UtcTime utc_now() { return std::chrono::floor<std::chrono::microseconds>(std::chrono::system_clock::now()); }

}  // namespace

class Coordinator::Impl : public std::enable_shared_from_this<Coordinator::Impl> {
 public:
  Impl(asio::io_context& loop, LogSink log, RendezvousSettings settings, LastingClock clock, std::size_t answers_max)
      : loop_{loop}, torchrun_timer_{loop}, clock_{std::move(clock)}, settings_{since(settings, clock_())},
        answers_max_{answers_max}, jobs_{loop, std::move(log), settings_, clock_,
                                         [this](Job& job, std::vector<RendezvousAction> actions) {
                                           perform_kept(job, std::move(actions));
                                         }} {}

  using Job = CoordinatorJob;

  /// Null: there is no room for one.
  std::shared_ptr<Job> job(const RunId& run_id) {
    if (auto known = jobs_.find(run_id)) return known;
    auto begun = jobs_.begin(run_id);
    if (begun) begun->onlooker = onlooker_;
    if (begun && tenure_) begun->proof.seated(tenure_->proved);
    return begun;
  }

  Result<> keep_state(StateDirectory& directory) {
    const auto restored = jobs_.restore(directory);
    if (!restored) return restored.error();
    for (const auto& job : *restored) {
      job->onlooker = onlooker_;
      step(*job, Tick{});
      jobs_.forget_if_over(*job);
    }
    return {};
  }

  // ---- one of several

  void begin_tenure(JobArchive& archive, const Tenure& tenure, std::vector<Found> found) {
    tenure_ = Seated{tenure.term, tenure.taken};
    elsewhere_.reset();
    jobs_.know_all();
    std::vector<JobRegistry::Found> jobs;
    for (Found& each : found) jobs.push_back({std::move(each.run_id), std::move(each.snapshot)});
    for (const auto& job : jobs_.restore(archive, std::move(jobs), tenure.takeover)) {
      job->onlooker = onlooker_;
      step(*job, Tick{});
      jobs_.forget_if_over(*job);
    }
  }

  void go_on(Term term, TimePoint taken) {
    tenure_ = Seated{term, std::max(taken, tenure_ ? tenure_->proved : taken)};
    for (const auto& [id, job] : jobs_.all()) job->proof.seated(tenure_->proved);
  }

  void confirm(TimePoint sent) {
    if (!tenure_) return;
    tenure_->seated = true;
    tenure_->proved = std::max(tenure_->proved, sent);
    for (const auto& [id, job] : jobs_.all()) job->proof.seated(sent);
  }

  void end_tenure(Elsewhere elsewhere) {
    tenure_.reset();
    elsewhere_ = std::move(elsewhere);
    jobs_.let_go_of_jobs();
    const auto all = when_moved_;
    for (const auto& moved : all) moved(*elsewhere_);
  }

  Right right(const Job* job) const {
    if (!tenure_) return {};
    const TimePoint now = clock_();
    const TimePoint proved = job ? std::max(tenure_->proved, job->proof.at().value_or(tenure_->proved)) : tenure_->proved;
    return {tenure_->term.value(), tenure_->seated, std::max(now - proved, Duration::zero())};
  }

  /// Whose echoes are proof. Null: nobody's, as of one whom the machine has not met, for it is faulty.
  const NodeId* member_of(const Job& job, Peer peer) const {
    if (!tenure_ || job.faulty()) return nullptr;
    const auto slot = job.rendezvous.members().connection(peer).member;
    return slot ? &job.rendezvous.members().at(*slot).join->node : nullptr;
  }

  /// Proof is of the answers that a member has echoed: who is none has no part in it.
  Right answer(Job& job, Peer peer, std::uint64_t number, std::uint64_t seen) {
    if (!tenure_ || job.is_let_go() || job.faulty() || job.mixed.active()) return right(nullptr);
    if (const NodeId* const node = member_of(job, peer)) {
      if (seen != 0) job.proof.echoed(*node, seen);
      job.proof.answered(*node, number, clock_());
    }
    return right(&job);
  }

  /// Whose word counts as proof: all members of the round that runs, if nobody is missing.
  void update_proof(Job& job) {
    if (!tenure_) return;
    const auto complete = job.rendezvous.complete_round();
    if (complete == job.proof_round) return;
    job.proof_round = complete;
    if (!complete) return job.proof.round_over();
    std::vector<NodeId> members;
    for (const auto& [node, slot] : job.rendezvous.members().slots()) {
      if (job.rendezvous.members().at(slot).in_round()) members.emplace_back(node);
    }
    job.proof.round_runs(members);
  }

  Peer enter(Job& job, Visitor visitor, Listener& listener) {
    const Peer peer = job.add(visitor, listener);
    step(job, Connected{peer, std::move(visitor.observed), std::move(visitor.coordinator), visitor.in_process});
    return peer;
  }

  void leave(const std::shared_ptr<Job>& job, Peer peer, bool in_process, bool end_of_file) {
    if (job->is_let_go()) return;
    if (const NodeId* const node = member_of(*job, peer)) job->proof.detached(*node);
    job->remove(peer, in_process);
    step(*job, Gone{peer, end_of_file});
    job->give_back(peer);
    check_waiters(*job);
    if (job->alone() && job->faulty()) return jobs_.forget(*job);
    jobs_.forget_if_over(*job);
  }

  /// One event, its actions, and the timer for what comes next. A fault of ours ends the job that it is in, and no
  /// other.
  void step(Job& job, const RendezvousEvent& event) {
    if (job.is_let_go()) return;
    if (job.faulty()) return job.refuse_after_fault(event);
    try {
      job.stepping = true;
      step_sound(job, event);
      job.stepping = false;
    } catch (const std::exception& fault) {
      end_by_fault(job, fault.what());
    }
    if (!std::holds_alternative<Alive>(event)) jobs_.count(job);
  }

  void step_sound(Job& job, const RendezvousEvent& event) {
    const TimePoint now = clock_();
    if (job.mixed.active()) return step_mixed(job, event, now);
    auto actions = job.rendezvous.step(event, now);
    update_proof(job);
    if (job.keeper) {
      job.keeper->stepped(std::move(actions));
    } else {
      job.perform(std::move(actions));
    }
    job.perform(job.watch.step(watch::RoundStepped{}, job.rendezvous, now));
    arm(job);
  }

  /// What is said of hangs and lateness, of which the round machine hears nothing.
  void heed(Job& job, const watch::Event& event) {
    if (job.faulty() || job.is_let_go() || job.mixed.active()) return;
    if (!has_room_for(jobs_, event, answers_max_)) {
      return job.log(LogLevel::warning, "answers cut",
                     fmt::format("answers_bytes_max: what agents answered to looks takes up {} bytes: one is not taken",
                                 answers_max_));
    }
    try {
      job.perform(job.watch.step(event, job.rendezvous, clock_()));
      arm(job);
    } catch (const std::exception& fault) {
      end_by_fault(job, fault.what());
    }
  }

  void end_by_fault(Job& job, const std::string& what) {
    job.end_by_fault(what);
    release_waiters(job);
  }

  void step_mixed(Job& job, const RendezvousEvent& event, TimePoint now) {
    if (!job.own_address.empty()) torchrun_->reached_by(job.run_id, job.own_address);
    const UtcTime utc = utc_now();
    TorchrunStore& store = torchrun_->store(job.run_id);
    job.perform(job.watch.step(watch::OthersDecide{}, job.rendezvous, now));
    for (RendezvousAction& action : job.mixed.step(event, store, now, utc)) job.perform(std::move(action));
    if (!job.mixed.over(torchrun_->attended(job.run_id))) return;
    MixedJob::Rest rest = job.mixed.give_back(store);
    job.meeting_over = true;
    jobs_.keep(job);
    job.rendezvous.take_back(std::move(rest.people), std::move(rest.verdict), now);
    step_sound(job, Tick{});
    for (Said& said : rest.early) step_sound(job, std::move(said));
  }

  void admit_torchrun(StoreServer& server, TorchrunHostOptions options) {
    torchrun_.emplace(
        loop_, server, std::move(options),
        [this](const RunId& run_id, const std::string& line) { log(run_id, LogLine{line}); },
        [this](const RunId& run_id, const std::string& what) { end_meeting_by_fault(run_id, what); });
    look_for_torchrun();
  }

  void log(const RunId& run_id, LogLine line) {
    line.job = run_id.value();
    jobs_.sink()(std::move(line));
  }

  void end_meeting_by_fault(const RunId& run_id, const std::string& what) {
    const auto found = jobs_.find(run_id);
    if (found && found->mixed.active()) return end_by_fault(*found, what);
    log(run_id, {LogLevel::error, fmt::format("internal fault of the coordinator: {}: torchrun's agents of this job "
                                              "are left to themselves",
                                              what)});
  }

  void look_for_torchrun() {
    torchrun_timer_.expires_after(torchrun_pace);
    torchrun_timer_.async_wait([self = weak_from_this()](const boost::system::error_code& error) {
      const auto impl = self.lock();
      if (error || !impl) return;
      impl->torchrun_->turn(impl->clock_(), utc_now());
      const auto jobs = impl->jobs_.all();  // a step may end one
      for (const auto& [id, job] : jobs) {
        if (job->faulty()) continue;
        try {
          impl->look_for_torchrun_in(*job);
        } catch (const std::exception& fault) {
          impl->end_by_fault(*job, fault.what());
        }
      }
      impl->look_for_torchrun();
    });
  }

  void look_for_torchrun_in(Job& job) {
    TorchrunStore* store = torchrun_->find(job.run_id);
    if (!store && MixedJob::is_static(job.rendezvous)) store = &torchrun_->store(job.run_id);
    const bool begins = !job.mixed.active() && job.rendezvous.member_count() > 0 && !job.rendezvous.verdict();
    const bool left_over = job.meeting_over || torchrun_->closed(job.run_id);
    if (store && begins && left_over && !torchrun_->attended(job.run_id)) {
      if (torchrun_->forget(job.run_id)) job.meeting_over = false;
      return;
    }
    if (store && job.mixed.wanted(*store, job.rendezvous)) {
      job.had_torchrun = true;
      job.meeting_over = false;
      if (job.keeper) std::exchange(job.keeper, {})->forget();
      for (RendezvousAction& action : job.mixed.begin(job.rendezvous, clock_())) job.perform(std::move(action));
    }
    if (!job.mixed.active()) return;
    step_mixed(job, Tick{}, clock_());
    jobs_.count(job);
    check_waiters(job);
    jobs_.forget_if_over(job);
  }

  [[nodiscard]] JobView view(const Job& job, TimePoint now) const {
    JobView view = job.rendezvous.view(now);
    if (!job.mixed.active()) return view;
    view = torchrun_->view(job.run_id, std::move(view), job.mixed.ours());
    view.verdict = job.mixed.verdict();
    return view;
  }

  void when_others_left(const RunId& run_id, Duration linger, std::function<void()> done) {
    const auto found = jobs_.find(run_id);
    if (!found || found->nobody_else()) return asio::post(loop_, std::move(done));
    Job& job = *found;
    Job::Waiter waiter{std::make_unique<asio::steady_timer>(loop_, linger), std::move(done)};
    waiter.limit->async_wait([self = weak_from_this(), id = run_id](const boost::system::error_code& error) {
      const auto impl = self.lock();
      if (error || !impl) return;
      if (const auto still = impl->jobs_.find(id)) impl->release_waiters(*still);
    });
    job.waiters.push_back(std::move(waiter));
  }

  asio::io_context& loop_;
  asio::steady_timer torchrun_timer_;
  std::optional<TorchrunHost> torchrun_;
  const LastingClock clock_;
  const RendezvousSettings settings_;
  const std::size_t answers_max_;
  std::shared_ptr<const Onlooker> onlooker_;
  struct Seated {
    Term term{0};
    TimePoint proved{};
    bool seated = true;
  };
  std::optional<Seated> tenure_;        ///< nothing: it stands by, or is alone
  std::optional<Elsewhere> elsewhere_;  ///< it stands by
  std::vector<std::function<void(const Elsewhere&)>> when_moved_;
  std::function<void(std::int64_t, const std::vector<std::string>&)> met_;
  std::function<Role()> role_;
  JobRegistry jobs_;

 private:
  static RendezvousSettings since(RendezvousSettings settings, TimePoint now) {
    if (!settings.started) settings.started = now;
    return settings;
  }

  void perform_kept(Job& job, std::vector<RendezvousAction> actions) {
    if (job.stepping) return job.perform(std::move(actions));
    try {
      job.perform(std::move(actions));
    } catch (const std::exception& fault) {
      end_by_fault(job, fault.what());
    }
  }

  /// A timer that is early costs one look; setting it anew for each sign of life would cost more.
  void arm(Job& job) {
    auto deadline = job.rendezvous.deadline();
    if (const auto watched = job.watch.deadline(); watched && (!deadline || *watched < *deadline)) deadline = watched;
    if (!deadline || (job.armed && *job.armed <= *deadline)) return;
    job.armed = deadline;
    job.timer.expires_after(*deadline - clock_());  // late after a suspension, which is seen in the step
    job.timer.async_wait([self = weak_from_this(), id = job.run_id](const boost::system::error_code& error) {
      const auto impl = self.lock();
      if (error || !impl) return;
      const auto due = impl->jobs_.find(id);
      if (!due) return;
      due->armed.reset();
      impl->step(*due, Tick{});
      impl->check_waiters(*due);
      impl->jobs_.forget_if_over(*due);
    });
  }

  void check_waiters(Job& job) {
    if (!job.waiters.empty() && job.nobody_else()) release_waiters(job);
  }
  void release_waiters(Job& job) {
    for (Job::Waiter& waiter : std::exchange(job.waiters, {})) asio::post(loop_, std::move(waiter.done));
  }
};

Coordinator::Coordinator(asio::io_context& loop, LogSink log, RendezvousSettings settings, LastingClock clock,
                         std::size_t answers_max)
    : impl_{std::make_shared<Impl>(loop, std::move(log), settings, std::move(clock), answers_max)} {}

Coordinator::~Coordinator() = default;

std::unique_ptr<AgentLink> Coordinator::connect(RunId run_id, AgentLink::Handler handler) {
  return own_link(impl_->loop_, *this, std::move(run_id), std::move(handler));
}

std::unique_ptr<Coordinator::Attendance> Coordinator::open(const RunId& run_id, Visitor visitor, Listener& listener) {
  auto job = impl_->job(run_id);
  if (!job) return nullptr;
  const bool in_process = visitor.in_process;
  std::string observed = visitor.observed, reached = visitor.coordinator;
  const Peer peer = impl_->enter(*job, std::move(visitor), listener);
  return std::make_unique<OpenAttendance>(
      peer,
      [impl = impl_.get(), job, observed = std::move(observed), reached = std::move(reached), in_process,
       &listener](RendezvousEvent event) {
        if (!in_process) {
          if (auto why = why_no_room(impl->jobs_, *job, event); !why.empty())
            return listener.refuse(68, std::move(why));
        }
        if (const Join* join = join_in(event)) job->heard(*join, observed, reached);
        impl->step(*job, event);
      },
      [impl = impl_.get(), job](const watch::Event& event) { impl->heed(*job, event); },
      [job, peer](NodeWord word) { job->show(peer, std::move(word)); },
      [impl = impl_.get(), job, peer, in_process](bool end_of_file) {
        impl->leave(job, peer, in_process, end_of_file);
      },
      [impl = impl_.get(), job, peer](std::uint64_t number, std::uint64_t seen) {
        return impl->answer(*job, peer, number, seen);
      });
}

void Coordinator::set_onlooker(Onlooker onlooker) {
  impl_->onlooker_ = std::make_shared<const Onlooker>(std::move(onlooker));
}

std::optional<OrderAnswer> Coordinator::order(const RunId& run_id, const Order& order, std::string by) {
  const auto job = impl_->jobs_.find(run_id);
  if (!job) return {};
  OrderAnswer answer = job->answer(order, impl_->clock_());
  if (answer.accepted) impl_->step(*job, Ordered{order, std::move(by)});
  return job->faulty() ? job->answer(order, impl_->clock_()) : answer;
}

bool Coordinator::obeys(const RunId& run_id) const {
  const auto job = impl_->jobs_.find(run_id);
  return job && !job->faulty();
}

bool Coordinator::tell_node(const RunId& run_id, const NodeId& node, CoordinatorMessage message) {
  const auto job = impl_->jobs_.find(run_id);
  return job && job->tell_node(node, std::move(message));
}

bool Coordinator::is_near(const RunId& run_id, const NodeId& node) const {
  const auto job = impl_->jobs_.find(run_id);
  return job && job->is_near(node);
}

bool Coordinator::foretell(const RunId& run_id, Foretold foretold) {
  const auto job = impl_->job(run_id);
  if (!job) return false;
  impl_->step(*job, std::move(foretold));
  return true;
}

void Coordinator::admit_torchrun(StoreServer& server, TorchrunHostOptions options) {
  impl_->admit_torchrun(server, std::move(options));
}

Result<> Coordinator::keep_state(StateDirectory& directory) { return impl_->keep_state(directory); }
void Coordinator::release_state() { impl_->jobs_.let_go_of_state(&JobKeeper::finish); }
void Coordinator::abandon_state() { impl_->jobs_.let_go_of_state(&JobKeeper::abandon); }

void Coordinator::set_role(std::function<Role()> role) { impl_->role_ = std::move(role); }
std::optional<Coordinator::Role> Coordinator::role() const {
  return impl_->role_ ? std::optional{impl_->role_()} : std::nullopt;
}
void Coordinator::stand_by(Elsewhere elsewhere) { impl_->elsewhere_ = std::move(elsewhere); }
void Coordinator::begin_tenure(JobArchive& archive, const Tenure& tenure, std::vector<Found> found) {
  impl_->begin_tenure(archive, tenure, std::move(found));
}
void Coordinator::go_on(Term term, TimePoint taken) { impl_->go_on(term, taken); }
void Coordinator::confirm(TimePoint sent) { impl_->confirm(sent); }
void Coordinator::set_seated(bool seated) {
  if (impl_->tenure_) impl_->tenure_->seated = seated;
}
void Coordinator::end_tenure(Elsewhere elsewhere) { impl_->end_tenure(std::move(elsewhere)); }
const std::optional<Elsewhere>& Coordinator::elsewhere() const { return impl_->elsewhere_; }
Coordinator::Right Coordinator::right() const { return impl_->right(nullptr); }
void Coordinator::when_moved(std::function<void(const Elsewhere&)> moved) {
  impl_->when_moved_.push_back(std::move(moved));
}
void Coordinator::met(std::int64_t term, const std::vector<std::string>& endpoints) {
  if (impl_->met_) impl_->met_(term, endpoints);
}
void Coordinator::set_met(std::function<void(std::int64_t, const std::vector<std::string>&)> met) {
  impl_->met_ = std::move(met);
}
bool Coordinator::knows_address(const std::string& address) const {
  return std::ranges::any_of(impl_->jobs_.all(),
                             [&](const auto& entry) { return entry.second->knows_address(address); });
}

bool Coordinator::mixed(const RunId& run_id) const {
  const auto found = impl_->jobs_.find(run_id);
  return found && found->mixed.active();
}

std::optional<Verdict> Coordinator::verdict(const RunId& run_id) const {
  const auto found = impl_->jobs_.find(run_id);
  return found ? found->rendezvous.verdict() : std::nullopt;
}

bool Coordinator::had_torchrun(const RunId& run_id) const {
  const auto found = impl_->jobs_.find(run_id);
  return found && found->had_torchrun;
}

void Coordinator::when_others_left(const RunId& run_id, Duration linger, std::function<void()> done) {
  impl_->when_others_left(run_id, linger, std::move(done));
}

std::vector<std::pair<RunId, JobView>> Coordinator::jobs() const {
  std::vector<std::pair<RunId, JobView>> list;
  const TimePoint now = impl_->clock_();
  for (const auto& [run_id, job] : impl_->jobs_.all()) list.emplace_back(run_id, impl_->view(*job, now));
  if (!impl_->torchrun_) return list;
  for (const RunId& run_id : impl_->torchrun_->jobs()) {
    if (!impl_->jobs_.find(run_id)) list.emplace_back(run_id, impl_->torchrun_->view(run_id, {}));
  }
  return list;
}

std::optional<JobView> Coordinator::view(const RunId& run_id) const {
  if (const auto job = impl_->jobs_.find(run_id)) return impl_->view(*job, impl_->clock_());
  const bool is_theirs = impl_->torchrun_ && std::ranges::count(impl_->torchrun_->jobs(), run_id) > 0;
  return is_theirs ? std::optional{impl_->torchrun_->view(run_id, {})} : std::nullopt;
}

std::vector<std::pair<RunId, std::vector<LateWorker>>> Coordinator::late_workers() const {
  std::vector<std::pair<RunId, std::vector<LateWorker>>> list;
  for (const auto& [run_id, job] : impl_->jobs_.all()) {
    if (!job->watch.late_workers().empty()) list.emplace_back(run_id, job->watch.late_workers());
  }
  return list;
}

std::size_t Coordinator::job_count() const { return impl_->jobs_.all().size(); }

}  // namespace torchup

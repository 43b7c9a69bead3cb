#include "launcher/os/agent/worker_group.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <utility>

#include "launcher/core/diagnosis/worker_seen.hpp"
#include "launcher/core/plan/descriptor_need.hpp"
#include "launcher/core/plan/worker_command.hpp"
#include "launcher/os/machine/descendants.hpp"

namespace torchup {
namespace {

/// The system's error alone tells whether another try can help.
bool is_permanent(const Error& error) {
  const int code = error.code.value();
  return code == ENOENT || code == EACCES || code == ENOEXEC || code == ENOTDIR || code == ELOOP || code == E2BIG;
}

std::int64_t failed_at_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

}  // namespace

WorkerGroup::WorkerGroup(asio::io_context& loop, const LaunchConfig& config, Heritage heritage, Listener listener)
    : loop_{loop}, config_{config}, heritage_{std::move(heritage)}, listener_{std::move(listener)}, spawner_{loop},
      workers_(static_cast<std::size_t>(config.local_world_size)),
      error_files_(workers_.size()), next_{config.local_world_size} {}

void WorkerGroup::prepare() {
  if (environment_) return;
  if (config_.worker_hook) make_hook();
  environment_.emplace(config_, own_environment(), hook_ ? hook_->path() : std::string{});
}

void WorkerGroup::make_hook() {
  auto made = HookFolder::make();
  if (made) {
    hook_.emplace(*std::move(made));
    return;
  }
  // Who asks for hangs is to know what will not be seen of them; others lose nothing.
  const bool wanted = config_.terms.hang_timeout.mode == HangTimeout::Mode::given;
  listener_.record(event::Notice{
      "Python workers have no hook (their stacks, steps and exceptions are not seen): " + made.error().message(),
      wanted ? LogLevel::warning : LogLevel::debug});
}

void WorkerGroup::preload(Preload how) {
  prepare();
  TemplateProcess::Settings settings;
  settings.modules = config_.preload;
  settings.program = config_.program;
  // It is no worker: it has the hook for those that are forked from it.
  settings.environment = hook_ ? WorkerEnvironment{config_, own_environment()}.common() : environment_->common();
  if (hook_) settings.hook = hook_->path();
  settings.heritage = heritage_;
  // What libraries count when they are loaded is counted where the only worker will be.
  if (config_.worker_cpus.size() == 1) settings.cpus = config_.worker_cpus.front();
  const bool one_attempt = config_.one_node() && config_.terms.max_restarts == 0;
  settings.spare = one_attempt ? 0 : config_.local_world_size;
  TemplateProcess::Hooks hooks;
  hooks.record = listener_.record;
  hooks.settled = [this] { order_workers(); };
  hooks.reaped = reaped_ = std::move(how.reaped);
  hooks.exec = [this](ChildRequest request, Spawner::Handler handler) { exec(std::move(request), std::move(handler)); };
  hooks.streams = std::move(how.streams);
  hooks.next_cgroup = std::move(how.next_cgroup);
  template_ = std::make_unique<TemplateProcess>(loop_, std::move(settings), std::move(hooks));
  template_->begin();
}

std::vector<pid_t> WorkerGroup::spared() const {
  std::vector<pid_t> pids = template_ ? template_->known() : std::vector<pid_t>{};
  std::vector<Forebear> kept;
  for (const LocalRank local_rank : kept_) {
    const Worker* const worker = find(local_rank);
    if (!worker) continue;
    pids.push_back(worker->pid());
    kept.push_back({worker->pid(), fmt::format("LOCAL_RANK={}", local_rank.value())});
  }
  const std::vector<pid_t> heirs = left_behind_by(kept);  // no worker has another's local rank
  pids.insert(pids.end(), heirs.begin(), heirs.end());
  return pids;
}

void WorkerGroup::end_preload() {
  if (template_) template_->end();
}

void WorkerGroup::renew() {
  cancelled_ = false;
  drain_ = false;
  spawner_.allow_births();
}

void WorkerGroup::start(Start how) {
  start_ = std::move(how);
  next_ = 0;
  order_workers();
}

void WorkerGroup::order_workers() {
  if (template_ && template_->is_loading() && !cancelled_) return;  // it calls again
  prepare();
  // Enough to keep the spawner busy, and no more: each order holds descriptors and an environment, and a child is made
  // the slower the more descriptors are open here.
  while (next_ < config_.local_world_size && (orders_ < starts_at_once || cancelled_)) order(LocalRank{next_++});
}

void WorkerGroup::order(LocalRank local_rank) {
  if (cancelled_) return listener_.tell(WorkerNotStarted{local_rank});
  if (std::ranges::find(start_.kept, local_rank) != start_.kept.end()) return place(local_rank);
  auto streams = start_.output->take_child_streams(local_rank);
  if (!streams) return listener_.tell(SpawnFailed{local_rank, streams.error().message(), false, failed_at_us()});
  ChildRequest request;
  request.executable = config_.program.executable;
  request.arguments = worker_command(config_.program, local_rank);
  request.common_environment = environment_->common();
  request.environment = environment_->own(start_.placement, local_rank, start_.output->files(local_rank).error_file);
  request.environment.insert(request.environment.end(), start_.variables.begin(), start_.variables.end());
  request.in = std::move(streams->in);
  request.out = std::move(streams->out);
  request.err = std::move(streams->err);
  const auto order = std::make_shared<Order>();  // shared, because a std::function must be copyable
  const WorkerFiles& files = start_.output->files(local_rank);
  order->stdout_log = files.stdout_log;
  order->stderr_log = files.stderr_log;
  error_files_.at(static_cast<std::size_t>(local_rank.value())) = files.error_file;
  order->worker = {Rank{start_.placement.first_rank.value() + local_rank.value()}, local_rank, 0};
  if (auto made = SharedPage::make()) {
    order->page.emplace(*std::move(made));
    if (drain_) order->page->request_drain();
    request.page = order->page->fd();
    request.page_address = order->page->address(page_descriptor);
  }
  if (!config_.worker_cpus.empty()) {
    request.cpus = config_.worker_cpus.at(static_cast<std::size_t>(local_rank.value()));
  }
  request.heritage = heritage_;
  request.cgroup = start_.cgroup;
  ++orders_;
  auto spawned = [this, order](Result<ChildProcess> child) { on_spawned(*order, std::move(child)); };
  if (template_) {
    template_->start(std::move(request), std::move(spawned));
  } else {
    exec(std::move(request), std::move(spawned));
  }
}

/// One that is gone by now, or cannot be told, ends; the agent machine hears that too.
void WorkerGroup::place(LocalRank local_rank) {
  Worker* const worker = find(local_rank);
  const WorkerFiles& files = start_.output->files(local_rank);
  NewPlace place;
  const auto add = [&place](const std::string& variable) {
    const std::size_t equals = variable.find('=');
    place.variables[variable.substr(0, equals)] = variable.substr(equals + 1);
  };
  for (const auto& line : environment_->own(start_.placement, local_rank, files.error_file)) add(line);
  for (const auto& line : start_.variables) add(line);
  if (!worker || !worker->say(place)) return listener_.tell(WorkerNotStarted{local_rank});
  worker->move_to(Rank{start_.placement.first_rank.value() + local_rank.value()});
  error_files_.at(static_cast<std::size_t>(local_rank.value())) = files.error_file;
  listener_.record(event::WorkerKept{worker->id(), files.stdout_log, files.stderr_log});
  listener_.tell(WorkerStarted{local_rank, worker->pid()});
  if (template_ && next_ == config_.local_world_size && orders_ == 0 && !cancelled_) template_->attempt_runs();
}

/// A worker that is forked brings its channel along; one that is executed gets it here, or does without.
void WorkerGroup::exec(ChildRequest request, Spawner::Handler handler) {
  const auto ours = std::make_shared<UniqueFd>();  // shared, because a std::function must be copyable
  if (request.page >= 0) {
    if (auto pair = make_channel_pair()) {
      *ours = std::move(pair->ours);
      request.channel = std::move(pair->theirs);
      request.channel_address = {channel_descriptor, pair->inode, 0};
    }
  }
  spawner_.start(std::move(request), [ours, handler = std::move(handler)](Result<ChildProcess> child) {
    if (child) child->channel = std::move(*ours);
    handler(std::move(child));
  });
}

void WorkerGroup::on_spawned(Order& order, Result<ChildProcess> child) {
  const LocalRank local_rank = order.worker.local_rank;
  --orders_;
  const std::set<int> missed = orders_ > 0 ? for_started_ : std::exchange(for_started_, {});
  order_workers();
  if (template_ && orders_ == 0 && !cancelled_) template_->attempt_runs();
  if (!child) {
    const Error& error = child.error();
    if (error.code.value() == ECANCELED) return listener_.tell(WorkerNotStarted{local_rank});
    return listener_.tell(SpawnFailed{local_rank, error.message(), is_permanent(error), failed_at_us()});
  }
  if (drain_ && order.page) order.page->request_drain();
  if (!child->outside_cgroup.empty() && !std::exchange(cgroup_refused_, true)) {
    listener_.record(
        event::Warning{fmt::format("workers run outside the cgroup that was made for them ({}); what they leave behind "
                                   "is found by parentage alone",
                                   child->outside_cgroup)});
  }
  const WorkerId id{order.worker.rank, local_rank, child->pid};
  auto& place = workers_.at(static_cast<std::size_t>(local_rank.value()));
  place = std::make_unique<Worker>(loop_, id, std::move(*child), std::move(order.page), worker_listener(local_rank));
  // It may have run for a while before we hear of it here.
  for (const int number : missed) static_cast<void>(place->signal(number));
  listener_.record(event::WorkerStarted{id, std::move(order.stdout_log), std::move(order.stderr_log)});
  listener_.tell(WorkerStarted{local_rank, id.pid});
}

Worker::Listener WorkerGroup::worker_listener(LocalRank local_rank) {
  Worker::Listener listener;
  listener.ended = [this, local_rank](int exit_code) {
    const auto worker = std::move(workers_.at(static_cast<std::size_t>(local_rank.value())));
    listener_.ended(worker->id(), exit_code, worker->remains(exit_code));
    if (reaped_) reaped_();
  };
  listener.channel.heard = [this, local_rank](WorkerWord word) {
    if (const auto* looked = std::get_if<WorkerLooked>(&word)) {
      if (listener_.looked) listener_.looked(local_rank, *looked);
      return;
    }
    const auto progress = find(local_rank)->progress();
    listener_.tell(WorkerSaid{local_rank, std::move(word), progress ? progress->beats : 0});
  };
  listener.channel.ended = [this, local_rank](const ChannelEnd& how) {
    const WorkerId& id = find(local_rank)->id();
    if (!how.reason.empty()) {
      listener_.record(event::Warning{
          fmt::format("the channel of rank {} (pid {}) is closed: {}", id.rank.value(), id.pid, how.reason)});
    }
    listener_.tell(WorkerSaid{.local_rank = local_rank, .word = WorkerLeaves{}, .deaf = how.deaf});
  };
  return listener;
}

void WorkerGroup::cancel_starts() {
  const bool starting = next_ < config_.local_world_size || orders_ > 0;
  cancelled_ = true;
  order_workers();
  if (template_ && starting) template_->attempt_cancelled();
}

void WorkerGroup::signal(std::span<const LocalRank> workers, int number, bool ends) {
  for (const LocalRank local_rank : workers) {
    Worker* const worker = find(local_rank);
    if (!worker) continue;
    if (!worker->signal(number)) {
      listener_.record(
          event::Warning{fmt::format("rank {} (pid {}) runs as another user, whom we may not signal; started by sudo?",
                                     worker->id().rank.value(), worker->pid())});
    }
    if (ends) static_cast<void>(worker->signal(SIGCONT));
  }
}

void WorkerGroup::signal_all(int number) {
  for (const auto& worker : workers_) {
    if (worker) static_cast<void>(worker->signal(number));
  }
  if (orders_ > 0) for_started_.insert(number);
}

bool WorkerGroup::signal_process(LocalRank local_rank, std::int64_t pid, int number) {
  Worker* const worker = find(local_rank);
  return worker && worker->pid() == pid && ::kill(-worker->pid(), number) == 0;
}

void WorkerGroup::drain(int number, bool insist) {
  drain_ = true;
  for (const auto& worker : workers_) {
    if (worker) worker->drain(number, insist);
  }
}

void WorkerGroup::end_round(const EndRound& action) {
  for (const LocalRank local_rank : action.workers) {
    if (Worker* const worker = find(local_rank)) static_cast<void>(worker->say(RoundOver{action.reason}));
  }
}

void WorkerGroup::blame(LocalRank local_rank) {
  if (Worker* const worker = find(local_rank)) static_cast<void>(worker->say(OwnFault{}));
}

void WorkerGroup::abort(std::span<const LocalRank> workers) {
  for (const LocalRank local_rank : workers) {
    if (const Worker* const worker = find(local_rank)) worker->abort();
  }
}

void WorkerGroup::kill(std::span<const LocalRank> workers) { signal(workers, SIGKILL, false); }

std::vector<LivingWorker> WorkerGroup::living() const {
  std::vector<LivingWorker> list;
  for (const auto& worker : workers_) {
    if (worker) list.push_back({worker->id().rank, worker->id().local_rank, worker->pid(), worker->progress()});
  }
  return list;
}

std::vector<pid_t> WorkerGroup::forked() const {
  std::vector<pid_t> pids;
  for (const auto& worker : workers_) {
    if (template_ && worker) pids.push_back(worker->pid());
  }
  return pids;
}

std::vector<RaisedWorker> WorkerGroup::raised() const {
  std::vector<RaisedWorker> list;
  for (const auto& worker : workers_) {
    const auto hook = worker ? worker->hook() : std::nullopt;
    const auto raised_at_ns = hook ? raised_for_good(hook->raised_at_ns, worker->progress()) : std::nullopt;
    if (raised_at_ns) list.push_back({worker->id().local_rank, worker->pid(), *raised_at_ns});
  }
  return list;
}

std::vector<StepSample> WorkerGroup::steps() const {
  std::vector<StepSample> list;
  for (const auto& worker : workers_) {
    if (!worker) continue;
    StepSample& sample = list.emplace_back();
    sample.rank = worker->id().rank;
    sample.local_rank = worker->id().local_rank;
    sample.progress = worker->progress();
    sample.opened = worker->opened_page();
    sample.signs = signs_of(sample.local_rank, sample.progress, worker->hook());
  }
  return list;
}

std::vector<StateSample> WorkerGroup::states() const {
  std::vector<StateSample> list;
  for (const auto& worker : workers_) {
    if (worker) list.push_back({worker->id(), state_letter(worker->pid())});
  }
  return list;
}

std::vector<LookedAt> WorkerGroup::looked_at() {
  std::vector<LookedAt> list;
  for (const auto& worker : workers_) {
    if (!worker) continue;
    const WorkerId& id = worker->id();
    LookedAt& looked = list.emplace_back();
    looked.rank = id.rank;
    looked.local_rank = id.local_rank;
    looked.pid = worker->pid();
    looked.page = worker->page();
    looked.error_file = error_files_.at(static_cast<std::size_t>(id.local_rank.value()));
    looked.ask = [this, local_rank = id.local_rank, pid = worker->pid()](const LookWanted& question) {
      Worker* const asked = find(local_rank);
      if (asked && asked->pid() == pid) static_cast<void>(asked->say(question));
    };
  }
  return list;
}

std::optional<LocalRank> WorkerGroup::owner_of(pid_t pid) const {
  for (const pid_t ancestor : ancestry(pid)) {
    for (const auto& worker : workers_) {
      if (worker && worker->pid() == ancestor) return worker->id().local_rank;
    }
  }
  return std::nullopt;
}

}  // namespace torchup

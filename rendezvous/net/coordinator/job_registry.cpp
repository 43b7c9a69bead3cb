#include "rendezvous/net/coordinator/job_registry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <utility>

#include "rendezvous/core/membership/job_codec.hpp"
#include "rendezvous/net/coordinator/job_keeper.hpp"
#include "rendezvous/net/coordinator/state_directory.hpp"

namespace torchup {

static_assert(state_bytes_max >= 2 * told_bytes_max);  // or a job might be written that is not read

JobRegistry::JobRegistry(boost::asio::io_context& loop, LogSink log, RendezvousSettings settings, LastingClock clock,
                         Perform perform)
    : loop_{loop}, log_{std::move(log)}, settings_{settings}, clock_{std::move(clock)}, perform_{std::move(perform)} {}

// ---- how jobs begin

std::shared_ptr<CoordinatorJob> JobRegistry::find(const RunId& run_id) const {
  const auto found = jobs_.find(run_id);
  return found == jobs_.end() ? nullptr : found->second;
}

std::shared_ptr<CoordinatorJob> JobRegistry::begin(const RunId& run_id) {
  forget_old();
  if (jobs_.size() >= jobs_max && !make_room()) return nullptr;
  auto made = add(run_id, Rendezvous{settings_});
  keep(*made);
  return made;
}

std::shared_ptr<CoordinatorJob> JobRegistry::add(const RunId& run_id, Rendezvous machine) {
  auto made = std::make_shared<Job>(loop_, run_id, std::move(machine), sink());
  made->age = next_age_++;
  jobs_.emplace(run_id, made);
  return made;
}

// ---- which give way

/// Of the jobs to which nobody is connected, the one that would be forgotten first makes room for a new one; where
/// there is none, the oldest of those that nobody has joined.
bool JobRegistry::make_room() {
  auto first = next_forgotten();
  if (first == jobs_.end()) first = oldest_without_members();
  if (first == jobs_.end()) return false;
  const auto gone = first->second;
  forget(*gone);
  gone->let_go_of_all("jobs_max: its job made room for another before it joined");
  return true;
}

JobRegistry::Jobs::iterator JobRegistry::next_forgotten() {
  auto first = jobs_.end();
  for (auto entry = jobs_.begin(); entry != jobs_.end(); ++entry) {
    const Job& job = *entry->second;
    if (!job.alone() || job.mixed.active() || !job.rendezvous.forget_at()) continue;
    if (first == jobs_.end() || job.rendezvous.forget_at() < first->second->rendezvous.forget_at()) first = entry;
  }
  return first;
}

JobRegistry::Jobs::iterator JobRegistry::oldest_without_members() {
  auto oldest = jobs_.end();
  for (auto entry = jobs_.begin(); entry != jobs_.end(); ++entry) {
    const Job& job = *entry->second;
    if (job.joined() || job.own > 0) continue;
    if (oldest == jobs_.end() || job.age < oldest->second->age) oldest = entry;
  }
  return oldest;
}

// ---- how they are forgotten

void JobRegistry::forget(const Job& job) {
  const auto found = jobs_.find(job.run_id);
  if (found == jobs_.end() || found->second.get() != &job) return;
  const auto gone = found->second;
  end(*gone);
  jobs_.erase(found);
}

void JobRegistry::end(Job& job) {
  if (job.keeper) std::exchange(job.keeper, {})->forget();
  told_bytes_ -= std::exchange(job.counted_bytes, 0);
}

void JobRegistry::count(Job& job) {
  if (find(job.run_id).get() != &job) return;
  const std::size_t bytes = job.held_bytes();
  told_bytes_ += bytes - std::exchange(job.counted_bytes, bytes);
}

void JobRegistry::forget_if_over(Job& job) {
  if (!job.alone() || !job.waiters.empty() || job.mixed.active()) return;
  if (job.rendezvous.forgettable(clock_())) forget(job);
}

void JobRegistry::forget_old() {
  const TimePoint now = clock_();
  std::erase_if(jobs_, [&](const auto& entry) {
    Job& job = *entry.second;
    const bool over = job.mixed.active() ? job.mixed.member_count() == 0 : job.rendezvous.forgettable(now);
    const bool goes = job.alone() && over;
    if (goes) end(job);
    return goes;
  });
}

// ---- what is kept on disk

Result<std::vector<std::shared_ptr<CoordinatorJob>>> JobRegistry::restore(StateDirectory& directory) {
  auto files = directory.read();
  if (!files) return files.error();
  std::vector<std::pair<std::uint64_t, SavedJob>> saved;
  for (const StateDirectory::File& file : *files) {
    auto job = decode_job(file.content);
    if (!job) {
      return Error{job.error().code, file.path + ": " + job.error().context +
                                         "; move the file away: then the agents of that job tell what they know of it"};
    }
    saved.emplace_back(file.number, std::move(*job));
  }
  state_ = &directory;
  if (!saved.empty()) next_file_ = saved.back().first + 1;
  std::vector<std::shared_ptr<Job>> restored;
  std::reverse(saved.begin(), saved.end());
  for (auto& [number, job] : saved) {
    if (find(job.run_id)) {
      find(job.run_id)
          ->log(LogLevel::warning, "state",
                fmt::format("file {} in {} is of an earlier job of this run id: removed", number, directory.path()));
      directory.remove(number);
      continue;
    }
    auto made = add(job.run_id, Rendezvous{settings_, job.snapshot, clock_()});
    made->restored();
    keep(*made, number, true);
    count(*made);
    restored.push_back(std::move(made));
  }
  return restored;
}

std::vector<std::shared_ptr<CoordinatorJob>> JobRegistry::restore(JobArchive& archive, std::vector<Found> found,
                                                                  const std::optional<Takeover>& takeover) {
  state_ = &archive;
  std::vector<std::shared_ptr<Job>> restored;
  for (Found& each : found) {
    auto made = add(each.run_id, Rendezvous{settings_, each.snapshot, clock_(), takeover});
    made->restored();
    keep(*made, next_file_++, true);
    count(*made);
    restored.push_back(std::move(made));
  }
  return restored;
}

void JobRegistry::let_go_of_jobs() {
  for (auto& [run_id, job] : std::exchange(jobs_, {})) {
    job->let_go();
    told_bytes_ -= std::exchange(job->counted_bytes, 0);
  }
  state_ = nullptr;
}

void JobRegistry::keep(Job& job) {
  if (state_ && !job.keeper) keep(job, next_file_++, false);
}

void JobRegistry::keep(Job& job, std::uint64_t number, bool on_disk) {
  job.keeper = std::make_shared<JobKeeper>(
      loop_, *state_, number, on_disk, job.run_id, job.rendezvous, clock_,
      [this, &job](std::vector<RendezvousAction> actions) { perform_(job, std::move(actions)); },
      [&job](const std::string& line) { job.log(LogLevel::warning, "state", line); });
}

void JobRegistry::let_go_of_state(void (JobKeeper::*last_call)()) {
  for (const auto& [id, job] : jobs_) {
    if (job->keeper) (*std::exchange(job->keeper, {}).*last_call)();
  }
  state_ = nullptr;
  log_ = {};  // agents that we leave have not ended, though it looks so from here
}

LogSink JobRegistry::sink() {
  return [this](LogLine line) {
    if (log_) log_(std::move(line));
  };
}

}  // namespace torchup

#include "launcher/core/record/hook_queue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace torchup {
namespace {

constexpr std::string_view own_failure = "hook_failed";
constexpr std::string_view end_of_job = "job_ended";

struct ConcernsJob {
  bool operator()(const event::JobStarted&) const { return true; }
  bool operator()(const event::Waiting& e) const { return !e.of_link; }
  bool operator()(const event::RoundCompleted&) const { return true; }
  bool operator()(const event::Restarting&) const { return true; }
  bool operator()(const event::MembershipChanged&) const { return true; }
  bool operator()(const event::HangFound&) const { return true; }
  bool operator()(const event::HangOver&) const { return true; }
  bool operator()(const event::RanksShown&) const { return true; }
  bool operator()(const event::StragglerFound&) const { return true; }
  bool operator()(const event::StragglerOver&) const { return true; }
  bool operator()(const event::TimeEnds&) const { return true; }
  bool operator()(const event::RehearsalEnded&) const { return true; }
  bool operator()(const event::JobEnded&) const { return true; }
  template <class Other>
  bool operator()(const Other&) const {
    return false;
  }
};

}  // namespace

bool concerns_job(const EventBody& event) { return std::visit(ConcernsJob{}, event); }

JobTeller job_teller(const LaunchConfig& config) {
  if (config.one_node()) return JobTeller::here;
  if (const auto index = config.node_rank()) return *index == 0 ? JobTeller::here : JobTeller::elsewhere;
  if (config.rendezvous.is_host == false) return JobTeller::elsewhere;
  return JobTeller::unknown;
}

std::vector<hook::Action> HookQueue::step(const hook::Event& event, TimePoint now) {
  now_ = now;
  std::visit([this](const auto& what) { on(what); }, event);
  due();
  return std::exchange(actions_, {});
}

std::optional<TimePoint> HookQueue::deadline() const {
  if (!running_) return std::nullopt;
  return job_ends_ ? std::min(*job_ends_, running_->until) : running_->until;
}

void HookQueue::on(const hook::Happened& event) {
  if (event.name == own_failure || std::ranges::find(kinds_, event.name) == kinds_.end()) return;
  if (event.of_job && teller_ == JobTeller::elsewhere) return;
  if (!event.of_job || teller_ == JobTeller::here) return queue({event.name, event.line});
  if (undecided_.size() < hook_waiting_max) undecided_.push_back({event.name, event.line});
}

/// A place says more: group rank 0 may be another's.
void HookQueue::on(const hook::Hosts&) {
  if (teller_ == JobTeller::unknown) know(JobTeller::here);
}

void HookQueue::know(JobTeller teller) {
  teller_ = teller;
  std::deque<hook::Start> kept = std::exchange(undecided_, {});
  if (teller_ != JobTeller::here) return;
  for (hook::Start& event : kept) queue(std::move(event));
}

void HookQueue::queue(hook::Start event) {
  if (waiting_.size() < hook_waiting_max) {
    overflow_told_ = false;
    waiting_.push_back(std::move(event));
  } else if (!std::exchange(overflow_told_, true)) {
    fail(fmt::format("it is not told of {} and what follows: {} events wait for it", event.name, hook_waiting_max));
  }
}

void HookQueue::on(const hook::Ended& event) {
  if (!running_) return;
  if (!event.problem.empty()) fail(fmt::format("told of {}: {}", running_->name, event.problem));
  running_.reset();
}

void HookQueue::on(const hook::JobEnds&) {
  job_ends_ = now_ + hook_farewell;
  for (hook::Start& event : std::exchange(undecided_, {})) {
    if (event.name == end_of_job) queue(std::move(event));
  }
}

void HookQueue::due() {
  if (job_ends_ && now_ >= *job_ends_) {
    if (running_) {
      fail(fmt::format("told of {}: it has not ended 5 s after the job, and was killed", running_->name));
      actions_.push_back(hook::Kill{});
    }
    if (!waiting_.empty()) fail(fmt::format("it was not told of {} events: the job is over", waiting_.size()));
    running_.reset();
    waiting_.clear();
  }
  if (running_ && now_ >= running_->until) {
    fail(fmt::format("told of {}: it has not ended within 10 s, and was killed", running_->name));
    actions_.push_back(hook::Kill{});
    running_.reset();
  }
  if (running_ || waiting_.empty()) return;
  running_ = Running{waiting_.front().name, now_ + hook_limit};
  actions_.push_back(std::move(waiting_.front()));
  waiting_.pop_front();
}

}  // namespace torchup

#include "rendezvous/core/membership/ended_jobs.hpp"

#include <algorithm>
#include <charconv>

#include "rendezvous/core/link/message_bytes.hpp"

namespace torchup {

namespace {

/// Where the number of the life begins behind "_"; npos: nowhere.
std::size_t life_at(const std::string& id) {
  const auto from = id.find_last_not_of("0123456789");
  return from == std::string::npos || id[from] != '_' || from + 1 == id.size() ? std::string::npos : from + 1;
}

/// An ended job's entry for one of its agents.
std::size_t agent_bytes(const std::string& agent) {
  constexpr std::size_t entry_bytes = 96;
  return entry_bytes + text_bytes(agent);
}

}  // namespace

std::string agent_name(const NodeId& node) {
  const auto at = life_at(node.value());
  return at == std::string::npos ? node.value() : node.value().substr(0, at - 1);
}

int agent_life(const NodeId& node) {
  const std::string& id = node.value();
  const auto at = life_at(id);
  int life = 0;
  if (at != std::string::npos) std::from_chars(id.data() + at, id.data() + id.size(), life);
  return life;
}

void LostAgents::add(const NodeId& node) {
  names_.push_back(agent_name(node));
  held_bytes_ += sizeof(std::string) + text_bytes(names_.back());
  if (names_.size() <= lost_agents_max) return;
  held_bytes_ -= sizeof(std::string) + text_bytes(names_.front());
  names_.pop_front();
}

bool LostAgents::contains(const NodeId& node) const {
  return std::ranges::find(names_, agent_name(node)) != names_.end();
}

std::uint64_t EndedJobs::add(Verdict verdict, Round last_round, std::vector<std::string> agents, TimePoint kept_until) {
  EndedJob& job = jobs_.emplace_back();
  job.number = next_number_++;
  job.verdict = std::move(verdict);
  job.last_round = last_round;
  job.kept_until = kept_until;
  job.agents.insert(agents.begin(), agents.end());
  for (const std::string& agent : job.agents) job.agents_bytes += agent_bytes(agent);
  const std::uint64_t number = job.number;
  if (jobs_.size() > ended_jobs_max) jobs_.erase(jobs_.begin());
  return number;
}

const EndedJobs::EndedJob* EndedJobs::find(const NodeId& node, std::optional<Round> round, TimePoint now) {
  std::erase_if(jobs_, [&](const EndedJob& job) { return job.kept_until <= now; });
  auto found = std::ranges::find_if(jobs_, [&](const EndedJob& job) { return job.agents.contains(agent_name(node)); });
  if (found == jobs_.end() && round) {
    found = std::ranges::find_if(jobs_, [&](const EndedJob& job) { return *round <= job.last_round; });
  }
  return found == jobs_.end() ? nullptr : &*found;
}

EndedJobs::EndedJob* EndedJobs::find(std::uint64_t number) {
  const auto found =
      std::find_if(jobs_.begin(), jobs_.end(), [&](const EndedJob& job) { return job.number == number; });
  return found == jobs_.end() ? nullptr : &*found;
}

void EndedJobs::reuse(const NodeId& node) {
  const std::string name = agent_name(node);
  for (EndedJob& job : jobs_) job.agents_bytes -= job.agents.erase(name) * agent_bytes(name);
}

std::size_t EndedJobs::held_bytes() const {
  std::size_t bytes = 0;
  for (const EndedJob& job : jobs_) bytes += torchup::held_bytes(job.verdict) + job.agents_bytes;
  return bytes;
}

TimePoint EndedJobs::kept_until() const { return jobs_.empty() ? TimePoint::min() : jobs_.back().kept_until; }

std::vector<JobSnapshot::Ended> EndedJobs::save(TimePoint now) const {
  std::vector<JobSnapshot::Ended> list;
  for (const EndedJob& job : jobs_) {
    if (job.kept_until <= now) continue;
    JobSnapshot::Ended& one = list.emplace_back();
    one = {job.verdict, job.last_round, {job.agents.begin(), job.agents.end()}, job.kept_until - now};
    std::sort(one.agents.begin(), one.agents.end());
  }
  return list;
}

void EndedJobs::restore(const std::vector<JobSnapshot::Ended>& saved, TimePoint now) {
  for (const JobSnapshot::Ended& each : saved) add(each.verdict, each.last_round, each.agents, now + each.kept);
}

}  // namespace torchup

#include "launcher/ctl/job_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "launcher/ctl/values.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

std::string candidate(const SeenJob& job) {
  return job.pid ? fmt::format("{} (pid {})", printable_start(job.run_id), *job.pid) : printable_start(job.run_id);
}

bool same_job(const SeenJob& left, const SeenJob& right) {
  if (left.run_id != right.run_id) return false;
  // A daemon is nobody's: its jobs are those of all users. Whoever else has a launcher here has a job of his own.
  if (left.pid.has_value() == right.pid.has_value() && left.owner != right.owner) return false;
  const std::string begin = begin_of(left.row), other = begin_of(right.row);
  if (!begin.empty() && !other.empty() && begin != other) return false;
  return !(left.of_one_node() && right.of_one_node() && left.pid && right.pid && left.pid != right.pid);
}

/// The only one, however many tell of it; a launcher rather than a daemon.
std::variant<const SeenJob*, NoChoice> only(const std::vector<const SeenJob*>& found, std::string_view word) {
  // Each with each: one that does not say when its job began may be of any of them.
  const bool one = std::ranges::all_of(found, [&](const SeenJob* job) {
    return std::ranges::all_of(found, [&](const SeenJob* other) { return same_job(*job, *other); });
  });
  if (one) {
    return *std::ranges::max_element(found, {}, [](const SeenJob* job) {
      return std::pair{job->pid.has_value(), !begin_of(job->row).empty()};
    });
  }
  NoChoice none{word.empty() ? "there are several jobs; name one:"
                             : fmt::format("'{}' may be:", printable_start(word))};
  for (const SeenJob* job : found) none.candidates.push_back(candidate(*job));
  std::ranges::sort(none.candidates);
  const auto same = std::unique(none.candidates.begin(), none.candidates.end());
  none.candidates.erase(same, none.candidates.end());
  return none;
}

std::optional<std::int64_t> as_pid(std::string_view word) {
  std::int64_t pid = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), pid);
  const bool whole = error == std::errc{} && end == word.data() + word.size() && pid > 0;
  return whole ? std::optional{pid} : std::nullopt;
}

}  // namespace

bool SeenJob::of_one_node() const { return integer_in(row, "max_nodes") == 1; }

std::string begin_of(const json& row) {
  return text_in(row, "phase") == "ended" ? std::string{} : text_in(row, "started");
}

bool is_named_whole(const SeenJob& job, std::string_view word) {
  return job.run_id == word || (job.pid && job.pid == as_pid(word));
}

std::vector<SeenJob> seen_jobs(std::size_t door, const json& answer, std::optional<uid_t> owner) {
  std::vector<SeenJob> jobs;
  const json* const rows = member(answer, "jobs");
  if (!rows || !rows->is_array()) return jobs;
  for (const json& row : *rows) {
    std::string run_id = text_in(row, "run_id");
    if (!run_id.empty()) jobs.push_back({door, std::move(run_id), integer_in(row, "pid"), row, owner});
  }
  return jobs;
}

std::variant<const SeenJob*, NoChoice> choose_job(std::span<const SeenJob> jobs, std::string_view word) {
  const auto that = [&](const auto& fits) {
    std::vector<const SeenJob*> found;
    for (const SeenJob& job : jobs) {
      if (fits(job)) found.push_back(&job);
    }
    return found;
  };
  auto found = that([&](const SeenJob& job) { return job.run_id == word; });
  if (!found.empty()) return only(found, word);
  if (const auto pid = as_pid(word)) {
    found = that([&](const SeenJob& job) { return job.pid == pid; });
    if (!found.empty()) return only(found, word);
  }
  found = that([&](const SeenJob& job) { return job.run_id.starts_with(word); });
  if (!found.empty()) return only(found, word);
  if (word.empty()) return NoChoice{"no job runs here", {}, true};
  return NoChoice{fmt::format("there is no job '{}'", printable_start(word)), {}, true};
}

}  // namespace torchup

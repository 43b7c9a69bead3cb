#include "launcher/core/scheduler/slurm_job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <vector>

#include "launcher/core/scheduler/told_words.hpp"
#include "launcher/core/text/text.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

constexpr std::int64_t ids_max = 4294967295;
constexpr std::int64_t days_max = std::chrono::duration_cast<std::chrono::hours>(duration_max).count() / 24;

/// A number of digits alone.
std::optional<std::int64_t> digits(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = code == std::errc{} && end == text.data() + text.size();
  return whole && text.front() != '-' ? std::optional{number} : std::nullopt;
}

/// `1-02:03:04`, `2:03:04`, `3:04`.
std::optional<Duration> slurm_time(std::string_view text) {
  const auto dash = text.find('-');
  const auto days = dash == std::string_view::npos ? std::optional<std::int64_t>{0} : digits(text.substr(0, dash));
  if (!days || *days > days_max) return std::nullopt;
  const auto fields = split(dash == std::string_view::npos ? text : text.substr(dash + 1), ':');
  if (fields.size() < 2 || fields.size() > 3 || (dash != std::string_view::npos && fields.size() != 3)) {
    return std::nullopt;
  }
  std::int64_t seconds = 0;
  for (const std::string_view field : fields) {
    const auto number = digits(field);
    if (!number || *number > 59) return std::nullopt;
    seconds = seconds * 60 + *number;
  }
  const Duration time = std::chrono::seconds{*days * 86'400 + seconds};
  return time <= duration_max ? std::optional{time} : std::nullopt;
}

/// The value behind `name=`, the same wherever it stands; nothing where there is none, or are several.
std::optional<std::string_view> field(std::string_view text, std::string_view name) {
  std::optional<std::string_view> found;
  for (std::size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    const bool begins = at == 0 || text[at - 1] == ' ' || text[at - 1] == '\n';
    if (!begins) continue;
    const std::string_view rest = text.substr(at + name.size());
    const std::string_view value = rest.substr(0, rest.find_first_of(" \n"));
    if (found && *found != value) return std::nullopt;
    found = value;
  }
  return found;
}

}  // namespace

Result<std::optional<SlurmJob>> slurm_job(const VariableLookup& variable) {
  const SchedulerFacts facts{variable, {}, {}};
  const scheduler::ToldWords words{facts};
  const auto own = words.number("SLURM_JOB_ID", 1, ids_max);
  const auto first = words.number("SLURM_JOB_ID_HET_GROUP_0", 1, ids_max);
  const auto array = words.number("SLURM_ARRAY_JOB_ID", 1, ids_max);
  const auto task = words.number("SLURM_ARRAY_TASK_ID", 0, ids_max);
  const auto restarts = words.number("SLURM_RESTART_COUNT", 0, requeues_max);
  for (const auto* const number : {&own, &first, &array, &task, &restarts}) {
    if (!*number) return number->error();
  }
  if (!*own) return std::optional<SlurmJob>{};
  SlurmJob job{fmt::format("{}", (*first).value_or(**own)), static_cast<int>((*restarts).value_or(0))};
  if (*array && *task) job.id = fmt::format("{}_{}", **array, **task);
  return std::optional{std::move(job)};
}

Result<std::optional<Duration>> read_time_left(std::string_view text) {
  const Error unclear = fail(errc::bad_value, fmt::format("squeue says '{}'", printable_start(stripped(text))));
  if (text.size() > slurm_answer_bytes_max) return unclear;
  std::optional<Duration> least;
  std::size_t lines = 0;
  for (const std::string_view line : split(text, '\n')) {
    const std::string_view word = stripped(line);
    if (word.empty()) continue;
    ++lines;
    if (word == "UNLIMITED") continue;
    const auto left = slurm_time(word);
    if (!left) return unclear;
    least = least ? std::min(*least, *left) : *left;
  }
  if (lines == 0) return unclear;
  return least;
}

Result<SlurmJobState> read_job_state(std::string_view text) {
  const auto state = field(text, "JobState=");
  if (!state || state->empty() || text.size() > slurm_answer_bytes_max) {
    return fail(errc::bad_value, "scontrol does not say clearly in which state the job is");
  }
  const auto preempted = field(text, "PreemptTime=");
  const bool none = !preempted || *preempted == "None" || *preempted == "N/A" || *preempted == "Unknown";
  return SlurmJobState{printable_start(*state), !none && !preempted->empty()};
}

std::string why_no_requeue(const RequeueConfig& requeue, const SlurmJobState& job, bool saved) {
  if (job.state != "RUNNING") return fmt::format("Slurm says that it is {}", job.state);
  if (!saved && !job.preempted) return "SIGTERM has ended it, and Slurm shows no preemption";
  if (requeue.restarts < requeue.most) return "";
  return fmt::format("it has come back {} times, and --requeue={}", requeue.restarts, requeue.most);
}

}  // namespace torchup

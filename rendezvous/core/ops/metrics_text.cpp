#include "rendezvous/core/ops/metrics_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "rendezvous/core/ops/metric_table.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

consteval const Metric& metric(std::string_view name) {
  return *std::ranges::find(metric_table, name, &Metric::name);  // behind the end is no constant
}

std::string_view type_text(MetricType type) {
  switch (type) {
    case MetricType::gauge:
      return "gauge";
    case MetricType::counter:
      return "counter";
    case MetricType::histogram:
      return "histogram";
  }
  return "untyped";
}

std::string value_text(double value) { return std::isfinite(value) ? fmt::format("{}", value) : std::string{"NaN"}; }
template <std::integral T>
std::string value_text(T value) {
  return std::to_string(value);
}

/// `run_id="a",state="ready"`, of values that are ours.
std::string with(std::string_view labels, std::string_view name, std::string_view value) {
  return fmt::format("{}{}{}=\"{}\"", labels, labels.empty() ? "" : ",", name, value);
}

/// All samples of one metric, which stand together.
class Family {
 public:
  Family(std::string& out, const Metric& metric) : out_{out}, metric_{metric} {}

  template <class T>
  Family& sample(std::string_view labels, T value) {
    head();
    out_ += metric_.name;
    if (!labels.empty()) fmt::format_to(std::back_inserter(out_), "{{{}}}", labels);
    fmt::format_to(std::back_inserter(out_), " {}\n", value_text(value));
    return *this;
  }

  void histogram(const TurnHistogram& turns) {
    head();
    std::uint64_t below = 0;
    for (std::size_t step = 0; step <= TurnHistogram::steps.size(); ++step) {
      below += turns.count(step);
      const std::string_view limit = step < TurnHistogram::steps.size() ? TurnHistogram::steps[step].text : "+Inf";
      fmt::format_to(std::back_inserter(out_), "{}_bucket{{le=\"{}\"}} {}\n", metric_.name, limit, below);
    }
    fmt::format_to(std::back_inserter(out_), "{0}_sum {1}\n{0}_count {2}\n", metric_.name, value_text(turns.sum_s()),
                   below);
  }

 private:
  /// A metric without samples is not told of.
  void head() {
    if (std::exchange(begun_, true)) return;
    fmt::format_to(std::back_inserter(out_), "# HELP {0} {1}\n# TYPE {0} {2}\n", metric_.name, metric_.help,
                   type_text(metric_.type));
  }

  std::string& out_;
  const Metric& metric_;
  bool begun_ = false;
};

template <class T>
void single(std::string& out, const Metric& metric, T value) {
  Family{out, metric}.sample("", value);
}

void store_metrics(std::string& out, const StoreServerStatus& store) {
  single(out, metric("torchup_store_connections"), store.connections);
  single(out, metric("torchup_store_keys"), store.keys);
  single(out, metric("torchup_store_queues"), store.queues);
  single(out, metric("torchup_store_bytes"), store.bytes);
  single(out, metric("torchup_store_waiting"), store.waiting);
  single(out, metric("torchup_store_arriving_bytes"), store.arriving_bytes);
  single(out, metric("torchup_store_unread_bytes"), store.unread_bytes);
  single(out, metric("torchup_store_accepted_total"), store.accepted);
  single(out, metric("torchup_store_refused_total"), store.refused);
  Family requests{out, metric("torchup_store_requests_total")};
  for (const auto& [query, word] : store_operations) {
    requests.sample(with("", "operation", word), store.requests_of[static_cast<std::size_t>(query)]);
  }
}

struct Job {
  const JobNumbers* numbers;
  std::string label;  ///< `run_id="…"`
};

/// Those of which it is told, and how many there are beside them.
std::pair<std::vector<Job>, std::size_t> told_jobs(const std::vector<JobNumbers>& jobs) {
  std::vector<Job> told;
  for (const JobNumbers& job : jobs) {
    if (job.ended_for.value_or(Duration{0}) <= ended_job_told) told.push_back({&job, {}});
  }
  // What has not ended has done so never: before all others.
  const auto ended_for = [](const Job& job) { return job.numbers->ended_for.value_or(Duration{-1}); };
  std::ranges::stable_sort(told, {}, ended_for);
  const std::size_t beyond = told.size() - std::min(told.size(), jobs_told_max);
  told.resize(told.size() - beyond);
  for (Job& job : told) job.label = with("", "run_id", label_text(job.numbers->run_id));
  return {std::move(told), beyond};
}

template <class Value>
void of_each(std::string& out, const Metric& metric, const std::vector<Job>& jobs, Value value) {
  Family family{out, metric};
  for (const Job& job : jobs) family.sample(job.label, std::invoke(value, *job.numbers));
}

void states(std::string& out, const std::vector<Job>& jobs) {
  Family phase{out, metric("torchup_job_phase")};
  for (const Job& job : jobs) phase.sample(with(job.label, "phase", label_text(job.numbers->phase)), 1);
  Family nodes{out, metric("torchup_job_nodes")};
  for (const Job& job : jobs) {
    for (const std::string_view state : node_states) {
      const auto found = job.numbers->nodes.find(state);
      nodes.sample(with(job.label, "state", state), found == job.numbers->nodes.end() ? 0 : found->second);
    }
  }
  Family ranks{out, metric("torchup_job_ranks")};
  for (const Job& job : jobs) {
    for (std::size_t state = 0; state < rank_states.size(); ++state) {
      ranks.sample(with(job.label, "state", rank_states[state].word), job.numbers->ranks[state]);
    }
  }
}

void progress(std::string& out, const std::vector<Job>& jobs) {
  Family step{out, metric("torchup_job_step")};
  for (const Job& job : jobs) {
    if (job.numbers->step) step.sample(job.label, *job.numbers->step);
  }
  Family pace{out, metric("torchup_job_steps_per_second")};
  for (const Job& job : jobs) {
    if (job.numbers->step) pace.sample(job.label, job.numbers->steps_per_second);
  }
  Family age{out, metric("torchup_job_step_age_seconds")};
  for (const Job& job : jobs) {
    if (job.numbers->step) age.sample(job.label, job.numbers->step_age_s);
  }
}

void put_spent(Family& family, std::string_view labels, const TimeLedger& ledger) {
  for (std::size_t part = 0; part < spent_words.size(); ++part) {
    family.sample(with(labels, "spent", spent_words[part]),
                  static_cast<double>(ledger.us(static_cast<Spent>(part))) / 1e6);
  }
}

void job_metrics(std::string& out, const std::vector<Job>& jobs) {
  states(out, jobs);
  of_each(out, metric("torchup_job_world_size"), jobs, &JobNumbers::world_size);
  of_each(out, metric("torchup_job_min_nodes"), jobs, &JobNumbers::min_nodes);
  of_each(out, metric("torchup_job_max_nodes"), jobs, &JobNumbers::max_nodes);
  of_each(out, metric("torchup_job_round"), jobs, &JobNumbers::round);
  of_each(out, metric("torchup_job_restarts_left"), jobs, &JobNumbers::restarts_left);
  progress(out, jobs);
  of_each(out, metric("torchup_job_start_time_seconds"), jobs, &JobNumbers::started_s);
  Family spent{out, metric("torchup_job_rank_seconds")};
  for (const Job& job : jobs) put_spent(spent, job.label, job.numbers->ledger);
  of_each(out, metric("torchup_job_restarts_total"), jobs, &JobNumbers::restarts);
  of_each(out, metric("torchup_job_membership_changes_total"), jobs, &JobNumbers::membership_changes);
  of_each(out, metric("torchup_job_incidents_total"), jobs, &JobNumbers::incidents);
  Family orders{out, metric("torchup_job_orders_total")};
  for (const Job& job : jobs) {
    for (const auto& [verb, count] : job.numbers->orders) {
      orders.sample(with(job.label, "verb", label_text(verb)), count);
    }
  }
}

void late_metrics(std::string& out, const CoordinatorNumbers& coordinator) {
  Family late{out, metric("torchup_worker_late_seconds")};
  for (const auto& [run_id, workers] : coordinator.late_workers) {
    const std::string label = with("", "run_id", label_text(run_id.value()));
    for (std::size_t i = 0; i < std::min(workers.size(), late_workers_told_max); ++i) {
      const LateWorker& worker = workers[i];
      late.sample(with(with(label, "rank", std::to_string(worker.rank.value())), "host", label_text(worker.host)),
                  std::chrono::duration<double>{worker.late}.count());
    }
  }
}

template <class Value>
void of_each(std::string& out, const Metric& metric, const std::vector<WorkerNumbers>& workers,
             const std::vector<std::string>& labels, Value value) {
  Family family{out, metric};
  for (std::size_t i = 0; i < workers.size(); ++i) family.sample(labels[i], std::invoke(value, workers[i]));
}

}  // namespace

std::span<const Metric> all_metrics() { return metric_table; }

std::string label_text(std::string_view value) {
  std::string escaped;
  for (const char c : printable(value)) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string process_metrics(const ProcessNumbers& process) {
  std::string out;
  Family{out, metric("torchup_build_info")}.sample(with("", "version", label_text(process.version)), 1);
  single(out, metric("process_cpu_seconds_total"), process.cpu_s);
  single(out, metric("process_resident_memory_bytes"), process.resident_bytes);
  single(out, metric("process_open_fds"), process.open_fds);
  single(out, metric("process_max_fds"), process.max_fds);
  single(out, metric("process_start_time_seconds"), process.started_s);
  return out;
}

std::string coordinator_metrics(const CoordinatorNumbers& coordinator) {
  std::string out;
  store_metrics(out, coordinator.store);
  Family{out, metric("torchup_loop_turn_seconds")}.histogram(coordinator.turns);
  single(out, metric("torchup_agents"), coordinator.agents);
  Family requests{out, metric("torchup_http_requests_total")};
  for (const auto& [code, count] : coordinator.http_requests) {
    requests.sample(with("", "code", std::to_string(code)), count);
  }
  single(out, metric("torchup_event_readers"), coordinator.event_readers);
  single(out, metric("torchup_events_lost_total"), coordinator.events_lost);
  const auto [jobs, beyond] = told_jobs(coordinator.jobs);
  single(out, metric("torchup_jobs_not_shown"), beyond);
  job_metrics(out, jobs);
  late_metrics(out, coordinator);
  return out;
}

std::string agent_metrics(const AgentNumbers& agent) {
  std::string out;
  const std::string job = with("", "run_id", label_text(agent.run_id));
  const std::vector<WorkerNumbers>& workers = agent.workers;
  std::vector<std::string> labels;
  for (const WorkerNumbers& worker : workers) {
    labels.push_back(with(with(job, "rank", std::to_string(worker.rank.value())), "local_rank",
                          std::to_string(worker.local_rank.value())));
  }
  of_each(out, metric("torchup_worker_up"), workers, labels, [](const WorkerNumbers& w) { return w.up ? 1 : 0; });
  Family step{out, metric("torchup_worker_step")};
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (workers[i].step) step.sample(labels[i], *workers[i].step);
  }
  of_each(out, metric("torchup_worker_steps_total"), workers, labels, &WorkerNumbers::steps);
  of_each(out, metric("torchup_worker_waited_seconds_total"), workers, labels, &WorkerNumbers::waited_s);
  of_each(out, metric("torchup_worker_cpu_seconds_total"), workers, labels, &WorkerNumbers::cpu_s);
  of_each(out, metric("torchup_worker_resident_memory_bytes"), workers, labels, &WorkerNumbers::resident_bytes);
  of_each(out, metric("torchup_worker_starts_total"), workers, labels, &WorkerNumbers::starts);
  Family exits{out, metric("torchup_worker_exits_total")};
  for (const auto& [end, count] : agent.exits) exits.sample(with(job, "end", label_text(end)), count);
  Family spent{out, metric("torchup_node_rank_seconds")};
  put_spent(spent, job, agent.ledger);
  Family{out, metric("torchup_log_lost_bytes_total")}.sample(job, agent.log_lost_bytes);
  return out;
}

}  // namespace torchup

#pragma once

#include <array>

#include "rendezvous/core/ops/metrics_text.hpp"

/// The names of all metrics, for those who write them: a name that is not here does not compile.
namespace torchup {

inline constexpr std::array metric_table{
    Metric{"torchup_build_info", MetricType::gauge, "version", "The version of torchup, 1."},
    Metric{"process_cpu_seconds_total", MetricType::counter, "", "Processor time of this process, user and system."},
    Metric{"process_resident_memory_bytes", MetricType::gauge, "", "Memory of this process that is in RAM."},
    Metric{"process_open_fds", MetricType::gauge, "", "Descriptors that this process has open."},
    Metric{"process_max_fds", MetricType::gauge, "", "Descriptors that it may have open."},
    Metric{"process_start_time_seconds", MetricType::gauge, "", "When this process began, since 1970."},

    Metric{"torchup_store_connections", MetricType::gauge, "", "TCPStore clients connected now."},
    Metric{"torchup_store_keys", MetricType::gauge, "", "Plain keys in the store."},
    Metric{"torchup_store_queues", MetricType::gauge, "", "Queues in the store."},
    Metric{"torchup_store_bytes", MetricType::gauge, "", "Bytes of keys, values and queue elements."},
    Metric{"torchup_store_waiting", MetricType::gauge, "", "Clients with an open wait or barrier."},
    Metric{"torchup_store_arriving_bytes", MetricType::gauge, "", "Memory held by unfinished requests."},
    Metric{"torchup_store_unread_bytes", MetricType::gauge, "", "Bytes of answers on their way to clients."},
    Metric{"torchup_store_accepted_total", MetricType::counter, "", "Connections accepted."},
    Metric{"torchup_store_refused_total", MetricType::counter, "",
           "Connections closed for what they sent or at a limit."},
    Metric{"torchup_store_requests_total", MetricType::counter, "operation", "Requests served."},
    Metric{"torchup_loop_turn_seconds", MetricType::histogram, "", "How long one turn of the loop kept the others."},
    Metric{"torchup_agents", MetricType::gauge, "", "Agents connected now."},
    Metric{"torchup_http_requests_total", MetricType::counter, "code", "HTTP requests answered."},
    Metric{"torchup_event_readers", MetricType::gauge, "", "Streams of events open now."},
    Metric{"torchup_events_lost_total", MetricType::counter, "",
           "Events that a reader was too slow for, or an agent had too many of."},
    Metric{"torchup_jobs_not_shown", MetricType::gauge, "", "Jobs beyond those of which metrics tell."},
    Metric{"torchup_worker_late_seconds", MetricType::gauge, "run_id,rank,host",
           "How much later than the other workers of its node a worker begins collectives, the median of the last "
           "window."},

    Metric{"torchup_job_phase", MetricType::gauge, "run_id,phase", "The phase that the job is in, 1."},
    Metric{"torchup_job_nodes", MetricType::gauge, "run_id,state", "Nodes in that state."},
    Metric{"torchup_job_ranks", MetricType::gauge, "run_id,state", "Ranks of the round in that state."},
    Metric{"torchup_job_world_size", MetricType::gauge, "run_id", "Ranks of the round; 0 while there is none."},
    Metric{"torchup_job_min_nodes", MetricType::gauge, "run_id", "Nodes without which there is no round."},
    Metric{"torchup_job_max_nodes", MetricType::gauge, "run_id", "Nodes of which a round has no more."},
    Metric{"torchup_job_round", MetricType::gauge, "run_id", "Number of the round."},
    Metric{"torchup_job_restarts_left", MetricType::gauge, "run_id", "Restarts after failures that are left."},
    Metric{"torchup_job_step", MetricType::gauge, "run_id", "The newest step that a rank has ended."},
    Metric{"torchup_job_steps_per_second", MetricType::gauge, "run_id", "Steps in a second, the median of the nodes."},
    Metric{"torchup_job_step_age_seconds", MetricType::gauge, "run_id", "Time since a rank ended its last step."},
    Metric{"torchup_job_start_time_seconds", MetricType::gauge, "run_id", "When the first node came, since 1970."},
    Metric{"torchup_job_rank_seconds", MetricType::gauge, "run_id,spent", "What the time of all ranks was spent on."},
    Metric{"torchup_job_restarts_total", MetricType::counter, "run_id", "Restarts after failures."},
    Metric{"torchup_job_membership_changes_total", MetricType::counter, "run_id",
           "Rounds that ended because a node came or went."},
    Metric{"torchup_job_incidents_total", MetricType::counter, "run_id", "Incidents recorded."},
    Metric{"torchup_job_orders_total", MetricType::counter, "run_id,verb", "Orders accepted."},

    Metric{"torchup_worker_up", MetricType::gauge, "run_id,rank,local_rank", "1 while the worker runs."},
    Metric{"torchup_worker_step", MetricType::gauge, "run_id,rank,local_rank", "The last step that it reported."},
    Metric{"torchup_worker_steps_total", MetricType::counter, "run_id,rank,local_rank", "Steps reported."},
    Metric{"torchup_worker_waited_seconds_total", MetricType::counter, "run_id,rank,local_rank",
           "Time of its steps in which it waited for other ranks."},
    Metric{"torchup_worker_cpu_seconds_total", MetricType::counter, "run_id,rank,local_rank", "Its processor time."},
    Metric{"torchup_worker_resident_memory_bytes", MetricType::gauge, "run_id,rank,local_rank",
           "Its memory that is in RAM."},
    Metric{"torchup_worker_starts_total", MetricType::counter, "run_id,rank,local_rank", "Processes started."},
    Metric{"torchup_worker_exits_total", MetricType::counter, "run_id,end", "Workers of this node that ended so."},
    Metric{"torchup_node_rank_seconds", MetricType::gauge, "run_id,spent",
           "What the time of this node's ranks was spent on."},
    Metric{"torchup_log_lost_bytes_total", MetricType::counter, "run_id",
           "Output of workers that could not be written."},
};

}  // namespace torchup

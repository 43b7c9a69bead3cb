#pragma once

#include <cstdint>
#include <limits>

#include "rendezvous/core/link/agent_codec.hpp"
#include "rendezvous/core/link/wire.hpp"
#include "rendezvous/core/text/source_list.hpp"

/// The fields of every message, in the order of their bytes, with the limits of each (messages.hpp). A decoder that
/// passed them knows all numbers in their ranges, all names short and clean, and parts that fit each other.
namespace torchup::wire {

// Numbers that occur in many places.

void round(auto& a, Round& value) { a.bent_number("a round", value, 0, round_max); }
void group_rank(auto& a, GroupRank& value) { a.number("a group rank", value, 0, nodes_max - 1); }
void rank(auto& a, Rank& value) { a.number("a rank", value, 0, world_size_max - 1); }
void port(auto& a, Port& value) { a.number("a port", value, 1, 65535); }
void exit_code(auto& a, int& value) { a.number("an exit code", value, 0, exit_code_max); }
/// 0: none.
void signal_number(auto& a, int& value) { a.number("a signal", value, 0, signal_max); }
void restart_count(auto& a, int& value) { a.bent_number("the restart count", value, 0, restarts_max); }
void membership_changes(auto& a, int& value) {
  a.bent_number("the count of membership changes", value, 0, membership_changes_max);
}
void failures(auto& a, std::vector<WorkerFailure>& list) { a.list("a list of failures", list, failures_told_max); }
void facts(auto& a, std::vector<Fact>& list) { a.list("a list of facts", list, facts_max); }
/// Rank milliseconds, and steps: beyond any job, and so that sums of all nodes fit.
inline constexpr std::int64_t spent_max = std::int64_t{1} << 46;
inline constexpr std::int64_t milli_steps_max = std::int64_t{1} << 46;
void reason(auto& a, std::string& text) { a.text("a reason", text, text_bytes_max); }

/// A value that is not always there.
template <class T>
void maybe(auto& a, std::optional<T>& value, T placeholder, const auto& walk) {
  bool there = value.has_value();
  a(there);
  if (!there) return value.reset();
  if (!value) value.emplace(std::move(placeholder));
  walk(*value);
}

// Parts.

void fields(auto& a, Fact& m) {
  a.name("a fact", m.name);
  a.name("a fact's value", m.value);
}
void fields(auto& a, HangTimeout& m) {
  a.choice("how hangs are noticed", m.mode, HangTimeout::Mode::given, HangTimeout::Mode::automatic);
  a(m.silence, m.start);
}
void fields(auto& a, ProgressReport& m) {
  a(m.watched, m.progressed, m.ending, m.silence, m.median_gap, m.longest_gap);
}
void fields(auto& a, JobTerms& m) {
  a.number("min nodes", m.min_nodes, 1, nodes_max);
  a.number("max nodes", m.max_nodes, m.min_nodes, nodes_max);
  a.number("the divisor of the number of nodes", m.nodes_multiple_of, 1, m.max_nodes);
  a.number("max restarts", m.max_restarts, 0, restarts_max);
  a(m.restart_window, m.join_timeout, m.last_call, m.lease);
  a.choice("the rank order", m.rank_order, RankOrder::index, RankOrder::unknown);
  a.choice("what is done about differing nodes", m.same_world, SameWorld::fail, SameWorld::warn);
  a.text("a host list", m.hostlist, text_bytes_max);
  a.later(m.hang_timeout);
  a.later_choice("what is done about hangs", m.on_hang, OnHang::restart, OnHang::report);
  a.later(m.straggler_window, m.own_run_id, m.store_proxy);
}
void fields(auto& a, WorkerFailure& m) {
  rank(a, m.rank);
  a.number("a local rank", m.local_rank, 0, local_workers_max - 1);
  a.bent_number("a worker's exit code", m.exit_code, -signal_max, exit_code_max);
  a.bent_number("a process id", m.pid, std::int64_t{0}, pid_max);
  a.name("a host", m.host);
  a.bent_number("a time", m.time_us, std::int64_t{0}, time_us_max);
  a.text("a failure's message", m.message, message_bytes_max);
  a.text("an error file's path", m.error_file, path_bytes_max);
  a.later(m.consequence);
}
void fields(auto& a, Placement& m) {
  round(a, m.round);
  group_rank(a, m.group_rank);
  a.number("the group world size", m.group_world_size, m.group_rank.value() + 1, nodes_max);
  rank(a, m.first_rank);
  a.number("the world size", m.world_size, m.first_rank.value() + 1, world_size_max);
  rank(a, m.first_role_rank);
  a.number("the role world size", m.role_world_size, m.first_role_rank.value() + 1, m.world_size);
  a.name("the master address", m.master_addr);
  port(a, m.master_port);
  restart_count(a, m.restart_count);
  membership_changes(a, m.membership_changes);
  a.require(m.group_world_size <= m.world_size, "a round has more nodes than workers");
  a.later(m.store_key);
}
void fields(auto& a, Verdict& m) {
  exit_code(a, m.exit_code);
  reason(a, m.reason);
  failures(a, m.failures);
  signal_number(a, m.stop_signal);
  a(m.kill_now);
  a.later(m.time_ends);
  a.later_text("who has the report", m.reporter, name_bytes_max);
  a.later(m.save);
}

// Agent to coordinator.

void fields(auto& a, Join& m) {
  a.name("a node id", m.node);
  a.name("a host", m.host);
  a.list("a node's addresses", m.addresses, addresses_max, [&a](std::string& text) { a.name("an address", text); });
  a(m.address_demanded);
  a.number("the local world size", m.local_world_size, 1, local_workers_max);
  a.name("a role", m.role);
  maybe(a, m.group_rank, GroupRank{0}, [&a](GroupRank& value) { group_rank(a, value); });
  a(m.terms);
  facts(a, m.facts);
  a(m.former);
  a.later_text("why a node is unfit", m.unfit, unfit_bytes_max);
  a.later(m.needed);
  a.later_number("the exit code without a needed node", m.needed_code, 1, exit_code_max);
}
void fields(auto& a, StoreReady& m) {
  round(a, m.round);
  port(a, m.port);
  a.later(m.key);
}
void fields(auto& a, WorkersFailed& m) {
  round(a, m.round);
  failures(a, m.failures);
  a(m.may_restart);
}
void fields(auto& a, WorkersSucceeded& m) { round(a, m.round); }
void fields(auto& a, Leave& m) {
  a(m.ends_job);
  exit_code(a, m.exit_code);
  reason(a, m.reason);
  failures(a, m.failures);
  signal_number(a, m.stop_signal);
  a(m.kill_now);
  a.later(m.time_ends);
  a.later(m.saved);
}
void fields(auto& a, Resume& m) {
  using Stage = Resume::Stage;
  a(m.join);
  const bool known = a.choice("a stage", m.stage, Stage::failed, Stage::running);
  a(m.placement, m.store, m.failed);
  // Whatever a newer agent does in a round, it has workers there; without a round it can have none.
  if (!known && !m.placement) m.stage = Stage::ready;
  a.require((m.stage == Stage::ready) != m.placement.has_value(),
            "an agent's stage and its place contradict each other");
  a.require(!m.placement || m.join.local_world_size <= m.placement->world_size - m.placement->first_rank.value(),
            "an agent has more workers than its place has ranks");
  a.require(m.stage != Stage::failed || (m.placement && m.failed.round == m.placement->round),
            "failures are of another round than the agent's place");
}
void fields(auto& a, Hello& m) {
  a(m.version_min, m.version_max, m.has_token, m.nonce);
  a.name("a run id", m.run_id);
  a.require(m.version_min <= m.version_max, "the oldest version is newer than the newest");
}
void fields(auto& a, StepReport& m) {
  a(m.least, m.most);
  a.bent_number("steps in 1000 s", m.milli_per_second, std::int64_t{0}, milli_steps_max);
  a(m.age);
}
void fields(auto& a, NodeReport& m) {
  a.text("the states of ranks", m.ranks, std::size_t{local_workers_max});
  a(m.steps, m.beats);
  for (std::int64_t& part : m.spent) a.bent_number("time of ranks", part, std::int64_t{0}, spent_max);
}
void fields(auto& a, KeepAlive& m) {
  a(m.number);
  a.later(m.report, m.node, m.seen);
}
/// A revision of etcd's.
inline constexpr std::int64_t term_max = std::numeric_limits<std::int64_t>::max();
void later_term(auto& a, std::int64_t& term) { a.later_number("a term", term, std::int64_t{0}, term_max); }
void elsewhere(auto& a, std::int64_t& term, std::vector<std::string>& endpoints) {
  a.number("a term", term, std::int64_t{0}, term_max);
  a.list("endpoints", endpoints, endpoints_told_max, [&a](std::string& text) { a.name("an endpoint", text); });
}
void fields(auto& a, Moved& m) { elsewhere(a, m.term, m.endpoints); }
void fields(auto& a, Elsewhere& m) { elsewhere(a, m.term, m.endpoints); }
void fields(auto& a, NodeEvent& m) {
  a.text("an event", m.line, node_event_bytes_max);
  a(m.lost);
}
void fields(auto& a, Ask& m) {
  a(m.number, m.control);
  a.name("who asks", m.by);
  a.name("a method", m.method);
  a.text("a target", m.target, ask_target_bytes_max);
  a.text("the body of a request", m.body, ask_body_bytes_max);
}
void fields(auto& a, Answer& m) {
  a(m.number);
  a.bent_number("a status", m.status, 100, 599);
  a.name("a type", m.type);
  a.text("the body of an answer", m.body, answer_body_bytes_max);
  a(m.offset);
}
void fields(auto& a, Examined& m) {
  a(m.number);
  a.text("a part of an answer", m.part, diagnosis_part_bytes_max);
  a(m.last);
}
void fields(auto&, AskLook&) {}
void fields(auto&, Busy&) {}
void fields(auto& a, Arrivals& m) { a.text("a node's arrivals", m.part, diagnosis_part_bytes_max); }

// Coordinator to agent.

void fields(auto& a, HostStore& m) {
  round(a, m.round);
  a.list("sources", m.sources, SourceList::items_max, [&a](std::string& text) { a.name("a source", text); });
}
void fields(auto& a, Placed& m) {
  a(m.placement);
  a.later(m.watched);
}
void fields(auto& a, StopWorkers& m) {
  round(a, m.round);
  // For whatever cause: this node stops its workers and joins again.
  a.choice("a cause", m.cause, StopCause::fenced, StopCause::membership_change);
  reason(a, m.reason);
  a.later(m.save, m.stands_by);
}
void fields(auto& a, End& m) { a(m.verdict); }
void fields(auto& a, Waiting& m) { a.text("a roster", m.roster, text_bytes_max); }
void fields(auto& a, Welcome& m) {
  a(m.version, m.embedded);
  later_term(a, m.term);
}
void fields(auto& a, KeepAliveAnswer& m) {
  a(m.number);
  a.later(m.clock_ns, m.day_ns, m.age, m.seated);
  later_term(a, m.term);
}
void fields(auto& a, Examine& m) { a(m.number, m.asked, m.arrivals_only); }
void fields(auto& a, HangTold& m) {
  a.text("a part of what was found", m.part, diagnosis_part_bytes_max);
  a(m.last);
}
void fields(auto& a, Refused& m) {
  exit_code(a, m.exit_code);
  reason(a, m.reason);
}

}  // namespace torchup::wire

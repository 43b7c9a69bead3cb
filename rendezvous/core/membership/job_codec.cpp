#include "rendezvous/core/membership/job_codec.hpp"

#include <set>
#include <utility>

#include "rendezvous/core/link/wire_fields.hpp"
#include "rendezvous/core/membership/ended_jobs.hpp"
#include "rendezvous/core/text/checksum.hpp"

namespace torchup {
namespace wire {

constexpr std::size_t losses_max = std::size_t{1} << 20;  ///< hosts
constexpr std::size_t losses_of_host_max = 1024;          ///< the round machine remembers a few

void fields(auto& a, Seat& m) {
  group_rank(a, m.group_rank);
  rank(a, m.first_rank);
  rank(a, m.first_role_rank);
  a.number("the role world size", m.role_world_size, 0, world_size_max);
}
void shared(Writer& a, const Shared<Join>& join) { a(*join); }
void shared(Reader& a, Shared<Join>& join) {
  Join read;
  a(read);
  join = std::move(read);
}
void fields(auto& a, JobSnapshot::SavedMember& m) {
  shared(a, m.join);
  a.known_choice("a node's stage", m.stage, JobSnapshot::Stage::stopping);
  a(m.aside);
  a.name("an address", m.observed);
  a(m.seniority, m.seat);
  maybe(a, m.round, Round{0}, [&a](Round& value) { round(a, value); });
}
void fields(auto& a, JobSnapshot::Losses& m) {
  a.name("a host", m.host);
  a.list("the losses of a host", m.ages, losses_of_host_max);
}
void fields(auto& a, JobSnapshot::Restarts& m) {
  a(m.age);
  a.number("the number of restarts", m.restarts, 1, restarts_max);
}
void fields(auto& a, JobSnapshot::Ended& m) {
  a(m.verdict);
  round(a, m.last_round);
  a.list("the agents of an ended job", m.agents, std::size_t{nodes_max} + lost_agents_max,
         [&a](std::string& agent) { a.name("an agent", agent); });
  a(m.kept);
}
void fields(auto& a, JobRange& m) {
  a.number("min nodes", m.min_nodes, 1, nodes_max);
  a.number("max nodes", m.max_nodes, m.min_nodes, nodes_max);
}
void fields(auto& a, JobSnapshot::Orders& m) {
  a(m.range);
  a.list("the list of drained agents", m.drained, std::size_t{nodes_max},
         [&a](std::string& agent) { a.name("an agent", agent); });
  a(m.planned_stop);
}
void fields(auto& a, JobSnapshot& m) {
  a(m.terms);
  facts(a, m.facts);
  a.name("the coordinator's address", m.coordinator_address);
  a.known_choice("the phase", m.phase, JobSnapshot::Phase::ended);
  round(a, m.round);
  round(a, m.next_round);
  a(m.formed_once);
  restart_count(a, m.restart_count);
  a.list("the list of restarts", m.restarts, std::size_t{restarts_max});
  membership_changes(a, m.membership_changes);
  a.list("the list of nodes", m.members, std::size_t{nodes_max});
  a(m.next_seniority);
  a.list("the list of lost nodes", m.losses, losses_max);
  a.number("the group world size", m.group_world_size, 0, nodes_max);
  a.number("the world size", m.world_size, 0, world_size_max);
  a.name("the master address", m.master_addr);
  a.number("the master port", m.master_port, 0, 65535);
  a(m.gather_left, m.last_call_left, m.leave_left, m.patience_left, m.forget_left, m.verdict);
  a.list("the list of ended jobs", m.ended, ended_jobs_max);
  a.later(m.orders, m.store_key);
}
void fields(auto& a, SavedJob& m) {
  a.name("a run id", m.run_id);
  a(m.snapshot);
}

}  // namespace wire

namespace {

constexpr std::string_view first_line = "torchupd job\n";

/// What does not depend on how members and rounds are counted, but would make a round machine of them impossible.
bool coherent(const JobSnapshot& job) {
  using Phase = JobSnapshot::Phase;
  const bool in_round = job.phase == Phase::hosting || job.phase == Phase::running || job.phase == Phase::restoring;
  std::set<std::string_view> nodes;
  int seated = 0, finished = 0;
  for (const auto& member : job.members) {
    if (!nodes.insert(member.join->node.value()).second) return false;
    seated += member.stage == JobSnapshot::Stage::seated;
    finished += member.stage == JobSnapshot::Stage::finished;
  }
  if ((in_round || !job.members.empty()) && !job.terms) return false;
  if (job.terms && job.terms->rank_order == RankOrder::unknown) return false;
  if ((job.phase == Phase::ended) != job.verdict.has_value() || job.phase == Phase::doubting) return false;
  if (!in_round) return true;
  if (seated + finished > job.group_world_size) return false;
  if (job.phase == Phase::hosting) return seated > 0 && finished == 0;  // nobody finishes before the round runs
  // The nodes that a restored round has so far may all have finished and gone.
  return job.phase == Phase::restoring || seated + finished > 0;
}

}  // namespace

std::string encode_job(const SavedJob& job) {
  wire::Writer body;
  body.message(job);
  const std::string bytes = body.take();
  wire::Writer head;
  head(job_format_version, checksum(bytes));
  return std::string{first_line} + head.take() + bytes;
}

Result<SavedJob> decode_job(std::string_view bytes) {
  if (!bytes.starts_with(first_line)) return fail(errc::bad_frame, "it is not a file of torchupd's");
  bytes.remove_prefix(first_line.size());
  std::uint32_t version = 0;
  std::uint64_t sum = 0;
  wire::Reader head{bytes};
  head(version);
  if (!head.error() && version != job_format_version) {
    return fail(errc::wrong_version,
                fmt::format("it is of format {} and this torchupd reads format {}", version, job_format_version));
  }
  head(sum);
  if (head.error()) return fail(errc::bad_frame, "it is damaged: it is cut off");
  bytes.remove_prefix(sizeof version + sizeof sum);
  if (sum != checksum(bytes)) return fail(errc::bad_frame, "it is damaged: the checksum is wrong");
  SavedJob job;
  wire::Reader body{bytes};
  body.message(job);
  if (body.error() && body.error()->code == errc::wrong_version) return *body.error();
  if (body.error()) return fail(errc::bad_frame, "it is damaged: " + body.error()->context);
  if (!coherent(job.snapshot)) return fail(errc::bad_frame, "it is damaged: its parts contradict each other");
  return job;
}

}  // namespace torchup

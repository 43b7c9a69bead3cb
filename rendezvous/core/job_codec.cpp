#include "rendezvous/core/job_codec.hpp"

#include "rendezvous/core/wire_fields.hpp"

namespace torchup {
namespace wire {

constexpr std::size_t members_max = std::size_t{1} << 20;  // --max-agents allows no more
constexpr std::size_t losses_max = std::size_t{1} << 20;

void fields(auto& a, Seat& m) { a(m.group_rank, m.first_rank, m.first_role_rank, m.role_world_size); }
void fields(auto& a, JobSnapshot::Member& m) {
  a(m.join);
  a.enumeration(m.stage, JobSnapshot::Stage::stopping);
  a(m.aside);
  a.name(m.observed);
  a(m.seniority, m.seat);
}
void fields(auto& a, JobSnapshot::Losses& m) {
  a.name(m.host);
  a(m.ages);
}
void fields(auto& a, JobSnapshot& m) {
  a(m.terms, m.facts);
  a.name(m.coordinator_address);
  a.enumeration(m.phase, JobSnapshot::Phase::ended);
  a(m.round, m.formed_once, m.restart_count);
  a.many(m.restart_ages, std::numeric_limits<std::uint32_t>::max());
  a(m.membership_changes);
  a.many(m.members, members_max);
  a(m.next_seniority);
  a.many(m.losses, losses_max);
  a(m.group_world_size, m.world_size);
  a.name(m.master_addr);
  a(m.master_port, m.gather_left, m.last_call_left, m.leave_left, m.forget_left, m.verdict);
}
void fields(auto& a, SavedJob& m) { a(m.run_id, m.snapshot); }

}  // namespace wire

namespace {

constexpr std::string_view first_line = "torchupd job\n";

/// FNV-1a: against damage, not against people.
std::uint64_t checksum(std::string_view bytes) {
  std::uint64_t sum = 0xcbf29ce484222325u;
  for (const char byte : bytes) sum = (sum ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  return sum;
}

/// What does not depend on how members and rounds are counted, but would make a round machine of them impossible.
bool coherent(const JobSnapshot& job) {
  using Phase = JobSnapshot::Phase;
  const bool in_round = job.phase == Phase::hosting || job.phase == Phase::running || job.phase == Phase::restoring;
  int seated = 0;
  for (const auto& member : job.members) {
    seated += member.stage == JobSnapshot::Stage::seated || member.stage == JobSnapshot::Stage::finished;
  }
  if (!job.members.empty() && !job.terms) return false;
  if ((job.phase == Phase::ended) != job.verdict.has_value() || job.phase == Phase::doubting) return false;
  return !in_round || (seated > 0 && seated <= job.group_world_size);
}

}  // namespace

std::string encode_job(const SavedJob& job) {
  wire::Writer body;
  body(job);
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
    return fail(errc::wrong_version, "it is of format " + std::to_string(version) + " and this torchupd reads format " +
                                         std::to_string(job_format_version));
  }
  head(sum);
  if (head.error()) return fail(errc::bad_frame, "it is damaged: it is cut off");
  bytes.remove_prefix(sizeof version + sizeof sum);
  if (sum != checksum(bytes)) return fail(errc::bad_frame, "it is damaged: the checksum is wrong");
  SavedJob job;
  wire::Reader body{bytes};
  body(job);
  if (body.error()) return fail(errc::bad_frame, "it is damaged: " + body.error()->context);
  if (!coherent(job.snapshot)) return fail(errc::bad_frame, "it is damaged: its parts contradict each other");
  return job;
}

}  // namespace torchup

#include "rendezvous/net/coordinator/told_room.hpp"

#include <fmt/format.h>

#include "rendezvous/core/link/message_bytes.hpp"
#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"

namespace torchup {
namespace {

/// Cuts what people are told of why workers failed; that they did, and how, needs no room.
void cut_words(Leave* leave, WorkersFailed* failed) {
  if (leave) leave->reason = printable_start(leave->reason);
  for (WorkerFailure& failure : leave ? leave->failures : failed->failures) {
    failure.message = printable_start(failure.message);
    failure.error_file.clear();
  }
}

}  // namespace

const Join* join_in(const RendezvousEvent& event) {
  const auto* said = std::get_if<Said>(&event);
  const auto* resumed = std::get_if<Resumed>(&event);
  return said ? std::get_if<Join>(&said->message) : resumed ? &resumed->resume.join : nullptr;
}

std::string why_no_room(const JobRegistry& jobs, const CoordinatorJob& job, RendezvousEvent& event) {
  auto* const said = std::get_if<Said>(&event);
  auto* const resumed = std::get_if<Resumed>(&event);
  const Join* const join = join_in(event);
  auto* const leave = said ? std::get_if<Leave>(&said->message) : nullptr;
  auto* const failed = resumed ? &resumed->resume.failed : said ? std::get_if<WorkersFailed>(&said->message) : nullptr;
  if (!join && !leave && !failed) return {};
  const std::size_t growth = join ? job.growth_by(*join) : 0;
  std::size_t bytes = jobs.told_bytes() + growth;
  if (leave) bytes += leave->reason.size();
  if (leave || failed) bytes += held_bytes(leave ? leave->failures : failed->failures);
  if (bytes <= told_bytes_max) return {};
  if (leave || failed) cut_words(leave, failed);
  if (growth == 0) return {};
  return fmt::format(
      "told_bytes_max: what agents told this coordinator of themselves and this one tells takes up {} "
      "bytes, where {} are allowed",
      bytes, told_bytes_max);
}

bool has_room_for(const JobRegistry& jobs, const watch::Event& event, std::size_t bytes_max) {
  const auto* answered = std::get_if<watch::Answered>(&event);
  const auto* arrived = std::get_if<watch::Arrived>(&event);
  if (!answered && !arrived) return true;
  std::size_t bytes = answered ? answered->examined.part.size() : arrived->arrivals.part.size();
  for (const auto& [_, job] : jobs.all()) bytes += job->watch.held_bytes();
  return bytes <= bytes_max;
}

}  // namespace torchup

#include "rendezvous/core/membership/reporter.hpp"

#include <tuple>

namespace torchup {

std::string reporter(const Membership& members, const std::vector<WorkerFailure>& failures, FirstReporter first,
                     TimePoint now) {
  const std::string* const cause = failures.empty() ? nullptr : &failures[root_cause(failures)].host;
  const auto failed_on = [&](const Member& member) { return cause && member.join->host == *cause; };
  const auto order = [&](const Member& member) {
    const bool hears = member.peer && !members.silent(member, now);
    const int index = member.join->group_rank ? member.join->group_rank->value() : nodes_max;
    return std::tuple{!hears, !failed_on(member), member.round ? -member.round->value() : 1,
                      member.round ? member.seat.group_rank.value() : index, member.seniority};
  };
  const Member* chosen = nullptr;
  bool has_order = first == FirstReporter::longest_present;
  for (const auto& [node, slot] : members.slots()) {
    const Member& member = members.at(slot);
    has_order = has_order || member.round || member.join->group_rank;
    if (!chosen || order(member) < order(*chosen)) chosen = &member;
  }
  return chosen && (has_order || failed_on(*chosen)) ? chosen->join->host : "";
}

}  // namespace torchup

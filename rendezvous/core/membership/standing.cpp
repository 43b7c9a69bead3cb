#include "rendezvous/core/membership/standing.hpp"

#include <fmt/format.h>

#include "rendezvous/core/membership/same_world.hpp"
#include "rendezvous/core/membership/terms_difference.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

using Meaning = Standing::Meaning;

/// Whether the agent has never had a place here, nor lost its membership.
bool is_first_join(const Join& join) { return !join.former && agent_life(join.node) == 0; }

/// The verdict that this agent has not heard yet: of the job that has ended, or of one before that.
const Verdict* missed_verdict(const Membership& members, const PastJobs& past, Peer peer, const Join& join,
                              const Resume* resume, TimePoint now) {
  const Membership::Connection& connection = members.connection(peer);
  if (connection.member && members.at(*connection.member).join->node == join.node) return past.last;
  if (connection.ended_job) {
    const EndedJobs::EndedJob* job = past.before.find(*connection.ended_job);
    return job ? &job->verdict : nullptr;
  }
  if (!resume && is_first_join(join)) return past.last && connection.member ? past.last : nullptr;
  std::optional<Round> round;
  if (join.former) round = join.former->round;
  if (resume && resume->placement) round = resume->placement->round;
  if (!past.rounds_are_ours) round.reset();
  const EndedJobs::EndedJob* job = past.before.find(join.node, round, now);
  return job ? &job->verdict : past.last;
}

std::string id_of_another(const Member& member) { return "its node id is that of an agent on " + member.join->host; }

/// What is wrong with Join::group_rank. --node-rank is a place, for one node each. A scheduler's index is an order:
/// there may be more nodes than places, and one that comes back may be here before its former self is missed.
std::optional<std::string> misplaced(const Membership& members, const JobTerms& terms, const Join& join,
                                     std::optional<Membership::Slot> replaced, TimePoint now) {
  const bool by_index = terms.rank_order == RankOrder::index;
  if (!join.group_rank && by_index) return "it has no index of a scheduler's, by which this job orders its nodes";
  if (!join.group_rank) return {};
  const int rank = join.group_rank->value();
  const std::string name = fmt::format("{} {}", by_index ? "the scheduler's index" : "--node-rank", rank);
  if (by_index && (rank < 0 || rank >= nodes_max)) return fmt::format("{} is not from 0 to {}", name, nodes_max - 1);
  if (!by_index && (rank < 0 || rank >= terms.max_nodes)) {
    return fmt::format("{} does not fit {}", name, nodes_wanted(terms.min_nodes, terms.max_nodes));
  }
  for (auto [entry, end] = members.with_group_rank(*join.group_rank); entry != end; ++entry) {
    const Member& other = members.at(entry->second);
    if (entry->second == replaced) continue;
    if (by_index && (other.join->host == join.host || members.silent(other, now))) continue;
    return fmt::format("{} is used twice: by {} and by {}", name, join.host, other.join->host);
  }
  return {};
}

}  // namespace

Standing joins(const Membership& members, const PastJobs& past, Peer peer, const Join& join, TimePoint now) {
  // A place for that node would be taken by the one that the agent has become.
  if (members.connection(peer).given_up == join.node) return {};
  const auto known = members.find(peer, join.node);
  if (members.outdated(peer, known)) return {};
  if (const Verdict* verdict = missed_verdict(members, past, peer, join, nullptr, now)) {
    return {.meaning = Meaning::verdict, .verdict = verdict};
  }
  if (past.last || !known) return {.meaning = Meaning::newcomer};  // of the next job, or of this one
  const Member& member = members.at(*known);
  if (member.join->host != join.host) return {.meaning = Meaning::refusal, .why = id_of_another(member)};
  if (members.speaks_elsewhere(member, peer, now)) {
    return {.meaning = Meaning::refusal,
            .why = fmt::format("its node id {} is that of an agent that is there, by a connection from {}; this one "
                               "comes from {}",
                               join.node.value(), member.observed, members.connection(peer).observed)};
  }
  return {.meaning = Meaning::member, .member = known};
}

Standing comes_back(const Membership& members, const PastJobs& past, Peer peer, const Resume& resume, TimePoint now) {
  const auto known = members.find(peer, resume.join.node);
  if (members.outdated(peer, known)) return {};
  if (!known) {
    const Verdict* const verdict = missed_verdict(members, past, peer, resume.join, &resume, now);
    return {.meaning = verdict ? Meaning::verdict : Meaning::newcomer, .verdict = verdict};
  }
  if (past.last) return {.meaning = Meaning::verdict, .member = known, .verdict = past.last};
  const Member& member = members.at(*known);
  if (member.join->host != resume.join.host) return {.meaning = Meaning::refusal, .why = id_of_another(member)};
  return {.meaning = Meaning::member, .member = known};
}

std::optional<std::string> misfit(const Membership& members, const std::optional<JobTerms>& terms,
                                  const std::vector<Fact>& facts, const Join& join,
                                  std::optional<Membership::Slot> replaced, TimePoint now) {
  if (join.terms.rank_order == RankOrder::unknown) {
    return "this coordinator does not know the order of ranks that the agent wants: it needs a newer release";
  }
  if (terms) {
    if (auto what = terms_difference(join.terms, *terms)) return what;
  }
  if (auto what = misplaced(members, join.terms, join, replaced, now)) return what;
  if (terms && terms->same_world == SameWorld::fail) {
    static const std::string here = "this node", there = "the job's first node";
    const HostFacts both[] = {{&there, &facts}, {&here, &join.facts}};
    if (const std::string table = world_differences(both); !table.empty()) return "the nodes differ: " + table;
  }
  return {};
}

bool ends_job(const Leave& leave, const Membership::Connection& connection) {
  return leave.ends_job || connection.in_process;
}

}  // namespace torchup

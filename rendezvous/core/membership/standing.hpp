#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/core/membership/ended_jobs.hpp"
#include "rendezvous/core/membership/membership.hpp"

/// What an agent's word means for who belongs to a job: decided here alone, for the round machine and for mixed jobs.
/// What follows from it is theirs.
namespace torchup {

/// Of an agent that joins, or comes back.
struct Standing {
  enum class Meaning : std::uint8_t {
    nothing,   ///< said before the agent heard what it was told, or by a connection that it has left
    verdict,   ///< its job is over, and it has not heard `verdict` yet
    refusal,   ///< it is not wanted; `why`
    member,    ///< it is `member`
    newcomer,  ///< it is none of the job, or was told that it is no more
  };
  Meaning meaning = Meaning::nothing;
  std::optional<Membership::Slot> member = {};  ///< with a verdict too, where it has not left yet
  const Verdict* verdict = nullptr;
  std::string why = {};
};

/// How a node loses its place, for its agent and for the log: what goes on where "node HOST" begins.
namespace place_lost {
inline constexpr const char* ended = "has ended";
inline constexpr const char* starts_anew = "starts anew";
inline constexpr const char* replaced = "is replaced by a new agent on the same host";
}  // namespace place_lost
/// To an agent that comes back for a place that it has lost.
inline constexpr const char* given_up_while_silent = "this node was given up while it was silent";

/// Verdicts that an agent may not have heard.
struct PastJobs {
  EndedJobs& before;              ///< other jobs have begun since
  const Verdict* last = nullptr;  ///< of the job that is over, where none has begun since; null: it goes on
  bool rounds_are_ours = true;    ///< the number of a round tells which job it was of; torchrun's begin at 0 each time
};

[[nodiscard]] Standing joins(const Membership& members, const PastJobs& past, Peer peer, const Join& join,
                             TimePoint now);
[[nodiscard]] Standing comes_back(const Membership& members, const PastJobs& past, Peer peer, const Resume& resume,
                                  TimePoint now);

/// Why an agent has no place among these members. `replaced`: the one whose place it would take. Without `terms` it is
/// the first, whose own stand.
[[nodiscard]] std::optional<std::string> misfit(const Membership& members, const std::optional<JobTerms>& terms,
                                                const std::vector<Fact>& facts, const Join& join,
                                                std::optional<Membership::Slot> replaced, TimePoint now);

/// Whether all are to end with the agent that leaves: one that hosts the coordinator takes it along.
[[nodiscard]] bool ends_job(const Leave& leave, const Membership::Connection& connection);

/// Who belongs to a job and who belonged to those before it: what goes along where another machine decides about the
/// job from then on.
struct JobPeople {
  Membership members{LossLimits{}};
  EndedJobs ended = {};
  LostAgents lost = {};
  std::optional<JobTerms> terms = {};
  std::vector<Fact> facts = {};
  Round last_round{0};  ///< the newest that any of them can have been in
};

}  // namespace torchup

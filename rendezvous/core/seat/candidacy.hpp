#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/etcd/etcd_messages.hpp"
#include "rendezvous/core/etcd/scope.hpp"

namespace torchup {

using Term = Strong<struct TermTag, std::int64_t>;  ///< of a seat: the revision of the txn that took it; 0: none

/// What the machine that takes and keeps a seat is told, and what it wants done.
namespace candidacy {

/// What a read of the seat found; `lease` and `holder` where it is not vacant.
struct View {
  etcd::Revision revision{0};  ///< of the answer
  Term term{0};                ///< 0: vacant
  etcd::LeaseId lease{0};
  etcd::Holder holder = {};
  friend bool operator==(const View&, const View&) = default;
};

// Events. What answers an action has its number; another number's is passed over.

struct Read {
  std::uint64_t number;
  View view = {};
};
struct Granted {
  std::uint64_t number;
  etcd::LeaseId lease{0};
};
/// Our txn was applied, at revision `term`; the state that it read goes with it to the caller.
struct Taken {
  std::uint64_t number;
  Term term{0};
};
/// The compare did not hold.
struct Missed {
  std::uint64_t number;
};
struct Renewed {
  std::uint64_t number;
  bool alive = true;
};
/// No answer, or none that can be believed; what was asked may still be done.
struct Failed {
  std::uint64_t number;
  bool forbidden = false;  ///< etcd refuses us, and each try costs it a password's proof: people must act
};
/// The watch tells of a change: a hint, which a read confirms.
struct Hint {};
/// We are attached to the holder of that term, which says so itself; told again when it answers after a doubt.
struct Attached {
  Term term{0};
};
/// The line to the holder is silent or gone without proof of its end.
struct Doubted {};
/// The holder's process has ended: its line ended, or broke and its address refused.
struct HolderEnded {
  Term term{0};
};
/// Somebody has met a holder of that term, or a txn of ours was refused.
struct Outvoted {
  Term term{0};
  std::vector<Endpoint> endpoints = {};  ///< where that one is; empty: not known
};
/// This process ends in good order, after its node's leave was committed.
struct Leave {};
struct Wake {};
using Event = std::variant<Read, Granted, Taken, Missed, Renewed, Failed, Hint, Attached, Doubted, HolderEnded,
                           Outvoted, Leave, Wake>;

// Actions.

/// A linearizable range of the seat; answered by Read or Failed.
struct Look {
  std::uint64_t number;
  friend bool operator==(const Look&, const Look&) = default;
};
struct Grant {
  std::uint64_t number;
  Duration ttl{};
  friend bool operator==(const Grant&, const Grant&) = default;
};
/// One txn: if the seat is as `was` says, put it under `lease`, and range the states. Our port is open before.
struct Take {
  std::uint64_t number;
  Term was{0};
  etcd::LeaseId lease{0};
  friend bool operator==(const Take&, const Take&) = default;
};
struct Renew {
  std::uint64_t number;
  etcd::LeaseId lease{0};
  friend bool operator==(const Renew&, const Renew&) = default;
};
/// Not answered. A seat under it becomes vacant.
struct Revoke {
  etcd::LeaseId lease{0};
  friend bool operator==(const Revoke&, const Revoke&) = default;
};
/// Delete the seat if it has this term, then give the lease back. Not answered.
struct Vacate {
  Term term{0};
  etcd::LeaseId lease{0};
  friend bool operator==(const Vacate&, const Vacate&) = default;
};
/// A tenure of ours begins.
struct Serve {
  Term term{0};
  Term before{0};       ///< the term that the state was written under last, as far as it is known
  bool again = false;   ///< nobody had the seat since our former one: lines that stand are kept
  bool proved = false;  ///< the former holder's process has ended
  friend bool operator==(const Serve&, const Serve&) = default;
};
/// A read, or the txn that took the seat, was sent at `sent` and showed our term.
struct Confirm {
  TimePoint sent;
  friend bool operator==(const Confirm&, const Confirm&) = default;
};
/// Our tenure is over: to our members only Elsewhere, with this term and these endpoints; then we are an agent again.
struct Yield {
  Term term{0};
  std::vector<Endpoint> endpoints = {};  ///< empty: not known
  friend bool operator==(const Yield&, const Yield&) = default;
};
/// Attach to who has the seat.
struct Attend {
  Term term{0};
  std::vector<Endpoint> endpoints = {};
  friend bool operator==(const Attend&, const Attend&) = default;
};
using Action = std::variant<Look, Grant, Take, Renew, Revoke, Vacate, Serve, Confirm, Yield, Attend>;

}  // namespace candidacy

struct CandidacySettings {
  Duration lease = std::chrono::seconds{10};  ///< the job's; the seat's is seat_ttl()
  Duration campaign_wait{};                   ///< before a vacant seat is taken: campaign_wait_of() or a random one
};
/// clamp(lease / 2, 2 s, 5 s).
[[nodiscard]] Duration seat_ttl(Duration lease);
/// 20 ms for each group rank, at most 1 s.
[[nodiscard]] Duration campaign_wait_of(GroupRank rank);

/// Who coordinates. A candidate seeks, stands by while another holds the seat, takes it when it is vacant or its
/// holder's end is proved, and holds it until a read shows another's term. Pure.
///
/// A lease makes a seat vacant some day and proves nothing: only a read or a txn does. An answer that was lost is asked
/// for: a seat under the lease that we were granted is ours, and is taken once more, so that each tenure begins with
/// the txn that read its state. A seat that became vacant under us is taken again at once, as a new tenure.
class Candidacy {
 public:
  enum class Role : std::uint8_t { seeking, standing_by, holding, left };
  static constexpr Duration retry_first = std::chrono::milliseconds{50};
  static constexpr Duration retry_longest = std::chrono::seconds{1};
  static constexpr Duration retry_forbidden = std::chrono::seconds{10};

  Candidacy(CandidacySettings settings, TimePoint now);

  /// Applies `event`, then what is due at `now`, which never goes backwards.
  [[nodiscard]] std::vector<candidacy::Action> step(const candidacy::Event& event, TimePoint now);
  [[nodiscard]] std::optional<TimePoint> deadline() const;
  /// From the next vacant seat on.
  void set_campaign_wait(Duration wait) { settings_.campaign_wait = wait; }

  [[nodiscard]] Role role() const { return role_; }
  [[nodiscard]] Term term() const { return term_; }  ///< of our tenure while we hold
  /// The last answer of etcd's showed our term, and is no older than a seat lasts without us: what `seated` says in
  /// answers to keep-alives.
  [[nodiscard]] bool seated() const { return role_ == Role::holding && seated_; }
  [[nodiscard]] Term greatest_term() const { return greatest_; }  ///< whoever is welcomed under a smaller one is closed

 private:
  struct Asked {
    std::uint64_t number;
    TimePoint sent;
    etcd::Revision known{0};  ///< when it was sent: an answer that is older goes back in time
  };
  void on(const candidacy::Read& event, TimePoint now);
  void on(const candidacy::Granted& event, TimePoint now);
  void on(const candidacy::Taken& event, TimePoint now);
  void on(const candidacy::Missed& event, TimePoint now);
  void on(const candidacy::Renewed& event, TimePoint now);
  void on(const candidacy::Failed& event, TimePoint now);
  void on(const candidacy::Hint&, TimePoint now) { look_at_ = now; }
  void on(const candidacy::Attached& event, TimePoint now);
  void on(const candidacy::Doubted& event, TimePoint now);
  void on(const candidacy::HolderEnded& event, TimePoint now);
  void on(const candidacy::Outvoted& event, TimePoint now);
  void on(const candidacy::Leave&, TimePoint now);
  void on(const candidacy::Wake&, TimePoint) {}

  void saw_vacant(TimePoint now);
  void saw_ours(const Asked& look, Term term, TimePoint now);
  void saw_other(const candidacy::View& view, TimePoint now);
  void campaign(TimePoint at);
  void take(TimePoint now);
  void drop_lease(bool revoke);
  void retry(TimePoint now);
  void due(TimePoint now);
  [[nodiscard]] Duration look_period() const;
  void act(candidacy::Action action) { actions_.push_back(std::move(action)); }

  CandidacySettings settings_;
  std::vector<candidacy::Action> actions_;
  Role role_ = Role::seeking;
  Term term_{0};
  bool seated_ = false;
  TimePoint confirmed_{};  ///< when what showed our term last was asked for
  Term greatest_{0};
  etcd::Revision known_{0};
  Term was_{0};             ///< what the seat must be for us to take it
  Term before_{0};          ///< the last other term that was seen in the seat
  Term ended_{0};           ///< the holder of this term has ended, proved
  etcd::LeaseId lease_{0};  ///< ours
  std::uint64_t next_number_ = 1;
  std::optional<Asked> look_, granting_, taking_, renewing_;
  std::optional<TimePoint> look_at_, campaign_at_, renew_at_;
  Duration retry_ = retry_first;
};

}  // namespace torchup

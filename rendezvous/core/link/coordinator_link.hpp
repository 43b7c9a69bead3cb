#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/agent_codec.hpp"
#include "rendezvous/core/link/clock_offset.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/link/operations_pacing.hpp"
#include "rendezvous/core/text/endpoint.hpp"

namespace torchup {

/// The way to the coordinator is gone for good: the endpoint was not reached, or it refused us.
struct LinkLost {
  int exit_code = 0;        ///< README, "Exit codes": 65, 66, 67 or 68
  std::string reason = {};  ///< one line for people: what was tried, why it failed, what to do
  friend bool operator==(const LinkLost&, const LinkLost&) = default;
};

/// What an agent hears of its link.
using LinkEvent = std::variant<CoordinatorMessage, LinkLost>;

/// One connection to the coordinator, or the attempt at one, numbered by the machine.
using LineId = Strong<struct LineTag, std::uint64_t>;

/// What the link machine is told, and what it wants done.
namespace link {

// Events.

/// The agent speaks. A Join is complete: with its node id, which CoordinatorLink::incarnation is part of.
struct Say {
  AgentMessage message;
};
/// How far the workers are; the newest goes with each keep-alive.
struct Report {
  ProgressReport progress = {};
};
/// What the node's workers do; the newest goes with a keep-alive now and then (ReportPacing).
struct ReportNode {
  NodeReport node = {};
};
/// The connection stands. Where there is a token, what is heard on it was said by somebody who has proven it.
struct Dialled {
  LineId line;
};
/// Who answers does not prove the token: it has another one, or none.
struct NotProved {
  LineId line;
  std::string why = {};
};
struct DialFailed {
  LineId line;
  bool refused = false;  ///< somebody's machine says that nobody listens there
  std::string why = {};
};
struct Heard {
  LineId line;
  CoordinatorFrame frame;
};
/// What came by the line cannot be understood.
struct Garbled {
  LineId line;
  std::string why = {};
};
struct Closed {
  LineId line;
  std::string why = {};  ///< how it broke; empty: an end of file, the other process has closed it in good order
};
/// The coordinator is there, as those say who keep its seat: it is dialled instead of all others.
struct Directed {
  std::int64_t term = 0;
  std::vector<Endpoint> endpoints = {};
};
/// Whoever could say where the coordinator is cannot, and why; with an exit code other than 0 that is the end.
struct Undirected {
  std::string why = {};
  int exit_code = 0;
};
/// The job has ended so, as is written where its state is kept. Its agent has lost a coordinator, or found none.
struct Ended {
  Verdict verdict = {};
};
/// The agent ends, and has no workers any more.
struct Finish {};
/// Nothing happened but time.
struct Wake {};
using Event = std::variant<Say, Report, ReportNode, Dialled, NotProved, DialFailed, Heard, Garbled, Closed, Directed, Undirected,
                           Ended, Finish, Wake>;

// Actions.

/// Look the endpoint up and connect to it, for no longer than `limit`; answered by Dialled or DialFailed.
struct Dial {
  LineId line;
  Duration limit{};
  std::optional<Port> port = {};          ///< another than the endpoint's
  std::optional<Endpoint> endpoint = {};  ///< another than the settings'
  friend bool operator==(const Dial&, const Dial&) = default;
};
struct Write {
  LineId line;
  AgentFrame frame;
  friend bool operator==(const Write&, const Write&) = default;
};
/// Nothing more is heard of that line, nor of an attempt at it.
struct Close {
  enum class How : std::uint8_t {
    reset,         ///< we live on: the other side must not take it for our end
    after_writes,  ///< our end: what was written still arrives
  };
  LineId line;
  How how = How::reset;
  friend bool operator==(const Close&, const Close&) = default;
};
/// How long the kernel is to wait for a peer's machine that is gone.
struct SetPatience {
  LineId line;
  Duration patience{};
  friend bool operator==(const SetPatience&, const SetPatience&) = default;
};
struct Tell {
  LinkEvent event;
  friend bool operator==(const Tell&, const Tell&) = default;
};
/// Who answers there does not answer as a coordinator, and none ever did: PyTorch's store, perhaps.
struct MeetForeigner {
  friend bool operator==(const MeetForeigner&, const MeetForeigner&) = default;
};
/// Nobody listens there, and no coordinator ever answered.
struct NobodyListens {
  friend bool operator==(const NobodyListens&, const NobodyListens&) = default;
};
// For who may become a coordinator itself (core/seat/candidacy): what it is told of the one that there is.

/// We are attached to it, or again sure of it.
struct Attends {
  std::int64_t term = 0;
  friend bool operator==(const Attends&, const Attends&) = default;
};
/// The line to it is silent, or gone without proof of its end, or it does not know itself whether it has the seat.
struct Doubts {
  friend bool operator==(const Doubts&, const Doubts&) = default;
};
/// Its process has ended: our line ended, or broke and then its address refused.
struct SawEnd {
  std::int64_t term = 0;
  friend bool operator==(const SawEnd&, const SawEnd&) = default;
};
using Action =
    std::variant<Dial, Write, Close, SetPatience, Tell, MeetForeigner, NobodyListens, Attends, Doubts, SawEnd>;

}  // namespace link

struct CoordinatorLinkSettings {
  Endpoint endpoint = {};
  RunId run_id{""};
  Duration join_timeout = std::chrono::seconds{600};  ///< how long the endpoint may stay out of reach
  bool has_token = false;  ///< lines are encrypted by it, and it proves both sides
  /// Of the endpoint's host, where the coordinator listens if those before them were taken.
  std::vector<Port> further_ports = {};
  /// Where the coordinator may be, in the order of trying: whichever is none sends us on, or refuses to be dialled.
  /// Empty: at `endpoint` alone.
  std::vector<Endpoint> endpoints = {};
  /// Where the coordinator is will be said by link::Directed, and nobody is dialled before. `endpoint` is not used.
  bool directed = false;
  std::string known_as = {};  ///< what people know the place by; empty: the endpoint, or all of them
  /// There is one connection, made by others, and when it has ended there is no other: LinkLost at once. Who holds it
  /// may take the join timeout to welcome us.
  bool one_connection = false;
  std::uint64_t seed = 0;  ///< of the jitter
};

/// The agent's side of its link to a coordinator in another process. Pure: same settings, events and times in, same
/// actions out. It dials, keeps alive, doubts, fences, comes back and restates where this agent stands.
///
/// **Fence.** While this agent has a place, its workers must be dead before the coordinator gives it up. What the
/// coordinator promises: it gives up no sooner than a lease after the last sign of life, and after it began anew no
/// sooner than return_limit_default. So the agent fences (StopWorkers with StopCause::fenced) at 0.9 of the lease after
/// the sending of the last keep-alive that was answered. Only an end of file by the line in use tells that the
/// coordinator's process has ended: then workers may run for `workers_wait` after that sending, as long as dialling is
/// refused; from the first Welcome afterwards, for 0.9 of the lease again. A line that breaks and a dial that is
/// refused prove nothing: what answers may be something between the two.
///
/// **Trust.** On a line that is not welcome yet only Welcome, Refused and Busy are heard. Where there is a token nothing
/// is heard that was not proved: who does not prove it is tried again until the join timeout.
///
/// **Patience.** The endpoint may stay out of reach for the join timeout, counted from the beginning or from the last
/// line on which a keep-alive was answered. Then LinkLost: 68 when who answers there refuses us or does not prove the
/// token, else 67. Without a token somebody who answers in another language for `foreign_limit` is another program: 67
/// at once. Who closes connections, says that it is Busy or says nothing may be a coordinator at the limit of its
/// descriptors, and is tried on; after `mute_limit` people are told so. That nobody listens is said when it has been so for
/// `untold_limit`, or a tenth of a short join timeout: nodes of one job begin one before the other. A time for which
/// this machine was suspended counts for none.
///
/// **Ports.** Where there are further ones, each is dialled in turn until somebody welcomes us: the next at once when
/// one is refused, answers in another language, belongs to another job or says nothing for `seek_limit`; after the
/// last, the first again as after any failure. Who else is there does not end the search, and its ports are kept to
/// afterwards.
///
/// **Several.** Where coordinators take each other's place, each has a term (core/seat). Who is welcomed by one with a
/// smaller term than any that was met before hangs up. Who is sent Elsewhere goes there. On moving to a greater term
/// the former coordinator is told Moved. An answer says how old the coordinator's own proof is: the fence counts from
/// then. Who is not seated is doubted, and others are tried, while its line is kept.
class CoordinatorLink {
 public:
  static constexpr Duration dial_limit = std::chrono::seconds{3};
  static constexpr Duration welcome_limit = std::chrono::seconds{5};       ///< for the answers to our hello
  static constexpr Duration seek_limit = std::chrono::seconds{1};          ///< the same where there are others to try
  static constexpr Duration quiet_limit = std::chrono::milliseconds{300};  ///< then it may speak another language
  static constexpr Duration untold_limit = std::chrono::seconds{3};        ///< then it is said that nobody listens
  static constexpr Duration foreign_limit = std::chrono::seconds{5};       ///< then it is no coordinator
  static constexpr Duration mute_limit = std::chrono::seconds{5};          ///< then it is at its limit, or none
  static constexpr Duration retry_first = std::chrono::milliseconds{50};
  static constexpr Duration retry_longest = std::chrono::seconds{1};
  static_assert(retry_longest < redial_limit);
  /// The same of an endpoint that has never welcomed us, and accepts and closes connections.
  static constexpr Duration retry_mute_longest = std::chrono::seconds{2};
  static constexpr int hops_max = 4;  ///< from one that sends us on to the next, before we wait as after a failure
  static constexpr Duration leave_limit = std::chrono::seconds{3};  ///< for the answer to our leave

  CoordinatorLink(CoordinatorLinkSettings settings, TimePoint now);

  /// Applies `event`, then everything that is due at `now`, which never goes backwards, and goes on while the machine
  /// is suspended. The fence comes first: after a sleep nothing that lies unread may be believed. `awake` is the same
  /// moment by the node's monotonic clock, which stands still meanwhile; nothing: there are no suspensions.
  [[nodiscard]] std::vector<link::Action> step(const link::Event& event, TimePoint now,
                                               std::optional<TimePoint> awake = std::nullopt);

  /// When to send the next Wake if nothing else happens; nothing when nothing is left to do.
  [[nodiscard]] std::optional<TimePoint> deadline() const;

  /// Tells this agent's present life in the job from its earlier ones, from 0: a node that was given up joins as
  /// another.
  [[nodiscard]] int incarnation() const { return incarnation_; }

  /// Whether a question would be heard now: this node is a member, and the way is not known to be cut.
  [[nodiscard]] bool reaches() const { return is_member(); }

  /// How far the coordinator's monotonic clock is ahead of ours; nothing before a keep-alive was answered with it on
  /// the line in use, and since this machine was suspended.
  [[nodiscard]] std::optional<ClockOffset::Estimate> clock() const { return clock_.estimate(); }
  /// Likewise its clock of the day.
  [[nodiscard]] std::optional<ClockOffset::Estimate> day() const { return day_.estimate(); }

 private:
  /// What the coordinator must be told again on a new line.
  struct Standing {
    std::optional<Join> join = {};  ///< empty until the agent joins, and after it was fenced
    bool told = false;              ///< the coordinator has heard this join, or may have
    Resume::Stage stage = Resume::Stage::ready;
    std::optional<Placement> placement = {};
    std::optional<StoreReady> store = {};
    WorkersFailed failed = {};
  };
  /// A keep-alive that is not answered yet.
  struct Asked {
    std::uint64_t number;
    TimePoint sent;
    TimePoint awake;  ///< the same moment by the other clock
  };
  /// A line that stands and is not welcome yet.
  struct Attempt {
    LineId line;
    TimePoint since;  ///< of the hello
    bool quiet = false;  ///< said nothing for quiet_limit
  };

  void on(const link::Say& event, TimePoint now);
  void on(const link::Report& event, TimePoint now);
  void on(const link::ReportNode& event, TimePoint now);
  void on(const link::Dialled& event, TimePoint now);
  void on(const link::NotProved& event, TimePoint now);
  void on(const link::DialFailed& event, TimePoint now);
  void on(const link::Heard& event, TimePoint now);
  void on(const link::Garbled& event, TimePoint now);
  void on(const link::Closed& event, TimePoint now);
  void on(const link::Directed& event, TimePoint now);
  void on(const link::Undirected& event, TimePoint now);
  void on(const link::Ended& event, TimePoint now);
  void on(const link::Finish& event, TimePoint now);
  void on(const link::Wake& event, TimePoint now);

  // What the agent says.
  void say(const Join& join, TimePoint now);
  void say(const StoreReady& ready, TimePoint now);
  void say(const WorkersFailed& failed, TimePoint now);
  void say(const WorkersSucceeded& succeeded, TimePoint now);
  void say(const Leave& leave, TimePoint now);
  void say(const Examined& examined, TimePoint now);
  void say(const AskLook& ask, TimePoint now);
  void say(const Arrivals& arrivals, TimePoint now);
  void say(const NodeEvent& event, TimePoint now);
  void say(const Ask& ask, TimePoint now);
  void say(const Answer& answer, TimePoint now);
  void write(AgentFrame frame);

  // What a line says that is not welcome yet.
  void greeted(const Welcome& welcome, TimePoint now);
  void greeted(const Refused& refused, TimePoint now);
  void greeted(const Busy& busy, TimePoint now);
  void greeted(const Elsewhere& elsewhere, TimePoint now);
  template <class Other>
  void greeted(const Other&, TimePoint now) {
    foreign("it gives orders before a welcome", now);
  }
  void unproved(const std::string& why, int code);
  void foreign(const std::string& what, TimePoint now);
  void mute(const std::string& what, TimePoint now);
  void attempt_over(TimePoint now);

  // What the coordinator says on the line in use.
  void hear(const Welcome&, TimePoint) {}
  void hear(const KeepAliveAnswer& answer, TimePoint now);
  void hear(const Refused& refused, TimePoint now);
  void hear(const Busy&, TimePoint) {}
  void hear(const Elsewhere& elsewhere, TimePoint now);
  void hear(const HostStore& host, TimePoint now);
  void hear(const Placed& placed, TimePoint now);
  void hear(const StopWorkers& stop, TimePoint now);
  void hear(const End& end, TimePoint now);
  void hear(const Waiting& waiting, TimePoint now);
  void hear(const Examine& examine, TimePoint now);
  void hear(const HangTold& told, TimePoint now);
  void hear(const Ask& ask, TimePoint now);
  void hear(const Answer& answer, TimePoint now);

  void due(TimePoint now);
  void slept(Duration gap, TimePoint now);
  void fence_if_due(TimePoint now);
  void fence(const std::string& reason, TimePoint now);
  void count_stop(StopCause cause);
  void forget_place();
  void lose_line(const std::string& reason, TimePoint now);
  void hang_up_attempt();
  void keep_alive(TimePoint now);
  void add_round_trip(const Asked& asked, std::int64_t clock_ns, TimePoint now);
  void restate();
  void forget_questions();
  void retry_later(TimePoint now);
  void go_to(std::int64_t term, const std::vector<Endpoint>& endpoints, TimePoint now);
  void doubt();
  [[nodiscard]] std::optional<Endpoint> next_place();
  /// Coordinators may take each other's place.
  [[nodiscard]] bool of_several() const { return settings_.directed || !settings_.endpoints.empty(); }
  /// `code`: of the end, if it lasts.
  void trouble(const std::string& what, int code, bool told = true);
  [[nodiscard]] bool may_be_early(TimePoint now) const;
  /// What people know the coordinator by: over one connection nobody has dialled the endpoint.
  [[nodiscard]] std::string place() const;
  void conclude(LinkEvent last);
  [[nodiscard]] bool runs() const;
  [[nodiscard]] bool is_member() const { return line_ && standing_.join && standing_.told && !ending_; }
  [[nodiscard]] std::optional<TimePoint> fence_at() const;
  [[nodiscard]] std::optional<TimePoint> dial_at() const;
  [[nodiscard]] Duration lease() const;
  [[nodiscard]] Duration doubt_after() const;
  [[nodiscard]] Duration kernel_patience() const;
  /// Which of several ports is the coordinator's is not known yet.
  [[nodiscard]] bool seeks() const { return !welcomed_once_ && !settings_.further_ports.empty(); }
  [[nodiscard]] Duration answer_limit() const {
    return seeks() || !settings_.endpoints.empty() ? seek_limit : welcome_limit;
  }
  [[nodiscard]] bool has_token() const { return settings_.has_token; }
  [[nodiscard]] Duration jittered(Duration duration);
  void act(link::Action action) { actions_.push_back(std::move(action)); }
  void tell(CoordinatorMessage message) { act(link::Tell{std::move(message)}); }

  CoordinatorLinkSettings settings_;
  std::vector<link::Action> actions_;
  std::uint64_t chance_;
  std::uint64_t next_line_ = 0;

  Standing standing_;
  std::optional<Leave> leave_;
  std::optional<Leave> void_leave_;  ///< said on this line, and not meant any more
  std::optional<TimePoint> leave_until_;
  std::optional<Placement> former_;
  int incarnation_ = 0;
  bool ending_ = false;  ///< End was told; the line stays, for the verdict may become more urgent
  bool kill_told_ = false;
  bool over_ = false;  ///< nothing is left to do

  std::optional<LineId> dialling_;  ///< at most one of these two is there
  std::optional<Attempt> attempt_;
  std::optional<LineId> line_;  ///< welcome, and in use
  TimePoint line_since_;        ///< the last welcome
  bool line_answered_ = false;  ///< a keep-alive on it was answered
  bool embedded_ = false;       ///< the coordinator lives and dies with an agent
  bool welcomed_once_ = false;
  std::size_t port_at_ = 0;  ///< 0: the endpoint's is dialled, else one behind it in further_ports

  std::deque<Endpoint> told_;       ///< where the coordinator is, as we were told, in the order of trying
  std::vector<Endpoint> directed_;  ///< the last that Directed named
  std::size_t place_at_ = 0;        ///< of settings_.endpoints, which is dialled next where nobody told us
  std::optional<Endpoint> dialled_place_ = {};  ///< of the attempt, or of the line that came of it
  std::optional<Endpoint> line_place_ = {};  ///< of the line in use, or of the last one
  int hops_ = 0;                    ///< how often we were sent on since anybody welcomed us
  std::int64_t greatest_term_ = 0;  ///< of all that were met
  std::int64_t line_term_ = 0;      ///< of the line in use, or of the last one
  bool broke_ = false;              ///< that line broke: if its address refuses us, it has ended
  bool doubts_ = false;             ///< said since somebody was sure
  bool unseated_ = false;           ///< the coordinator of the line in use does not know whether it has the seat
  std::uint64_t seen_ = 0;          ///< number of the newest answer by the line in use

  TimePoint out_since_;  ///< the endpoint is out of reach, while there is no line
  TimePoint retry_at_;
  Duration retry_delay_ = retry_first;
  std::optional<TimePoint> foreign_since_;
  std::optional<TimePoint> mute_since_;  ///< it accepts connections, and that is all
  std::string last_trouble_;
  std::string told_trouble_;
  int lost_code_ = exit_code::unreachable;

  TimePoint heard_of_;                    ///< sending of the last keep-alive that was answered
  bool ended_ = false;                    ///< the coordinator that answered it has ended, and dialling is refused
  std::optional<TimePoint> returned_at_;  ///< first welcome after that
  TimePoint keep_alive_at_;
  std::uint64_t keep_alive_number_ = 0;
  std::deque<Asked> unanswered_;

  std::optional<ProgressReport> report_;   ///< of the round that runs
  std::optional<std::uint64_t> examined_;  ///< Examine that came by the line in use and is not answered
  bool arrivals_asked_ = false;            ///< the same of arrivals
  ReportPacing node_report_;
  EventAllowance events_;
  std::set<std::uint64_t> asked_;  ///< numbers of what came by the line in use and is not answered
  TimePoint awake_{};              ///< of the step that is being taken
  Duration suspended_{0};          ///< in all, when clock_ was added to last
  ClockOffset clock_;
  ClockOffset day_;
};

}  // namespace torchup

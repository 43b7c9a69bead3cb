#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "launcher/core/scheduler/hostfile.hpp"
#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/link_codec.hpp"

/// The front of a fan-out (--hosts and its like): which hosts are started, tried again and told to end, and with which
/// code it ends. Who has which place in the job is the coordinator's decision (rendezvous/core/round); the front tells
/// it who may still come. Pure; the shell is launcher/os/front.
namespace torchup {

inline constexpr int fan_out_starts_max = 32;  ///< at once: commands that were started and have not greeted
inline constexpr Duration hello_patience = std::chrono::seconds{30};  ///< from a command's start to its Hello
/// A host that has worked so long is as one that never failed.
inline constexpr Duration host_forgiven_after = std::chrono::minutes{10};
/// From the kill of an agent to its end, which the far end of its link tells.
inline constexpr Duration killed_patience = std::chrono::seconds{15};

/// One start of a host's command. A host that is started again has another.
using HostLink = Strong<struct HostLinkTag, std::uint64_t>;

namespace fan {

// Events.

struct Begin {};
struct HelloCame {
  HostLink link;
  LinkHello hello = {};
};
struct RefusalCame {
  HostLink link;
  LinkRefuse refusal = {};
};
/// The agent there has ended, and all its output was shown.
struct EndCame {
  HostLink link;
  int exit_code = 0;
};
/// The link ended without an Ended, or its command could not be started, or it was silent for too long.
struct Broken {
  HostLink link;
  std::string why = {};               ///< "its ssh ended with 255", with what it said last
  std::optional<int> exit_code = {};  ///< of the command, where that has ended
};
/// Whoever is watched for hosts has another list.
struct Listed {
  std::vector<Host> hosts = {};
};
struct SignalCame {
  int number = 0;
};
/// The coordinator in the front has given the verdict.
struct JobOver {
  int exit_code = 0;
};
/// Whoever reads our output stands still, and hosts wait for that; or not any more.
struct OutputHeld {
  bool held = false;
};
struct Wake {};
using Event =
    std::variant<Begin, HelloCame, RefusalCame, EndCame, Broken, Listed, SignalCame, JobOver, OutputHeld, Wake>;

// Actions.

struct Start {
  HostLink link;
  Host host = {};
  int node = 0;  ///< LinkPlan::node
  friend bool operator==(const Start&, const Start&) = default;
};
struct Send {
  HostLink link;
  FrontMessage message;
  friend bool operator==(const Send&, const Send&) = default;
};
/// Its command is not needed any more: closed and ended. Nothing is heard of that link afterwards.
struct Close {
  HostLink link;
  bool left = false;  ///< its agent has ended, or was told to, while the job went on
  friend bool operator==(const Close&, const Close&) = default;
};
/// For the coordinator in the front: on so many hosts an agent is, or may come to be; the last call need not wait for
/// more. With `exit_code` the job is over, for those too that join only now.
struct Expect {
  int agents = 0;
  std::optional<int> exit_code = {};
  std::string reason = {};
  bool others_come = false;  ///< in the place of those that leave: so few are no end of the job
  friend bool operator==(const Expect&, const Expect&) = default;
};
struct Say {
  enum class Level : std::uint8_t { info, warning, error };
  Level level = Level::info;
  std::string text = {};
  friend bool operator==(const Say&, const Say&) = default;
};
/// The last action: no link is open.
struct Finish {
  int exit_code = 0;
  friend bool operator==(const Finish&, const Finish&) = default;
};
using Action = std::variant<Start, Send, Close, Expect, Say, Finish>;

}  // namespace fan

struct FanOutSettings {
  std::vector<Host> hosts = {};  ///< with discovery: may be empty
  int min_nodes = 1;
  std::string version = {};  ///< of our program: another one there is refused with 68
  /// The coordinator lives in the front. Else nodes meet at an endpoint elsewhere, and when too few are left the front
  /// ends the others itself.
  bool own_coordinator = true;
  /// Hosts come and go (--host-discovery): one that fails is tried again and does not end the job.
  bool discovers = false;
  Duration cooldown_min = std::chrono::seconds{10};
  Duration cooldown_max = std::chrono::seconds{300};
  Duration join_timeout = std::chrono::seconds{600};  ///< how long a job may stay without any host
  std::vector<int> end_signals = {};                  ///< that end the job, as for an agent
  std::vector<int> drain_signals = {};                ///< that make workers save first, which takes its time
  /// How long an agent may take to end after the job before people are told of it, and before it is killed.
  Duration end_told = std::chrono::seconds{70};
  Duration end_limit = std::chrono::seconds{120};
};

class FanOut {
 public:
  explicit FanOut(FanOutSettings settings);

  /// Applies `event`, then everything that is due at `now`. `now` never goes backwards.
  [[nodiscard]] std::vector<fan::Action> step(const fan::Event& event, TimePoint now);
  /// When to send the next Wake if nothing else happens; nothing while only an event can change anything.
  [[nodiscard]] std::optional<TimePoint> deadline() const;
  [[nodiscard]] bool finished() const { return finished_; }

 private:
  enum class State : std::uint8_t {
    waiting,   ///< for its turn to be started
    starting,  ///< its Hello is awaited
    linked,
    leaving,  ///< it was told to, for it is not wanted any more
    cooling,  ///< with discovery: it has failed, and is tried again at retry_at
    over,     ///< it has failed or ended
  };
  /// What was done about an agent that does not end.
  enum class Urged : std::uint8_t { no, told, killed };
  struct Entry {
    Host host;
    int node = 0;
    State state = State::waiting;
    HostLink link{0};                            ///< of the newest start
    TimePoint since{};                           ///< of the state
    Duration cooldown{0};                        ///< after its next failure
    bool wanted = true;                          ///< with discovery: the newest list has it
    std::optional<TimePoint> to_end_since = {};  ///< its agent has been told to end
    Urged urged = Urged::no;
    bool drained = false;  ///< its agent has been told to let its workers save
  };

  void on(const fan::Begin&, TimePoint now);
  void on(const fan::HelloCame& event, TimePoint now);
  void on(const fan::RefusalCame& event, TimePoint now);
  void on(const fan::EndCame& event, TimePoint now);
  void on(const fan::Broken& event, TimePoint now);
  void on(const fan::Listed& event, TimePoint now);
  void on(const fan::SignalCame& event, TimePoint now);
  void on(const fan::JobOver& event, TimePoint now);
  void on(const fan::OutputHeld& event, TimePoint now);
  void on(const fan::Wake&, TimePoint) {}

  void add(const Host& host);
  void due(TimePoint now);
  void start_some(TimePoint now);
  void fail(Entry& entry, int exit_code, const std::string& what, TimePoint now);
  void dismiss(Entry& entry, TimePoint now);
  void left(Entry& entry, TimePoint now);
  void give_up(int exit_code, std::string reason, TimePoint now);
  void await_ends(TimePoint now);
  void urge(TimePoint now);
  [[nodiscard]] std::optional<TimePoint> urged_next(const Entry& entry) const;
  void close_unlinked();
  /// `alone`: its agent has ended and the job has not.
  void close(const Entry& entry, bool alone = false);
  void foretell();
  void finish_if_over();
  [[nodiscard]] Entry* find(HostLink link);
  /// Hosts on which an agent is, or may come to be.
  [[nodiscard]] int candidates() const;
  [[nodiscard]] int count(State state) const;
  [[nodiscard]] static bool works(const Entry& entry);
  [[nodiscard]] static bool is_open(State state) {
    return state == State::starting || state == State::linked || state == State::leaving;
  }
  void enter(Entry& entry, State state, TimePoint now) {
    entry.state = state;
    entry.since = now;
  }
  void act(fan::Action action) { actions_.push_back(std::move(action)); }
  void send_to_all(int signal);

  FanOutSettings settings_;
  std::vector<fan::Action> actions_;
  std::vector<Entry> entries_;  ///< in the order of the user's list
  int next_node_ = 0;
  std::uint64_t next_link_ = 0;
  int foretold_ = -1;                             ///< Expect::agents, as told last
  std::optional<int> code_ = {};                  ///< the verdict's, or the front's own
  std::optional<int> first_failure_ = {};         ///< code of the first host that failed
  std::optional<int> ended_ = {};                 ///< of the last agent that has ended by itself
  bool ending_ = false;                           ///< nothing is started any more
  std::optional<int> signalled_ = {};             ///< the first signal that ends the job
  std::optional<TimePoint> insist_at_ = {};       ///< then those who have not heard that the job is over are signalled
  std::optional<TimePoint> deserted_since_ = {};  ///< with discovery: no host works
  bool held_ = false;                             ///< OutputHeld
  bool finished_ = false;
};

}  // namespace torchup

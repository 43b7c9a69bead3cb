#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
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
struct Wake {};
using Event = std::variant<Begin, HelloCame, RefusalCame, EndCame, Broken, Listed, SignalCame, JobOver, Wake>;

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
  friend bool operator==(const Close&, const Close&) = default;
};
/// For the coordinator in the front: so many agents may still join. With `exit_code` set, those that are there and
/// those that may come are too few, and the job ends with it.
struct Expect {
  int more = 0;
  std::optional<int> exit_code = {};
  std::string reason = {};
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
  bool finished_ = false;
};

}  // namespace torchup

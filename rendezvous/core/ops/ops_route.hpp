#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/round/orders.hpp"

/// From a request to what is asked, and whether he who asks may: the one place where a right is decided.
///
/// The same routes are served on a unix socket, on a rendezvous port and on a status port, and by one node for another.
/// Pure: what came is an argument, sockets are somebody else's.
namespace torchup {

/// What somebody may do; each includes those before it.
enum class Right : std::uint8_t {
  none,     ///< ask whether this process is well, and for the page's file, in which there is no data
  read,     ///< see jobs, without what their workers or users wrote (withheld.hpp)
  control,  ///< that too, and steer
};
[[nodiscard]] std::string_view to_text(Right right);

/// Who has come, by what the kernel says.
struct OpsPeer {
  /// The user at the other end of a unix socket. Nobody: the peer came over TCP.
  struct User {
    std::uint32_t uid = 0;
    std::string name = {};  ///< empty: he has none
  };
  std::optional<User> user = {};
  std::string address = {};  ///< over TCP: numeric, without port
  bool by_loopback = false;  ///< over TCP: by which no other machine comes
  bool encrypted = false;    ///< over TCP: by https
};

/// What a door wants of those who come.
struct OpsAccess {
  std::uint32_t own_uid = 0;
  std::string control_token = {};  ///< the job's; empty: there is none, here and below
  std::string read_token = {};
  std::string page_token = {};               ///< of a page that was opened on demand: control
  std::vector<std::string> host_names = {};  ///< that `Host` may be without a token: this machine's, --status-host
  bool https = false;                        ///< is served here: what others ask without it is not answered
};

/// A request without its body, as it came.
struct OpsRequest {
  using Header = std::pair<std::string, std::string>;
  std::string method = {};
  std::string target = {};           ///< "/v1/jobs/a%2Fb/events?since=3"
  bool http_1_1 = true;              ///< else HTTP/1.0, which knows no Host
  std::vector<Header> headers = {};  ///< in their order; a name's case does not matter
};

/// A request that is not performed, as it is answered.
struct Refusal {
  int status = 400;
  std::string code = {};     ///< for programs: "no_such_job"
  std::string message = {};  ///< for people: what was wrong with what, and what can be done
  std::string allow = {};    ///< of a 405: the methods that are served there
  friend bool operator==(const Refusal&, const Refusal&) = default;
};
/// `{"error": {"code": …, "message": …}}`, whatever bytes are in them.
[[nodiscard]] std::string error_body(const Refusal& refusal);
/// Headers beside those of every answer: `Allow` of a 405, `WWW-Authenticate` of a 401.
[[nodiscard]] std::vector<OpsRequest::Header> refusal_headers(const Refusal& refusal);

[[nodiscard]] Refusal no_such_job(std::string_view run_id);
[[nodiscard]] Refusal no_such_rank(Rank rank);
[[nodiscard]] Refusal body_too_long();

template <class T>
using OrRefusal = std::variant<T, Refusal>;

/// Somebody who is let in.
struct OpsCaller {
  Right right = Right::none;
  std::string by = {};       ///< for records: "user u1000 (uid 1000)", "token from 10.0.0.7"; empty: it is not known
  bool proved = false;       ///< he sent a token that is right, or came by the unix socket
  bool by_socket = false;    ///< he came by the unix socket
  bool token_helps = false;  ///< there is a token with which he may more
  std::string node = {};     ///< id of the node that asks for him; empty: he asks here
};

enum class OpsRoute : std::uint8_t {
  healthz,
  readyz,
  metrics,
  page,
  status,
  jobs,
  job,
  events,
  job_stream,
  jobs_stream,
  log,
  stacks,
  order,
  open_page,
};

enum class LogStream : std::uint8_t { out, err };

inline constexpr std::uint64_t wait_seconds_max = 20;
inline constexpr std::size_t ops_header_bytes_max = 8 * 1024;
inline constexpr std::size_t ops_body_bytes_max = 64 * 1024;

/// What is asked, by somebody who may. What a route does not have is as it is here.
struct OpsCall {
  OpsRoute route = OpsRoute::healthz;
  OpsCaller caller = {};
  std::string target = {};  ///< as it was asked, for whom it is passed on to
  std::string body = {};    ///< likewise, after read_body
  bool head = false;        ///< the answer's headers alone
  std::string run_id = {};
  std::optional<Rank> rank = {};
  LogStream stream = LogStream::out;
  std::uint64_t since = 0;   ///< events behind this one
  std::uint64_t offset = 0;  ///< of a log: the first byte
  Duration wait{0};          ///< how long to wait until there is something
  bool native = false;       ///< stacks: native frames too
  /// A stream goes on behind this event (Last-Event-ID); what was no number is one that never was.
  std::optional<std::uint64_t> behind = {};
  std::size_t bytes_max = std::size_t{1} << 20U;  ///< of a list of events
  std::optional<Order> order = {};                ///< whole after read_order
};

/// Who asks. Over TCP a token counts in the Authorization header alone, and who sends none must have named this machine
/// in `Host`: a browser that was led here by a foreign page names that one's.
///
/// Refusals: 400 where headers contradict themselves, 401 for a token that is wrong, wherever it comes from, 403 for
/// another user at a unix socket, 421 for a foreign `Host`.
[[nodiscard]] OrRefusal<OpsCaller> admitted(const OpsRequest& request, const OpsPeer& peer, const OpsAccess& access);

/// What he asks, when he may. The body is not needed; whether there must be one says `takes_body`.
///
/// Refusals: 400, 401, 403, 404, 405, 413, 415.
[[nodiscard]] OrRefusal<OpsCall> routed(const OpsRequest& request, const OpsCaller& caller);

/// Whether a body follows which is read: a JSON object.
[[nodiscard]] bool takes_body(const OpsCall& call);
/// Fills in what the body says. Members that an order has not, or of another type, are a 400, beyond
/// ops_body_bytes_max it is a 413.
[[nodiscard]] std::optional<Refusal> read_body(OpsCall& call, std::string_view body);

/// At an agent whose rendezvous is torchrun's, which obeys no order: all that can be done is to end this node, as
/// SIGTERM does. Everything else that is ordered is a 501; what is no order is not refused.
[[nodiscard]] std::optional<Refusal> refused_at_foreign_store(const OpsCall& call);

/// The first header of that name, in lower case here.
[[nodiscard]] std::optional<std::string_view> header(const OpsRequest& request, std::string_view name);

}  // namespace torchup

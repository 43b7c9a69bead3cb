#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/strong.hpp"

/// What is asked of etcd and answered by it, as bodies of its JSON gateway, POST /v3/..., which etcd 3.4 to 3.6 share.
///
/// Pure: no connection, no retry. Keys and values are bytes here and base64 there; 64-bit numbers are decimal strings
/// there, and a field that is left out is zero. An answer is a stranger's: whatever it lacks, has twice or has of
/// another kind than was asked for makes it an Error, never a guess. Fields that a newer etcd adds are passed over.
namespace torchup::etcd {

using Revision = Strong<struct RevisionTag, std::int64_t>;  ///< counts etcd's changes, from 1; 0: of no key, or unknown
using LeaseId = Strong<struct LeaseIdTag, std::int64_t>;    ///< 0: none

inline constexpr std::size_t operations_max = 128;          ///< in a txn, of each branch: etcd's own limit
inline constexpr std::size_t request_bytes_max = 1500000;   ///< of keys and values; etcd takes 1.5 MiB with its framing
inline constexpr std::size_t answer_bytes_max = 16U << 20;  ///< of a body, or of a line of a watch
inline constexpr std::size_t entries_max = 65536;           ///< of a range
inline constexpr std::size_t login_token_bytes_max = 4096;

struct Range {
  std::string key = {};
  std::string range_end = {};  ///< the first key behind the range; empty: that key alone
  std::int64_t limit = 0;      ///< 0: none
  Revision revision{0};        ///< 0: the newest, read linearizably
  friend bool operator==(const Range&, const Range&) = default;
};
struct Put {
  std::string key = {};
  std::string value = {};
  LeaseId lease{0};
  friend bool operator==(const Put&, const Put&) = default;
};
struct Delete {
  std::string key = {};
  std::string range_end = {};
  friend bool operator==(const Delete&, const Delete&) = default;
};
using Operation = std::variant<Range, Put, Delete>;

/// That the key's last change has this revision; 0: that there is no such key.
struct Compare {
  std::string key = {};
  Revision changed{0};
  friend bool operator==(const Compare&, const Compare&) = default;
};
struct Txn {
  std::vector<Compare> compares = {};
  std::vector<Operation> then = {};
  std::vector<Operation> otherwise = {};
  friend bool operator==(const Txn&, const Txn&) = default;
};

/// All keys that begin with `prefix`, which is not empty.
[[nodiscard]] Range range_of_prefix(std::string prefix);
[[nodiscard]] Delete delete_prefix(std::string prefix);

/// One request: POST `path` with `body`.
struct Request {
  std::string path = {};
  std::string body = {};
  friend bool operator==(const Request&, const Request&) = default;
};
[[nodiscard]] Request request(const Range& range);
/// Errors: errc::limit_exceeded beyond operations_max or request_bytes_max, which etcd would refuse.
[[nodiscard]] Result<Request> request(const Txn& txn);
[[nodiscard]] Request grant_request(std::int64_t ttl_s);
[[nodiscard]] Request keep_alive_request(LeaseId lease);
[[nodiscard]] Request revoke_request(LeaseId lease);
/// Changes of `key` from `from` on; the answer is a stream. A member without a leader ends it only where the request
/// has the header `Grpc-Metadata-hasleader: true`.
[[nodiscard]] Request watch_request(std::string_view key, Revision from);
[[nodiscard]] Request authenticate_request(std::string_view user, std::string_view password);
[[nodiscard]] Request status_request();

struct Header {
  std::uint64_t cluster = 0;  ///< never 0
  std::uint64_t member = 0;
  Revision revision{0};  ///< 0 only where a watch was cancelled
  friend bool operator==(const Header&, const Header&) = default;
};
struct Entry {
  std::string key = {};
  std::string value = {};
  Revision changed{0};
  LeaseId lease{0};
  friend bool operator==(const Entry&, const Entry&) = default;
};
struct RangeAnswer {
  Header header = {};
  std::vector<Entry> entries = {};  ///< by key, all within what was asked for
  bool more = false;                ///< there are more than the limit
  friend bool operator==(const RangeAnswer&, const RangeAnswer&) = default;
};
struct PutAnswer {
  friend bool operator==(const PutAnswer&, const PutAnswer&) = default;
};
struct DeleteAnswer {
  std::int64_t deleted = 0;
  friend bool operator==(const DeleteAnswer&, const DeleteAnswer&) = default;
};
using OperationAnswer = std::variant<RangeAnswer, PutAnswer, DeleteAnswer>;
struct TxnAnswer {
  Header header = {};
  bool succeeded = false;                     ///< all compares held
  std::vector<OperationAnswer> answers = {};  ///< one for each operation of the branch, of its kind
  friend bool operator==(const TxnAnswer&, const TxnAnswer&) = default;
};
struct LeaseAnswer {
  Header header = {};
  LeaseId lease{0};
  std::int64_t ttl_s = 0;  ///< what etcd granted; 0, of a keep-alive alone: the lease is dead
  friend bool operator==(const LeaseAnswer&, const LeaseAnswer&) = default;
};
struct StatusAnswer {
  Header header = {};
  std::string version = {};
  std::uint64_t leader = 0;  ///< 0: the member knows none
  friend bool operator==(const StatusAnswer&, const StatusAnswer&) = default;
};
struct Change {
  Entry entry = {};  ///< of a deletion only `key` and `changed`
  bool deleted = false;
  friend bool operator==(const Change&, const Change&) = default;
};
struct WatchAnswer {
  Header header = {};
  bool created = false;
  bool canceled = false;
  std::string reason = {};  ///< of the cancellation, as etcd says it, fit to be shown
  Revision compacted{0};    ///< of a cancellation for compaction: the oldest that is left
  std::vector<Change> changes = {};
  friend bool operator==(const WatchAnswer&, const WatchAnswer&) = default;
};

// Answers with status 200. Errors: errc::bad_frame with what is wrong; errc::limit_exceeded. For other statuses see
// etcd_failure.
[[nodiscard]] Result<RangeAnswer> read_range(std::string_view body, const Range& asked);
[[nodiscard]] Result<TxnAnswer> read_txn(std::string_view body, const Txn& asked);
[[nodiscard]] Result<LeaseAnswer> read_grant(std::string_view body);
[[nodiscard]] Result<LeaseAnswer> read_keep_alive(std::string_view body, LeaseId asked);
[[nodiscard]] Result<StatusAnswer> read_status(std::string_view body);
/// The token, which goes bare into the header Authorization: printable ASCII without blanks.
[[nodiscard]] Result<std::string> read_login(std::string_view body);
/// One line of a watch's stream. `key`: the one that is watched.
[[nodiscard]] Result<WatchAnswer> read_watch(std::string_view line, std::string_view key);

}  // namespace torchup::etcd

#include "rendezvous/core/etcd/state_pieces.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "rendezvous/core/etcd/etcd_fields.hpp"
#include "rendezvous/core/text/checksum.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup::etcd {
namespace {

constexpr std::int64_t head_version = 1;
constexpr std::size_t head_bytes_max = 65536;

std::optional<RecordedVerdict> read_verdict(Fields& head) {
  const nlohmann::json* object = head.object("verdict");
  if (object == nullptr) return {};
  Fields fields{*object};
  const std::int64_t code = fields.plain_number("exit_code");
  RecordedVerdict verdict{.exit_code = static_cast<int>(code), .reason = std::string{fields.text("reason")}};
  if (code < 0 || code > 255) fields.wrong("exit_code is none");
  if (fields.error()) head.wrong(*fields.error());
  return verdict;
}

std::uint64_t pieces_of(std::uint64_t bytes) { return std::max<std::uint64_t>(1, (bytes - 1) / piece_bytes_max + 1); }

std::uint64_t read_sum(Fields& head) {
  const std::string_view digits = head.text("sum");
  std::uint64_t sum = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), sum, 16);
  if (digits.size() != 16 || error != std::errc{} || end != digits.data() + 16) head.wrong("sum is none");
  return sum;
}

/// The pieces that one head names, together.
Result<std::string> together(const Scope& scope, const RunId& run_id, const StateHead& head,
                             const std::map<std::string_view, std::string_view>& values) {
  std::string bytes;
  for (std::uint64_t i = 0; i < head.pieces; ++i) {
    const auto found = values.find(scope.piece(run_id, head.serial, i));
    if (found == values.end()) return fail(errc::bad_frame, fmt::format("its piece {} is missing", i));
    bytes += found->second;
  }
  if (bytes.size() != head.bytes) {
    return fail(errc::bad_frame, fmt::format("it has {} bytes instead of {}", bytes.size(), head.bytes));
  }
  if (checksum(bytes) != head.sum) return fail(errc::bad_frame, "its checksum is wrong");
  return bytes;
}

}  // namespace

Error unusable_state(std::string_view key, const Error& why) {
  const std::string shown = printable_start(key, 1024);
  return fail(why.code == make_error_code(errc::wrong_version) ? errc::wrong_version : errc::bad_frame,
              fmt::format("the state at {0} in etcd cannot be used: {1} (to give the job up: etcdctl del {0} && "
                          "etcdctl del --prefix {0}/)",
                          shown, why.context));
}

std::string encode_head(const StateHead& head) {
  nlohmann::ordered_json value{{"version", head_version},
                               {"serial", head.serial},
                               {"pieces", head.pieces},
                               {"bytes", head.bytes},
                               {"sum", fmt::format("{:016x}", head.sum)}};
  value["verdict"] = nullptr;
  if (head.verdict) value["verdict"] = {{"exit_code", head.verdict->exit_code}, {"reason", head.verdict->reason}};
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<StateHead> read_head(std::string_view value) {
  const auto object = parse_object(value, head_bytes_max);
  if (!object) return object.error();
  Fields fields{*object};
  const std::int64_t version = fields.plain_number("version");
  if (!fields.error() && version != head_version) {
    return fail(errc::wrong_version,
                fmt::format("it is of version {}, and this release reads {}", version, head_version));
  }
  const std::int64_t serial = fields.plain_number("serial");
  const std::int64_t pieces = fields.plain_number("pieces");
  const std::int64_t bytes = fields.plain_number("bytes");
  if (serial < 1) fields.wrong("serial is below 1");
  if (bytes < 1) fields.wrong("bytes is below 1");
  if (pieces < 1 || static_cast<std::uint64_t>(pieces) > pieces_max) fields.wrong("pieces is none of 1 to 1024");
  if (!fields.error() && static_cast<std::uint64_t>(pieces) != pieces_of(static_cast<std::uint64_t>(bytes))) {
    fields.wrong("pieces and bytes contradict each other");
  }
  StateHead head{.serial = static_cast<std::uint64_t>(serial),
                 .pieces = static_cast<std::uint64_t>(pieces),
                 .bytes = static_cast<std::uint64_t>(bytes),
                 .sum = read_sum(fields),
                 .verdict = read_verdict(fields)};
  if (fields.error()) return *fields.error();
  return head;
}

Result<std::vector<Txn>> write_state(const Scope& scope, const StateWrite& state) {
  const StateHead head{.serial = state.serial,
                       .pieces = pieces_of(state.bytes.size()),
                       .bytes = state.bytes.size(),
                       .sum = checksum(state.bytes),
                       .verdict = state.verdict};
  if (state.bytes.empty()) return fail(errc::bad_value, "a job's state is never empty");
  if (head.pieces > pieces_max) {
    return fail(errc::limit_exceeded,
                fmt::format("a job's state of {} bytes has more than {} pieces", state.bytes.size(), pieces_max));
  }
  const std::string head_key = scope.head(state.run_id);
  std::vector<Txn> txns;
  for (std::uint64_t i = 0; i < head.pieces; ++i) {
    Txn txn{.compares = {{scope.seat(), state.term}, {head_key, state.head}}};
    std::string piece{state.bytes.substr(i * piece_bytes_max, piece_bytes_max)};
    txn.then.emplace_back(Put{scope.piece(state.run_id, state.serial, i), std::move(piece), state.lease});
    txns.push_back(std::move(txn));
  }
  // All other serials: those before this one's pieces and those behind, by the order of keys.
  Txn& last = txns.back();
  const Delete ours = delete_prefix(scope.pieces(state.run_id, state.serial));
  const Delete all = delete_prefix(head_key + "/");
  last.then.emplace_back(Put{head_key, encode_head(head), state.lease});
  last.then.emplace_back(Delete{all.key, ours.key});
  last.then.emplace_back(Delete{ours.range_end, all.range_end});
  return txns;
}

Result<std::vector<ReadState>> read_states(const Scope& scope, std::span<const Entry> entries) {
  std::map<std::string_view, std::string_view> pieces;
  std::vector<ReadState> states;
  for (const Entry& entry : entries) {
    auto place = scope.place(entry.key);
    if (!place) return unusable_state(entry.key, fail(errc::bad_frame, "its key is none of ours"));
    if (!place->head) {
      pieces.emplace(entry.key, entry.value);
      continue;
    }
    auto head = read_head(entry.value);
    if (!head) return unusable_state(entry.key, head.error());
    states.push_back({.run_id = place->run_id, .head = std::move(*head), .changed = entry.changed});
  }
  for (ReadState& state : states) {
    auto bytes = together(scope, state.run_id, state.head, pieces);
    if (!bytes) return unusable_state(scope.head(state.run_id), bytes.error());
    state.bytes = std::move(*bytes);
  }
  return states;
}

}  // namespace torchup::etcd

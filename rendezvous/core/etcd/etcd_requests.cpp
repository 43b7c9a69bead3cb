#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "rendezvous/core/etcd/etcd_messages.hpp"
#include "rendezvous/core/text/base64.hpp"

namespace torchup::etcd {
namespace {

using nlohmann::ordered_json;

std::string number(std::int64_t value) { return std::to_string(value); }

/// The first key that does not begin with `prefix`; what is behind all keys is said by a zero byte.
std::string behind(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (prefix.empty()) return std::string(1, '\0');
  prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
  return prefix;
}

ordered_json keys(const std::string& key, const std::string& range_end) {
  ordered_json fields{{"key", to_base64(key)}};
  if (!range_end.empty()) fields["range_end"] = to_base64(range_end);
  return fields;
}

ordered_json fields_of(const Range& range) {
  ordered_json fields = keys(range.key, range.range_end);
  if (range.limit != 0) fields["limit"] = number(range.limit);
  if (range.revision != Revision{0}) fields["revision"] = number(range.revision.value());
  return fields;
}

struct OperationFields {
  ordered_json operator()(const Range& range) const { return {{"request_range", fields_of(range)}}; }
  ordered_json operator()(const Put& put) const {
    ordered_json fields{{"key", to_base64(put.key)}, {"value", to_base64(put.value)}};
    if (put.lease != LeaseId{0}) fields["lease"] = number(put.lease.value());
    return {{"request_put", std::move(fields)}};
  }
  ordered_json operator()(const Delete& erased) const {
    return {{"request_delete_range", keys(erased.key, erased.range_end)}};
  }
};

ordered_json list_of(const std::vector<Operation>& operations) {
  ordered_json list = ordered_json::array();
  for (const Operation& operation : operations) list.push_back(std::visit(OperationFields{}, operation));
  return list;
}

struct OperationBytes {
  std::size_t operator()(const Range& range) const { return range.key.size() + range.range_end.size(); }
  std::size_t operator()(const Put& put) const { return put.key.size() + put.value.size(); }
  std::size_t operator()(const Delete& erased) const { return erased.key.size() + erased.range_end.size(); }
};

std::size_t bytes_of(const Txn& txn) {
  std::size_t bytes = 0;
  for (const Compare& compare : txn.compares) bytes += compare.key.size();
  for (const Operation& operation : txn.then) bytes += std::visit(OperationBytes{}, operation);
  for (const Operation& operation : txn.otherwise) bytes += std::visit(OperationBytes{}, operation);
  return bytes;
}

Request lease_request(const char* path, LeaseId lease) {
  return {path, ordered_json{{"ID", number(lease.value())}}.dump()};
}

}  // namespace

Range range_of_prefix(std::string prefix) {
  std::string end = behind(prefix);
  return {.key = std::move(prefix), .range_end = std::move(end)};
}

Delete delete_prefix(std::string prefix) {
  std::string end = behind(prefix);
  return {.key = std::move(prefix), .range_end = std::move(end)};
}

Request request(const Range& range) { return {"/v3/kv/range", fields_of(range).dump()}; }

Result<Request> request(const Txn& txn) {
  if (txn.compares.size() > operations_max || txn.then.size() > operations_max ||
      txn.otherwise.size() > operations_max) {
    return fail(errc::limit_exceeded, fmt::format("a txn has more than {} operations", operations_max));
  }
  if (const std::size_t bytes = bytes_of(txn); bytes > request_bytes_max) {
    return fail(errc::limit_exceeded,
                fmt::format("a txn has {} bytes of keys and values; etcd takes {}", bytes, request_bytes_max));
  }
  ordered_json compares = ordered_json::array();
  for (const Compare& compare : txn.compares) {
    compares.push_back({{"key", to_base64(compare.key)},
                        {"target", "MOD"},
                        {"result", "EQUAL"},
                        {"mod_revision", number(compare.changed.value())}});
  }
  const ordered_json body{
      {"compare", std::move(compares)}, {"success", list_of(txn.then)}, {"failure", list_of(txn.otherwise)}};
  return Request{"/v3/kv/txn", body.dump()};
}

Request grant_request(std::int64_t ttl_s) { return {"/v3/lease/grant", ordered_json{{"TTL", number(ttl_s)}}.dump()}; }

Request keep_alive_request(LeaseId lease) { return lease_request("/v3/lease/keepalive", lease); }

Request revoke_request(LeaseId lease) { return lease_request("/v3/lease/revoke", lease); }

Request watch_request(std::string_view key, Revision from) {
  ordered_json fields{{"key", to_base64(key)}};
  if (from != Revision{0}) fields["start_revision"] = number(from.value());
  return {"/v3/watch", ordered_json{{"create_request", std::move(fields)}}.dump()};
}

/// A name that is no UTF-8 is none that etcd knows: it is asked for with the bytes replaced, and refused there.
Request authenticate_request(std::string_view user, std::string_view password) {
  const ordered_json body{{"name", user}, {"password", password}};
  return {"/v3/auth/authenticate", body.dump(-1, ' ', false, ordered_json::error_handler_t::replace)};
}

Request status_request() { return {"/v3/maintenance/status", "{}"}; }

}  // namespace torchup::etcd

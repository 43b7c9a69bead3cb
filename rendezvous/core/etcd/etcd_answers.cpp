#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/core/etcd/etcd_fields.hpp"
#include "rendezvous/core/etcd/etcd_messages.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup::etcd {
namespace {

using nlohmann::json;

/// Reads `body` with `read(fields)` unless it is none of etcd's objects.
template <class Read>
auto whole(std::string_view body, Read read) -> Result<decltype(read(std::declval<Fields&>()))> {
  const auto object = parse_object(body, answer_bytes_max);
  if (!object) return object.error();
  Fields fields{*object};
  auto answer = read(fields);
  if (fields.error()) return *fields.error();
  return answer;
}

/// The object that a streaming call's line has in it.
template <class Read>
auto streamed(std::string_view line, Read read) -> Result<decltype(read(std::declval<Fields&>()))> {
  return whole(line, [&](Fields& outer) -> decltype(read(std::declval<Fields&>())) {
    const json* result = outer.object("result");
    if (result == nullptr) {
      outer.wrong("it has no result");
      return {};
    }
    Fields fields{*result};
    auto answer = read(fields);
    if (fields.error()) outer.wrong(*fields.error());
    return answer;
  });
}

Header read_header(Fields& answer, bool revision_needed = true) {
  const json* object = answer.object("header");
  if (object == nullptr) {
    answer.wrong("it has no header");
    return {};
  }
  Fields fields{*object};
  const Header header{.cluster = fields.number<std::uint64_t>("cluster_id"),
                      .member = fields.number<std::uint64_t>("member_id"),
                      .revision = Revision{fields.number<std::int64_t>("revision")}};
  if (header.cluster == 0) fields.wrong("its header names no cluster");
  if (header.revision.value() < (revision_needed ? 1 : 0)) fields.wrong("its header has no revision");
  if (fields.error()) answer.wrong(*fields.error());
  return header;
}

Entry read_entry(Fields& within, const json& object, Revision newest) {
  Fields fields{object};
  Entry entry{.key = fields.bytes("key"),
              .value = fields.bytes("value"),
              .changed = Revision{fields.number<std::int64_t>("mod_revision")},
              .lease = LeaseId{fields.number<std::int64_t>("lease")}};
  if (entry.changed.value() < 1) fields.wrong("a key has no revision");
  if (entry.changed > newest) fields.wrong("a key is newer than the answer that has it");
  if (fields.error()) within.wrong(*fields.error());
  return entry;
}

bool covers(const Range& range, std::string_view key) {
  if (range.range_end.empty()) return key == range.key;
  return key >= range.key && (range.range_end == std::string_view{"\0", 1} || key < range.range_end);
}

RangeAnswer range_answer(Fields& fields, const Header& header, const Range& asked) {
  RangeAnswer answer{.header = header, .more = fields.flag("more")};
  const json& list = fields.array("kvs");
  if (list.size() > entries_max) {
    fields.wrong(fail(errc::limit_exceeded, fmt::format("it has more than {} keys", entries_max)));
    return answer;
  }
  if (asked.limit > 0 && list.size() > static_cast<std::size_t>(asked.limit)) fields.wrong("it has too many keys");
  if (answer.more && (asked.limit == 0 || list.empty())) fields.wrong("it has not all keys, though nobody limited it");
  for (const json& object : list) {
    Entry entry = read_entry(fields, object, header.revision);
    if (fields.error()) return answer;
    if (!covers(asked, entry.key)) fields.wrong("it has a key that was not asked for");
    if (!answer.entries.empty() && entry.key <= answer.entries.back().key) fields.wrong("its keys are out of order");
    answer.entries.push_back(std::move(entry));
  }
  return answer;
}

/// What one operation of a txn was answered. Left out by etcd is what has no field that is not zero.
class OperationReader {
 public:
  OperationReader(Fields& txn, const json& object, const Header& header) : txn_{txn}, outer_{object}, header_{header} {}

  OperationAnswer operator()(const Range& asked) {
    return inner("response_range", [&](Fields& fields) { return range_answer(fields, header_, asked); });
  }
  OperationAnswer operator()(const Put&) {
    return inner("response_put", [](Fields&) { return PutAnswer{}; });
  }
  OperationAnswer operator()(const Delete&) {
    return inner("response_delete_range", [](Fields& fields) {
      const DeleteAnswer answer{fields.number<std::int64_t>("deleted")};
      if (answer.deleted < 0) fields.wrong("deleted is below 0");
      return answer;
    });
  }

 private:
  template <class Read>
  OperationAnswer inner(const char* name, Read read) {
    const json* object = outer_.object(name);
    if (outer_.error()) txn_.wrong(*outer_.error());
    if (object == nullptr) {
      txn_.wrong(fmt::format("it lacks {}", name));
      return PutAnswer{};
    }
    Fields fields{*object};
    OperationAnswer answer = read(fields);
    if (fields.error()) txn_.wrong(*fields.error());
    return answer;
  }

  Fields& txn_;
  Fields outer_;
  const Header& header_;
};

LeaseAnswer lease_answer(Fields& fields) {
  const LeaseAnswer answer{.header = read_header(fields),
                           .lease = LeaseId{fields.number<std::int64_t>("ID")},
                           .ttl_s = fields.number<std::int64_t>("TTL")};
  if (answer.ttl_s < 0) fields.wrong("TTL is below 0");
  return answer;
}

Change read_change(Fields& watch, const json& object, std::string_view key, Revision newest) {
  Change change;
  Fields fields{object};
  const std::string_view type = fields.text("type");
  change.deleted = type == "DELETE";
  if (!change.deleted && !type.empty() && type != "PUT") fields.wrong("an event is neither PUT nor DELETE");
  if (const json* entry = fields.object("kv"); entry != nullptr) {
    change.entry = read_entry(fields, *entry, newest);
  } else {
    fields.wrong("an event has no key");
  }
  if (fields.error()) {
    watch.wrong(*fields.error());
  } else if (change.entry.key != key) {
    watch.wrong("an event has a key that is not watched");
  }
  return change;
}

}  // namespace

Result<RangeAnswer> read_range(std::string_view body, const Range& asked) {
  return whole(body, [&](Fields& fields) {
    const Header header = read_header(fields);
    return range_answer(fields, header, asked);
  });
}

Result<TxnAnswer> read_txn(std::string_view body, const Txn& asked) {
  return whole(body, [&](Fields& fields) {
    TxnAnswer answer{.header = read_header(fields), .succeeded = fields.flag("succeeded")};
    if (asked.compares.empty() && !answer.succeeded) fields.wrong("nothing was compared, and it did not hold");
    const std::vector<Operation>& operations = answer.succeeded ? asked.then : asked.otherwise;
    const json& list = fields.array("responses");
    if (list.size() != operations.size()) fields.wrong("it has not one response for each operation");
    for (std::size_t i = 0; i < operations.size() && !fields.error(); ++i) {
      OperationReader reader{fields, list[i], answer.header};
      answer.answers.push_back(std::visit(reader, operations[i]));
    }
    return answer;
  });
}

Result<LeaseAnswer> read_grant(std::string_view body) {
  return whole(body, [](Fields& fields) {
    const LeaseAnswer answer = lease_answer(fields);
    if (answer.lease == LeaseId{0} || answer.ttl_s == 0) fields.wrong("it grants no lease");
    return answer;
  });
}

Result<LeaseAnswer> read_keep_alive(std::string_view body, LeaseId asked) {
  while (!body.empty() && (body.back() == '\n' || body.back() == '\r')) body.remove_suffix(1);
  return streamed(body, [&](Fields& fields) {
    const LeaseAnswer answer = lease_answer(fields);
    if (answer.lease != asked) fields.wrong("it is another lease's");
    return answer;
  });
}

Result<StatusAnswer> read_status(std::string_view body) {
  return whole(body, [](Fields& fields) {
    StatusAnswer answer{.header = read_header(fields),
                        .version = printable_start(fields.text("version"), 64),
                        .leader = fields.number<std::uint64_t>("leader")};
    if (answer.version.empty()) fields.wrong("it names no version");
    return answer;
  });
}

Result<std::string> read_login(std::string_view body) {
  return whole(body, [](Fields& fields) {
    read_header(fields);
    std::string token{fields.text("token")};
    const bool fit = std::ranges::all_of(token, [](char letter) { return letter > ' ' && letter < '\x7f'; });
    if (token.empty() || token.size() > login_token_bytes_max || !fit) fields.wrong("it has no token that can be used");
    return token;
  });
}

Result<WatchAnswer> read_watch(std::string_view line, std::string_view key) {
  return streamed(line, [&](Fields& fields) {
    WatchAnswer answer{.created = fields.flag("created"), .canceled = fields.flag("canceled")};
    answer.header = read_header(fields, /*revision_needed=*/!answer.canceled);
    answer.reason = printable_start(fields.text("cancel_reason"));
    answer.compacted = Revision{fields.number<std::int64_t>("compact_revision")};
    const json& list = fields.array("events");
    if (list.size() > entries_max) fields.wrong(fail(errc::limit_exceeded, "it has too many events"));
    for (const json& object : list) {
      if (fields.error()) break;
      answer.changes.push_back(read_change(fields, object, key, answer.header.revision));
    }
    return answer;
  });
}

}  // namespace torchup::etcd

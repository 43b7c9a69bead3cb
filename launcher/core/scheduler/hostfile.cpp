#include "launcher/core/scheduler/hostfile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unordered_set>
#include <utility>

#include "launcher/core/text/text.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/text/hostlist.hpp"
#include "rendezvous/core/text/names.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

constexpr std::size_t npos = std::string_view::npos;

Result<int> read_slots(std::string_view text) {
  int slots = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), slots);
  if (code == std::errc{} && end == text.data() + text.size() && slots >= 1 && slots <= local_workers_max) return slots;
  return fail(errc::bad_value,
              fmt::format("'{}' is no number of workers from 1 to {}", printable_start(text), local_workers_max));
}

/// Cuts the next item off, at a comma outside brackets.
std::string_view take_item(std::string_view& list) {
  int depth = 0;
  std::size_t at = 0;
  for (; at < list.size() && (list[at] != ',' || depth > 0); ++at) {
    if (list[at] == '[') ++depth;
    if (list[at] == ']') --depth;
  }
  const std::string_view item = list.substr(0, at);
  list.remove_prefix(std::min(at + 1, list.size()));
  return item;
}

/// `[fe80::7]:8` without what stands behind the brackets; nothing where the brackets hold no address.
std::optional<std::string_view> take_v6(std::string_view& text) {
  const auto close = text.find(']');
  if (!text.starts_with('[') || close == npos || text.substr(0, close).find(':') == npos) return std::nullopt;
  const std::string_view address = text.substr(1, close - 1);
  text.remove_prefix(close + 1);
  return address;
}

/// The names that one item stands for, without its slots. Takes them off `text`.
Result<std::vector<std::string>> take_names(std::string_view& text) {
  if (const auto address = take_v6(text)) return std::vector{std::string{*address}};
  const auto bracket = text.rfind(']');
  const auto colon = text.find(':', bracket == npos ? 0 : bracket);
  const std::string_view names = text.substr(0, colon);
  text.remove_prefix(names.size());
  return expand_hostlist(names);
}

/// `[user@]names[:slots]`.
Result<std::vector<Host>> read_item(std::string_view item) {
  const auto at = item.rfind('@');
  const std::string user{item.substr(0, at == npos ? 0 : at + 1)};
  std::string_view rest = item.substr(user.size());
  auto names = take_names(rest);
  if (!names) return names.error();
  if (names->empty()) return fail(errc::bad_value, fmt::format("'{}' names no host", printable_start(item)));
  std::optional<int> slots;
  if (!rest.empty()) {
    if (rest.front() != ':') return fail(errc::bad_value, fmt::format("'{}' is no host", printable_start(item)));
    const auto read = read_slots(rest.substr(1));
    if (!read) return read.error();
    slots = *read;
  }
  std::vector<Host> hosts;
  for (const std::string& name : *names) hosts.push_back({user + name, slots, ""});
  return hosts;
}

/// Hosts so far, with what must hold for all of them together.
class HostCollection {
 public:
  Result<> add(Host host) {
    if (host.name.starts_with('-')) {
      return fail(errc::bad_value, fmt::format("the name '{}' begins with a dash", printable_start(host.name)));
    }
    if (const auto why = why_no_name(host.name); !why.empty() || host.name.find_first_of(blanks) != npos) {
      return fail(errc::bad_value, fmt::format("'{}' is no host's name", printable_start(host.name)));
    }
    if (!seen_.insert(host.name.substr(host.name.rfind('@') + 1)).second) {
      return fail(errc::bad_value, fmt::format("the host {} comes twice", printable_start(host.name)));
    }
    if (hosts_.size() == hosts_max) {
      return fail(errc::limit_exceeded, fmt::format("there are more than {} hosts", hosts_max));
    }
    hosts_.push_back(std::move(host));
    return {};
  }
  Result<> add_all(std::string_view item) {
    auto hosts = read_item(item);
    if (!hosts) return hosts.error();
    for (Host& host : *hosts) {
      if (auto added = add(std::move(host)); !added) return added;
    }
    return {};
  }
  std::vector<Host> take() { return std::move(hosts_); }

 private:
  std::vector<Host> hosts_;
  std::unordered_set<std::string> seen_;  ///< without users
};

/// The words behind a host's name: `slots=8`, `max_slots=8`, `addr=A`.
Result<> read_word(std::string_view word, Host& host) {
  std::string_view value = word;
  if (take_start(value, "slots=") || take_start(value, "max_slots=") || take_start(value, "max-slots=")) {
    const auto slots = read_slots(value);
    if (!slots) return slots.error();
    if (word.starts_with("slots=")) host.slots = *slots;
    return {};
  }
  if (!take_start(value, "addr=")) {
    return fail(errc::bad_value,
                fmt::format("'{}' is not known; slots=N, max_slots=N and addr=ADDRESS are", printable_start(word)));
  }
  if (value.empty() || !why_no_name(value).empty()) {
    return fail(errc::bad_value, fmt::format("'{}' is no address", printable_start(value)));
  }
  host.address = value;
  return {};
}

Result<> read_line(std::string_view line, HostCollection& hosts) {
  if (line.size() > hostfile_line_bytes_max) {
    return fail(errc::limit_exceeded, fmt::format("the line has more than {} bytes", hostfile_line_bytes_max));
  }
  line = stripped(line.substr(0, line.find('#')));
  if (line.empty()) return {};
  const std::string_view name = line.substr(0, line.find_first_of(blanks));
  auto items = read_item(name);
  if (!items) return items.error();
  std::string_view rest = stripped(line.substr(name.size()));
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find_first_of(blanks));
    for (Host& host : *items) {
      if (auto read = read_word(word, host); !read) return read;
    }
    rest = stripped(rest.substr(word.size()));
  }
  for (Host& host : *items) {
    if (auto added = hosts.add(std::move(host)); !added) return added;
  }
  return {};
}

Error with_place(const std::string& place, const Error& error) { return {error.code, place + ": " + error.context}; }

}  // namespace

Result<std::vector<Host>> parse_hosts(std::string_view list) {
  HostCollection hosts;
  std::string_view rest = list;
  do {
    const std::string_view item = stripped(take_item(rest));
    if (auto added = hosts.add_all(item); !added) return with_place("--hosts", added.error());
  } while (!rest.empty());
  return hosts.take();
}

Result<std::vector<Host>> parse_hostfile(std::string_view text, std::string_view file) {
  const std::string name = printable_start(file);
  if (text.size() > hostfile_bytes_max) {
    return fail(errc::limit_exceeded, fmt::format("{}: a hostfile has at most {} MiB", name, hostfile_bytes_max >> 20));
  }
  HostCollection hosts;
  std::size_t number = 0;
  for (const std::string_view line : split(text, '\n')) {
    ++number;
    if (auto read = read_line(line, hosts); !read) return with_place(fmt::format("{}:{}", name, number), read.error());
  }
  auto all = hosts.take();
  if (all.empty()) return fail(errc::bad_value, fmt::format("{}: it names no host", name));
  return all;
}

}  // namespace torchup

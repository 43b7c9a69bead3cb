#include "launcher/core/scheduler/told_words.hpp"

#include <fmt/format.h>

#include <charconv>
#include <unordered_set>
#include <utility>

#include "launcher/core/text/text.hpp"
#include "rendezvous/core/text/hostlist.hpp"
#include "rendezvous/core/text/names.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup::scheduler {
namespace {

/// Empty: it may be one.
std::string_view why_no_host(std::string_view name) {
  if (name.empty()) return "it is empty";
  if (name.starts_with('-')) return "it begins with a dash";
  if (name.find_first_of(" ,[]") != std::string_view::npos) return "it has a blank, a comma or a bracket";
  return why_no_name(name);
}

}  // namespace

Error wrong(std::string_view name, std::string_view value, std::string_view why) {
  return fail(errc::bad_value, fmt::format("{}={}: {}; --scheduler=none starts without the scheduler's variables", name,
                                           printable_start(value), why));
}

std::optional<std::string> ToldWords::text(std::string_view name) const {
  auto value = facts_.variable(name);
  return value && value->empty() ? std::nullopt : value;
}

Result<std::optional<std::int64_t>> ToldWords::number(std::string_view name, std::int64_t least,
                                                      std::int64_t most) const {
  const auto value = text(name);
  if (!value) return std::optional<std::int64_t>{};
  std::int64_t number = 0;
  const auto [end, code] = std::from_chars(value->data(), value->data() + value->size(), number);
  if (code == std::errc{} && end == value->data() + value->size() && number >= least && number <= most) {
    return std::optional{number};
  }
  return wrong(name, *value, fmt::format("it is no number from {} to {}", least, most));
}

Result<int> ToldWords::needed(std::string_view name, int least, int most) const {
  const auto value = number(name, least, most);
  if (!value) return value.error();
  if (!*value) return wrong(name, "", "it is missing beside the scheduler's other variables");
  return static_cast<int>(**value);
}

Result<std::vector<std::string>> ToldWords::hosts(std::string_view name) const {
  const std::string list = text(name).value_or("");
  auto hosts = expand_hostlist(list);
  if (!hosts) return wrong(name, list, hosts.error().message());
  const std::size_t told = hosts->size();
  if (const auto why = keep_first_of_each(*hosts)) return wrong(name, list, *why);
  if (hosts->size() != told) return wrong(name, list, "it names a host twice");
  return hosts;
}

Result<std::vector<std::string>> ToldWords::hosts_of_file(std::string_view name) const {
  const std::string path = text(name).value_or("");
  const auto content = facts_.file(path, node_file_bytes_max);
  if (!content) return wrong(name, path, content.error().message());
  if (content->size() > node_file_bytes_max) {
    return wrong(name, path, fmt::format("the file has more than {} MiB", node_file_bytes_max >> 20));
  }
  std::vector<std::string> hosts;
  for (const std::string_view line : split(*content, '\n')) {
    const std::string_view words = stripped(line);
    if (!words.empty()) hosts.emplace_back(words.substr(0, words.find_first_of(blanks)));
  }
  if (const auto why = keep_first_of_each(hosts)) return wrong(name, path, *why);
  return hosts;
}

Result<std::optional<Told<Port>>> ToldWords::port(std::string_view name) const {
  const auto value = number(name, 1, 65535);
  if (!value) return value.error();
  if (!*value) return std::optional<Told<Port>>{};
  return std::optional{Told<Port>{Port{static_cast<std::uint16_t>(**value)}, std::string{name}}};
}

std::optional<std::string> keep_first_of_each(std::vector<std::string>& hosts) {
  std::vector<std::string> kept;
  std::unordered_set<std::string> seen;
  for (std::string& host : hosts) {
    if (seen.contains(host)) continue;
    if (const auto why = why_no_host(host); !why.empty()) return fmt::format("a host's name cannot be used: {}", why);
    if (kept.size() == node_file_hosts_max) return fmt::format("it names more than {} hosts", node_file_hosts_max);
    seen.insert(host);
    kept.push_back(std::move(host));
  }
  hosts = std::move(kept);
  return std::nullopt;
}

}  // namespace torchup::scheduler

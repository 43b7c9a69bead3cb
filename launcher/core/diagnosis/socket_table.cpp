#include "launcher/core/diagnosis/socket_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace torchup {
namespace {

std::string_view next_field(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(word.size());
  return word;
}

template <class Number>
bool read_field(std::string_view word, Number& number, int base) {
  const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), number, base);
  return code == std::errc{} && end == word.data() + word.size();
}

/// Calls `take` with each line but the first, a headline, until it gives something.
template <class Take>
std::optional<std::string> first_of_lines(std::string_view list, Take take) {
  for (auto end = list.find('\n'); end != std::string_view::npos; end = list.find('\n')) {
    list.remove_prefix(end + 1);
    if (auto found = take(list.substr(0, list.find('\n')))) return found;
  }
  return std::nullopt;
}

struct Address {
  std::string text;
  unsigned port = 0;
};

/// Sixteen bytes as people write them: the longest stretch of zeros is left out. Source: RFC 5952.
std::string version_6_text(const std::array<unsigned, 8>& groups) {
  std::size_t best = 0, best_length = 1;
  for (std::size_t begin = 0; begin < groups.size(); ++begin) {
    std::size_t end = begin;
    while (end < groups.size() && groups[end] == 0) ++end;
    if (end - begin > best_length) best = begin, best_length = end - begin;
  }
  std::string text = "[";
  for (std::size_t at = 0; at < groups.size(); ++at) {
    if (best_length > 1 && at == best) {
      text += at == 0 ? "::" : ":";
      at += best_length - 1;
      continue;
    }
    text += fmt::format("{:x}{}", groups[at], at + 1 == groups.size() ? "" : ":");
  }
  return text + "]";
}

/// `0700000A:01BB`: 32-bit words as the machine reads them, so the first byte of an address is a word's last.
std::optional<Address> address_of(std::string_view word) {
  const auto colon = word.find(':');
  if (colon != 8 && colon != 32) return std::nullopt;
  Address address;
  if (!read_field(word.substr(colon + 1), address.port, 16)) return std::nullopt;
  std::array<unsigned, 16> bytes{};
  const std::size_t words = colon / 8;
  for (std::size_t i = 0; i < words; ++i) {
    std::uint32_t value = 0;
    if (!read_field(word.substr(i * 8, 8), value, 16)) return std::nullopt;
    for (std::size_t byte = 0; byte < 4; ++byte) bytes[i * 4 + byte] = value >> (8 * byte) & 0xffU;
  }
  const auto version_4_text = [&](std::size_t at) {
    return fmt::format("{}.{}.{}.{}", bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
  };
  if (words == 1) {
    address.text = version_4_text(0);
    return address;
  }
  std::array<unsigned, 8> groups{};
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i] = bytes[2 * i] << 8 | bytes[2 * i + 1];
  const bool mapped =
      groups[5] == 0xffff && std::all_of(groups.begin(), groups.begin() + 5, [](unsigned g) { return g == 0; });
  address.text = mapped ? version_4_text(12) : version_6_text(groups);
  return address;
}

}  // namespace

std::optional<std::string> internet_peer(std::string_view list, std::uint64_t inode) {
  return first_of_lines(list, [inode](std::string_view line) -> std::optional<std::string> {
    // sl, local address, remote address, state, queues, timer, retransmits, uid, timeout, inode
    std::array<std::string_view, 10> fields;
    for (std::string_view& field : fields) field = next_field(line);
    std::uint64_t found = 0;
    if (!read_field(fields[9], found, 10) || found != inode) return std::nullopt;
    const auto own = address_of(fields[1]);
    const auto peer = address_of(fields[2]);
    if (!own || !peer) return std::nullopt;
    if (peer->port == 0) return fmt::format("{}:{} (its own)", own->text, own->port);
    return fmt::format("{}:{}", peer->text, peer->port);
  });
}

std::optional<std::string> unix_path(std::string_view list, std::uint64_t inode) {
  return first_of_lines(list, [inode](std::string_view line) -> std::optional<std::string> {
    // Num, RefCount, Protocol, Flags, Type, St, Inode, Path
    std::array<std::string_view, 7> fields;
    for (std::string_view& field : fields) field = next_field(line);
    std::uint64_t found = 0;
    if (!read_field(fields[6], found, 10) || found != inode) return std::nullopt;
    const std::string_view path = line.substr(std::min<std::size_t>(line.size(), 1));
    return path.empty() ? "a Unix socket" : std::string{path};
  });
}

}  // namespace torchup

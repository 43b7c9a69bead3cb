#include "rendezvous/core/text/source_list.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

namespace torchup {
namespace {

constexpr AddressBytes version4_prefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr int version4_prefix_bits = 96;

bool is_version4(const AddressBytes& address) {
  return std::equal(address.begin(), address.begin() + version4_prefix_bits / 8, version4_prefix.begin());
}

/// With all bits behind the first `bits` of them off.
AddressBytes cut(AddressBytes address, int bits) {
  for (int i = 0; i < 16; ++i) {
    const int kept = std::clamp(bits - 8 * i, 0, 8);
    address[static_cast<std::size_t>(i)] &= static_cast<std::uint8_t>(0xff00 >> kept);
  }
  return address;
}

int common_bits(const AddressBytes& left, const AddressBytes& right) {
  for (std::size_t i = 0; i < left.size(); ++i) {
    const auto difference = static_cast<std::uint8_t>(left[i] ^ right[i]);
    if (difference != 0) return static_cast<int>(8 * i) + std::countl_zero(difference);
  }
  return 128;
}

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

}  // namespace

std::optional<AddressBytes> read_address(std::string_view text) {
  const std::string plain{text.substr(0, text.find('%'))};
  AddressBytes address = version4_prefix;
  if (::inet_pton(AF_INET, plain.c_str(), address.data() + version4_prefix_bits / 8) == 1) return address;
  if (::inet_pton(AF_INET6, plain.c_str(), address.data()) == 1) return address;
  return std::nullopt;
}

Result<SourceList> SourceList::read(std::string_view text) {
  SourceList list;
  for (bool more = true; more;) {
    const auto comma = text.find(',');
    more = comma != std::string_view::npos;
    const std::string_view item = trimmed(text.substr(0, comma));
    text.remove_prefix(more ? comma + 1 : text.size());
    const auto bad = [&](const char* why) {
      return fail(errc::bad_value,
                  fmt::format("\"{}\" is no address or network: {}; 10.0.0.0/24 or fd00::1 is one", item, why));
    };
    const auto slash = item.find('/');
    const auto address = read_address(item.substr(0, slash));
    if (!address || item.substr(0, slash).find('%') != std::string_view::npos) return bad("names are not looked up");
    const int most = is_version4(*address) ? 32 : 128;
    int bits = most;
    if (slash != std::string_view::npos) {
      const std::string_view digits = item.substr(slash + 1);
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
      if (error != std::errc{} || end != digits.data() + digits.size() || bits < 0 || bits > most)
        return bad("its prefix length is out of range");
    }
    bits += 128 - most;
    list.networks_.push_back({cut(*address, bits), bits});
    if (list.networks_.size() > items_max)
      return fail(errc::limit_exceeded, fmt::format("more than {} addresses and networks in a list", items_max));
  }
  return list;
}

/// The smallest network with both in it.
SourceList::Network SourceList::joined(const Network& left, const Network& right) {
  const int bits = std::min({left.bits, right.bits, common_bits(left.first, right.first)});
  return {cut(left.first, bits), bits};
}

SourceList SourceList::covering(const std::vector<std::string>& addresses, std::size_t most) {
  std::vector<AddressBytes> numeric;
  for (const std::string& text : addresses) {
    if (const auto address = read_address(text)) numeric.push_back(*address);
  }
  SourceList list;
  list.widen(numeric, most);
  return list;
}

void SourceList::widen(const std::vector<AddressBytes>& addresses, std::size_t most) {
  auto& all = networks_;
  for (const AddressBytes& address : addresses) all.push_back({address, 128});
  std::sort(all.begin(), all.end());
  std::vector<Network> apart;  // sorted, a network stands before what is in it
  for (const Network& network : all) {
    const bool within = !apart.empty() && joined(apart.back(), network) == apart.back();
    if (!within) apart.push_back(network);
  }
  all = std::move(apart);
  // Sorted, the two whose common network is smallest are neighbours. Those of one pass are all as close as the closest.
  while (all.size() > std::max<std::size_t>(1, most)) {
    int closest = 0;
    for (std::size_t i = 1; i < all.size(); ++i) closest = std::max(closest, joined(all[i - 1], all[i]).bits);
    std::vector<Network> fewer{all.front()};
    for (std::size_t i = 1; i < all.size(); ++i) {
      const Network both = joined(fewer.back(), all[i]);
      const std::size_t left = fewer.size() + all.size() - i;
      if (both.bits >= closest && left > most) {
        fewer.back() = both;
      } else {
        fewer.push_back(all[i]);
      }
    }
    all = std::move(fewer);
  }
}

bool SourceList::contains(std::string_view address) const {
  const auto bytes = read_address(address);
  return bytes && std::any_of(networks_.begin(), networks_.end(), [&](const Network& network) {
           return common_bits(*bytes, network.first) >= network.bits;
         });
}

std::string SourceList::text(const Network& network) {
  const bool version4 = is_version4(network.first) && network.bits >= version4_prefix_bits;
  std::array<char, INET6_ADDRSTRLEN> address{};
  if (version4) {
    ::inet_ntop(AF_INET, network.first.data() + version4_prefix_bits / 8, address.data(), address.size());
  } else {
    ::inet_ntop(AF_INET6, network.first.data(), address.data(), address.size());
  }
  if (network.bits == 128) return address.data();
  return fmt::format("{}/{}", address.data(), network.bits - (version4 ? version4_prefix_bits : 0));
}

std::vector<std::string> SourceList::texts() const {
  std::vector<std::string> list;
  for (const Network& network : networks_) list.push_back(text(network));
  return list;
}

void SourceList::add(const SourceList& others) {
  networks_.insert(networks_.end(), others.networks_.begin(), others.networks_.end());
}

}  // namespace torchup

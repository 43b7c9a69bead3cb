#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/result.hpp"

namespace torchup {

/// An address as 16 bytes, an IPv4 one as its IPv6 form, so that both are compared alike.
using AddressBytes = std::array<std::uint8_t, 16>;

/// Of a numeric address, with a zone or without; empty for a name and everything else.
[[nodiscard]] std::optional<AddressBytes> read_address(std::string_view text);

/// Networks and single addresses from which somebody may come.
class SourceList {
 public:
  static constexpr std::size_t items_max = 1024;

  /// "10.0.0.0/24,fd00::/8,192.0.2.7"; blanks around commas do not matter, bits behind the prefix neither.
  ///
  /// Errors: errc::bad_value, which names the item; errc::limit_exceeded beyond items_max.
  [[nodiscard]] static Result<SourceList> read(std::string_view text);

  /// The narrowest list of at most `most` networks with all these addresses in it; what is no numeric address is left
  /// out. Few are listed one by one.
  [[nodiscard]] static SourceList covering(const std::vector<std::string>& addresses, std::size_t most = items_max);
  /// Lets these in, too: as narrowly as `most` networks allow that hold what the list holds already.
  void widen(const std::vector<AddressBytes>& addresses, std::size_t most = items_max);

  [[nodiscard]] bool empty() const { return networks_.empty(); }
  [[nodiscard]] bool contains(std::string_view address) const;
  /// As `read` reads them, one by one.
  [[nodiscard]] std::vector<std::string> texts() const;
  void add(const SourceList& others);
  friend bool operator==(const SourceList&, const SourceList&) = default;

 private:
  struct Network {
    AddressBytes first{};
    int bits = 128;
    friend auto operator<=>(const Network&, const Network&) = default;
  };
  static Network joined(const Network& left, const Network& right);
  static std::string text(const Network& network);

  std::vector<Network> networks_;
};

}  // namespace torchup

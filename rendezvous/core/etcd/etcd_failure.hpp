#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace torchup::etcd {

/// Why a request was not done, as far as it changes what is done next.
enum class Cause : std::uint8_t {
  away,        ///< no leader, no quorum, too slow: the next member; what was asked may still be applied later
  no_etcd,     ///< not etcd 3.4 or newer, or another service: the next member
  log_in,      ///< the login's token is none or has expired: authenticate, then again
  forbidden,   ///< user, password, certificate or rights: nothing that we do ourselves helps
  full,        ///< alarm NOSPACE: as away, and people must act
  too_large,   ///< beyond what this etcd takes
  lease_gone,  ///< another lease is needed
  compacted,   ///< that revision is gone: read again
  other,
};

struct Failure {
  Cause cause = Cause::other;
  std::string words = {};  ///< etcd's own, fit to be shown
  friend bool operator==(const Failure&, const Failure&) = default;
};

/// What an answer with another status than 200 means. `logged_in`: the request had a login's token.
[[nodiscard]] Failure failure_of(unsigned status, std::string_view body, bool logged_in);

}  // namespace torchup::etcd

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/text/endpoint.hpp"

namespace torchup::etcd {

inline constexpr std::size_t prefix_bytes_max = 200;

/// Empty when keys may begin with `prefix`, else why not, and what to do.
[[nodiscard]] std::string why_no_prefix(std::string_view prefix);

/// The keys that one seat governs: those of several daemons, or those of one job without a daemon.
class Scope {
 public:
  static Scope of_daemons(std::string_view prefix);
  static Scope of_job(std::string_view prefix, const RunId& run_id);

  [[nodiscard]] std::string seat() const { return root_ + "/seat"; }
  [[nodiscard]] std::string states() const { return root_ + "/state/"; }  ///< all heads and pieces begin with it
  [[nodiscard]] std::string head(const RunId& run_id) const;
  [[nodiscard]] std::string pieces(const RunId& run_id, std::uint64_t serial) const;  ///< they begin with it
  [[nodiscard]] std::string piece(const RunId& run_id, std::uint64_t serial, std::uint64_t index) const;

  /// What a key below states() names. Nothing for a key that none of the above makes.
  struct Place {
    RunId run_id{""};
    bool head = false;
    std::uint64_t serial = 0;
    std::uint64_t index = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  [[nodiscard]] std::optional<Place> place(std::string_view key) const;

 private:
  explicit Scope(std::string root) : root_{std::move(root)} {}
  std::string root_;
};

/// Who has the seat: the value of its key.
struct Holder {
  std::vector<Endpoint> endpoints = {};  ///< one to endpoints_max, with ports
  std::string host = {};
  std::string node = {};
  std::int64_t pid = 0;
  friend bool operator==(const Holder&, const Holder&) = default;
};
[[nodiscard]] std::string encode_holder(const Holder& holder);
/// Errors: errc::wrong_version; errc::bad_frame; errc::limit_exceeded.
[[nodiscard]] Result<Holder> read_holder(std::string_view value);

}  // namespace torchup::etcd

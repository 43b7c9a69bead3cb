#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rendezvous/base/types.hpp"

namespace torchup {

/// By which doors this agent answers those who look at its job and steer it.
struct OperationsOptions {
  bool control_socket = true;             ///< a unix socket in the user's runtime directory
  std::optional<Port> status_port{};      ///< nothing: none; 0: any free one
  std::string status_bind = "localhost";  ///< as listen_on takes it
  std::vector<std::string> host_names{};  ///< that `Host` may be without a token, beside this machine's own
  std::string read_token{};               ///< over TCP: to see, and steer nothing; never printed; empty: none
  friend bool operator==(const OperationsOptions&, const OperationsOptions&) = default;
};

}  // namespace torchup

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/net/daemon/daemon.hpp"
#include "rendezvous/net/io/log.hpp"

namespace torchup {

/// What the command line of torchupd says.
struct DaemonCommand {
  DaemonSettings daemon;
  std::uint16_t port = 29400;
  double handshake_s = 10, request_s = 120, stalled_s = 60, silence_s = 90, grace_s = 30;
  std::string token_file;
  std::string read_token_file;
  bool no_control_socket = false;
  LogOptions log{.program = "torchupd"};
  std::string torchrun_store = "first";
  bool version = false, version_as_json = false;
};

/// Fills `settings`. A number: the process ends with it, and what there is to say has been said.
[[nodiscard]] std::optional<int> read_arguments(int argc, char** argv, DaemonCommand& settings);

/// The manual page torchupd(8) in roff, from the same options, exit codes and words as --help.
[[nodiscard]] std::string daemon_manual(std::string_view version);

}  // namespace torchup

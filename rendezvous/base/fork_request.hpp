#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/cpu_set.hpp"
#include "rendezvous/base/result.hpp"

namespace torchup {

/// What a process that was forked from the template (launcher/os/worker/template_process) is to become: what exec would
/// have given it.
struct ForkRequest {
  enum class Program {
    script,  ///< that Python runs
    module,  ///< Python's -m
    native,
  };
  Program program = Program::script;
  std::string directory = {};                 ///< working directory; empty: the one it has
  CpuSet cpus = {};                           ///< it is bound to; empty: those it has
  std::vector<std::string> arguments = {};    ///< argv, an interpreter included
  std::vector<std::string> environment = {};  ///< "NAME=value" each; it has no others
  friend bool operator==(const ForkRequest&, const ForkRequest&) = default;
};

/// Of a request's bytes. What a system takes for arguments and environment together is less (6 MiB on Linux).
inline constexpr std::size_t fork_request_bytes_max = std::size_t{8} << 20;

/// The request as the forked process reads it, from a memfd: fields that end with a zero byte each, `torchup fork 1`,
/// `script`, `module` or `native`, the directory, the CPUs as the kernel lists them ("0-3,8"), the number of arguments,
/// these, then the environment. launcher/python/injected/template.py reads it in Python.
///
/// Errors: errc::limit_exceeded; errc::bad_value where a field holds a zero byte, which none can have.
[[nodiscard]] Result<std::string> to_bytes(const ForkRequest& request);

/// Errors: errc::limit_exceeded, errc::wrong_version, errc::bad_frame.
[[nodiscard]] Result<ForkRequest> parse_fork_request(std::string_view bytes);

}  // namespace torchup

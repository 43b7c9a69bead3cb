#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/scheduler/hostfile.hpp"
#include "rendezvous/base/result.hpp"

/// How a program is started on a host, and what it means that it has ended.
namespace torchup {

inline constexpr std::string_view ssh_default = "ssh -o BatchMode=yes -o ConnectTimeout=10 -x -T";
/// The argument by which our program is the far end of a link.
inline constexpr std::string_view link_word = "--link";

/// The words of a command as a shell splits them: blanks between, quotes and backslashes as in sh; nothing is expanded.
///
/// Errors: errc::bad_value, without the option's name: a quote without end, no word at all.
[[nodiscard]] Result<std::vector<std::string>> split_words(std::string_view command);

/// `command` with the host's name for each `{host}` in it, else behind it, then `program --link`.
[[nodiscard]] std::vector<std::string> remote_command(const std::vector<std::string>& command, const Host& host,
                                                      const std::string& program);

/// The same for this machine itself, where nothing is between: `program --link=BESIDE`. `beside`: another host of the
/// job, to which the address by which others reach this one is to lead; may be empty.
[[nodiscard]] std::vector<std::string> local_command(const std::string& program, std::string_view beside);

/// How the far end of a link was started.
struct LinkStart {
  bool by_command = true;   ///< ssh or its like, whose variables are of this link then
  std::string beside = {};  ///< as in local_command
  friend bool operator==(const LinkStart&, const LinkStart&) = default;
};
/// What an argument says of it; nothing: it is another one.
[[nodiscard]] std::optional<LinkStart> read_link_word(std::string_view argument);

/// Whether a word reaches the program whatever shell is between: ssh joins its words, and the shell there reads them.
[[nodiscard]] bool is_safe_word(std::string_view word);

/// The host's name without a user before it: in front of its lines, and for ranks and reports.
[[nodiscard]] std::string_view name_of_host(std::string_view host);

/// Whether the host is this machine, for which nothing is needed but our own program. `own_name`: as gethostname gives
/// it.
[[nodiscard]] bool is_this_host(const Host& host, std::string_view own_name);

/// Why a host's link has ended without an Ended. `why`: what the line says of it, may be empty; `exit_code`: of the
/// command, where it is known, as a shell shows it.
[[nodiscard]] std::string why_broken(std::string_view why, std::optional<int> exit_code, bool linked,
                                     const std::vector<std::string>& command);

}  // namespace torchup

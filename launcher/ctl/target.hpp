#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/ctl/client.hpp"
#include "launcher/ctl/command.hpp"
#include "launcher/ctl/job_choice.hpp"

namespace torchup {

/// Everybody who can be asked: the port of --endpoint, or the control sockets of this machine.
struct Doors {
  std::vector<Door> doors;
  bool local = true;
};
/// Tells on stderr of folders that are passed over. A number: what --endpoint or the token says is wrong, and told.
[[nodiscard]] std::variant<Doors, int> find_doors(const Command& command);

/// What each of them says to one question, asked at once; `timed_out` where it has not answered by then.
[[nodiscard]] std::vector<Result<HttpAnswer>> ask_everybody(const std::vector<Door>& doors,
                                                            const HttpQuestion& question, Duration limit);

/// The one job that a verb is about.
struct Target {
  Door door;
  std::string run_id;
  json row;

  /// "/v1/jobs/ID" and what follows.
  [[nodiscard]] std::string path(std::string_view rest = {}) const;
};
/// What somebody wants of it. An order is given to nobody's job by mistake.
enum class Errand : std::uint8_t { look, order };
/// A number: there is none, which is told on stderr.
///
/// A job that `word` names whole is found as soon as its launcher has answered. Any other word may mean one whose
/// launcher has not answered yet: that is waited for, answer_limit at most. Where one is silent until then, an order is
/// refused, and who wants to look is told of it.
[[nodiscard]] std::variant<Target, int> find_target(const Command& command, const std::string& word,
                                                    Errand errand = Errand::look);

}  // namespace torchup

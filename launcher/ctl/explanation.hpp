#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace torchup {

/// What an exit code or a signal means, as the launcher's and as a worker's, and what can be done.
struct Explanation {
  struct Part {
    std::string who;  ///< "launcher", "worker"
    std::string meaning;
    std::string remedy;  ///< empty: there is nothing to do
  };
  std::string title;  ///< "exit code 137", "SIGKILL (9)"
  std::vector<Part> parts;
};

/// `word`: a code from 0 to 255, a negative signal number as reports have it (-9), or a signal's name (SIGKILL, KILL).
/// Nothing for another word. Pure.
[[nodiscard]] std::optional<Explanation> explain(std::string_view word);

/// For people, with line ends.
[[nodiscard]] std::string explanation_text(const Explanation& explanation);

}  // namespace torchup

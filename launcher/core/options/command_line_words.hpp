#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace torchup {

/// A command line, cut where the program begins.
struct SplitCommandLine {
  /// Ours, in one form: a value always in a token of its own behind its option.
  std::vector<std::string> options;
  bool has_program = false;
  std::vector<std::string> program;  ///< the program and everything behind it
};

/// Finds the program: the first word that is neither option nor an option's value. By argparse's rules: what looks like
/// a negative number, a lone `-`, an empty word and a word with a blank are no options; one `--` goes, before the
/// program or else directly behind it. A value that begins with `-` must be attached with `=`.
///
/// Returns the error for people, in argparse's words, or nothing. Unknown options stay in `options` for the parser.
/// Source: Python's argparse, as torchrun uses it.
[[nodiscard]] std::optional<std::string> split_command_line(std::span<const std::string> arguments,
                                                            SplitCommandLine& split);

}  // namespace torchup

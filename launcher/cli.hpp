#pragma once

#include <span>
#include <string>
#include <variant>
#include <vector>

#include "launcher/core/options/option_values.hpp"

namespace torchup {

/// What the user typed.
struct CommandLine {
  OptionValues options;              ///< of the command line only
  std::vector<std::string> program;  ///< the program and its arguments; may be empty where none is needed
  bool legacy = false;               ///< started as torchup-launch, without --use-env
  bool as_torchrun = false;          ///< started by a name that stands for torchrun's
};

/// What ends the program at once: help, or an error.
struct EarlyEnd {
  int status = 0;
  std::string out;
  std::string err;
};

/// Reads the command line; `words[0]` is the name that we were started by.
[[nodiscard]] std::variant<CommandLine, EarlyEnd> parse_command_line(std::span<const std::string> words);

/// The error of an option, as argparse prints it, with status 2.
[[nodiscard]] EarlyEnd usage_error(const std::string& message);

}  // namespace torchup

#pragma once

#include <span>
#include <string>
#include <variant>
#include <vector>

#include "launcher/cli.hpp"
#include "launcher/core/options/option_values.hpp"
#include "launcher/ctl/verb_table.hpp"

namespace torchup {

/// What the user asks torchupctl for.
struct Command {
  const Verb* verb = nullptr;
  OptionValues options;               ///< TORCHUP_ENDPOINT is not among them
  std::vector<std::string> operands;  ///< a JOB, files, a code
};

/// Reads the words behind the program's name. Help, version and completion are answers, as is what is wrong: 2.
[[nodiscard]] std::variant<Command, EarlyEnd> parse_command(std::span<const std::string> words);

/// "torchupctl: error: …", with the usage of `verb` in front of it, and 2.
[[nodiscard]] EarlyEnd wrong_usage(const Verb* verb, const std::string& message);

}  // namespace torchup

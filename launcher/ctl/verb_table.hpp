#pragma once

#include <span>
#include <string>
#include <string_view>

#include "launcher/core/options/option_table.hpp"

namespace torchup {

/// One verb of torchupctl. The table of them is the only place that names verbs and their options: parser, help,
/// completion and the manual page are made from it.
struct Verb {
  std::string_view name;
  std::string_view operands;  ///< what stands behind it: "[JOB]", "FILE..."; empty: nothing may
  int operands_min = 0;
  int operands_max = 0;
  std::string_view group;  ///< heading in help
  std::string_view help;   ///< one sentence
  std::span<const OptionSpec> options = {};
};

inline constexpr int many_operands = 4096;

/// All verbs, in the order of help.
[[nodiscard]] std::span<const Verb> verb_table();

/// nullptr where there is none.
[[nodiscard]] const Verb* find_verb(std::string_view name);

/// The verb that looks most like it; empty where none does.
[[nodiscard]] std::string nearest_verb(std::string_view name);

/// Options that stand with each verb, and without one.
[[nodiscard]] std::span<const OptionSpec> common_options();

/// Of the verb, then the common ones; by the long name without dashes. nullptr where there is none.
[[nodiscard]] const OptionSpec* find_option(const Verb* verb, std::string_view name);

/// How torchupctl itself ends, beside the code that `wait` passes on.
struct CtlExit {
  static constexpr int done = 0;
  static constexpr int no = 1;          ///< no such job, node or rank; refused, with its reason
  static constexpr int usage = 2;       ///< or a file that cannot be read
  static constexpr int nobody = 67;     ///< nobody answers
  static constexpr int forbidden = 77;  ///< not permitted
  static constexpr int timeout = 124;   ///< wait --timeout
};

}  // namespace torchup

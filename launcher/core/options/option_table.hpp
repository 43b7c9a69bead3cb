#pragma once

#include <span>
#include <string>
#include <string_view>

namespace torchup {

/// What stands behind an option's name.
enum class ValueKind { flag, text, integer, seconds };

/// One option of the launcher. The table of them is the only place that names options: parser, environment variables,
/// configuration file, help, completion and the manual page are made from it.
struct OptionSpec {
  std::string_view name;  ///< without dashes in front: "nproc-per-node"; the spelling with underscores is as good
  char short_name = 0;    ///< 0: none
  ValueKind kind = ValueKind::text;
  std::string_view value;         ///< how help names the value
  std::string_view group;         ///< heading in help
  std::string_view help;          ///< one sentence
  std::string_view choices = {};  ///< "spawn|fork"; empty: anything
  bool from_environment = true;   ///< PET_<NAME> stands for it where the command line does not
  bool any_variable = false;      ///< PET_<NAME> may hold what is no choice, and then counts as unset: so in torchrun
};

/// All options, in the order of help.
[[nodiscard]] std::span<const OptionSpec> option_table();

/// By either spelling, without dashes; nullptr when there is none.
[[nodiscard]] const OptionSpec* find_option(std::string_view name);
[[nodiscard]] const OptionSpec* find_option(char short_name);

/// "PET_NPROC_PER_NODE".
[[nodiscard]] std::string environment_name(const OptionSpec& option);
/// "-r/--redirects", "--max-restarts/--max_restarts": as argparse names an option in its errors.
[[nodiscard]] std::string argument_name(const OptionSpec& option);
/// "nproc_per_node".
[[nodiscard]] std::string underscored(std::string_view name);

/// The name in the table that looks most like `name` (without dashes); empty when none does.
[[nodiscard]] std::string nearest_option(std::string_view name);
/// The same among `names`: a beginning is as good as a typing error; more than a third of wrong letters is another
/// word.
[[nodiscard]] std::string nearest_name(std::string_view name, std::span<const std::string_view> names);

}  // namespace torchup

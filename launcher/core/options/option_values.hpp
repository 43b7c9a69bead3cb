#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/options/option_table.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/base/worker_env.hpp"

namespace torchup {

/// Of a configuration file.
inline constexpr std::size_t config_bytes_max = std::size_t{1} << 20;

/// The options of one start, from all sources: command line, then PET_ variables, then --config, then what a scheduler
/// says, then defaults. Each knows where it came from.
class OptionValues {
 public:
  /// Command line: the last one wins. `name` is the table's.
  void set(std::string_view name, std::string text) { set(name, std::move(text), "--" + std::string{name}); }
  void set(std::string_view name, std::string text, std::string from) {
    values_[std::string{name}] = {std::move(text), std::move(from), false};
  }
  void unset(std::string_view name) { values_.erase(std::string{name}); }
  /// Takes the options that are not set yet from PET_ variables.
  ///
  /// Errors: errc::bad_value when a flag's variable is not a number (contract: non-zero means on), or when a value is
  /// none of the option's choices, naming the variable.
  Result<> read_environment(const VariableLookup& lookup);
  /// Takes the options that are not set yet from a configuration file: `name = value` a line (quotes around the value
  /// go), `#` begins a comment, a flag takes true or false. At most 1 MiB.
  ///
  /// Errors: errc::bad_value, naming `file` and the line; also for a value of the wrong type or none of the choices.
  Result<> read_config(std::string_view text, std::string_view file);

  /// What `from`, for instance a scheduler's variable, says of an option that no other source has.
  void derive(std::string_view name, std::string text, std::string from) {
    values_.try_emplace(std::string{name}, Value{std::move(text), std::move(from), true});
  }

  [[nodiscard]] bool has(std::string_view name) const { return values_.contains(name); }
  [[nodiscard]] bool flag(std::string_view name) const { return values_.contains(name); }
  /// Whether somebody typed it, in a command line, a variable or a file.
  [[nodiscard]] bool given(std::string_view name) const;
  /// Where the option's value came from: "--nnodes", "PET_NNODES", "--config", a scheduler's variables; "default".
  [[nodiscard]] std::string source(std::string_view name) const;
  [[nodiscard]] std::string text(std::string_view name, std::string_view otherwise = {}) const;
  /// Errors: errc::bad_value in argparse's words.
  [[nodiscard]] Result<std::int64_t> integer(std::string_view name, std::int64_t otherwise) const;
  [[nodiscard]] Result<double> number(std::string_view name, double otherwise) const;

  friend bool operator==(const OptionValues&, const OptionValues&) = default;

 private:
  struct Value {
    std::string text;
    std::string from;
    bool derived = false;
    friend bool operator==(const Value&, const Value&) = default;
  };
  std::map<std::string, Value, std::less<>> values_;
};

/// What is wrong with this value of the option, in argparse's words: "argument --rank/--rank: invalid int value: 'x'",
/// or a choice that is none; nothing when it may stand.
[[nodiscard]] std::optional<std::string> wrong_value(const OptionSpec& option, std::string_view text);

/// Checks the types of what came from variables, which argparse does once the command line is read: a variable whose
/// option is also on the command line may hold anything.
///
/// Errors: errc::bad_value in argparse's words.
[[nodiscard]] Result<> check_types(const OptionValues& values);

/// Comma list in which `,,` stands for a comma; the empty text is one empty entry.
[[nodiscard]] std::vector<std::string> comma_list(std::string_view text);

}  // namespace torchup

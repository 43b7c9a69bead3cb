#include "launcher/core/options/option_values.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "launcher/core/text/python_numbers.hpp"
#include "launcher/core/text/text.hpp"

namespace torchup {
namespace {

Error invalid(const OptionSpec& option, std::string_view type, std::string_view text) {
  return fail(errc::bad_value, fmt::format("argument {}: invalid {} value: '{}'", argument_name(option), type, text));
}

/// "invalid choice: 'foo' (choose from 'a', 'b')"; nothing when the value is a choice, or anything goes.
std::optional<std::string> wrong_choice(const OptionSpec& option, std::string_view text) {
  if (option.choices.empty()) return std::nullopt;
  const auto choices = split(option.choices, '|');
  if (std::find(choices.begin(), choices.end(), text) != choices.end()) return std::nullopt;
  return fmt::format("invalid choice: '{}' (choose from '{}')", text, fmt::join(choices, "', '"));
}

Result<> check_type(const OptionSpec& option, std::string_view text) {
  if (option.kind == ValueKind::integer && !python_int(text)) return invalid(option, "int", text);
  if (option.kind == ValueKind::seconds && !python_float(text)) return invalid(option, "float", text);
  return {};
}

}  // namespace

std::vector<std::string> comma_list(std::string_view text) {
  std::vector<std::string> entries(1);
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != ',') {
      entries.back() += text[at];
    } else if (at + 1 < text.size() && text[at + 1] == ',') {
      entries.back() += ',';
      ++at;
    } else {
      entries.emplace_back();
    }
  }
  return entries;
}

Result<> OptionValues::read_environment(const VariableLookup& lookup) {
  for (const OptionSpec& option : option_table()) {
    if (!option.from_environment || values_.contains(option.name)) continue;
    const std::string variable = environment_name(option);
    auto text = lookup(variable);
    if (!text) continue;
    if (option.kind == ValueKind::flag) {
      const auto number = python_int(*text);
      if (!number) return fail(errc::bad_value, variable + ": invalid literal for int() with base 10: '" + *text + "'");
      if (*number == 0) continue;
      text = "1";
    }
    if (const auto wrong = wrong_choice(option, *text)) {
      if (option.any_variable) continue;
      return fail(errc::bad_value, fmt::format("{}: {}", variable, *wrong));
    }
    set(option.name, *std::move(text), variable);
  }
  return {};
}

Result<> OptionValues::read_config(std::string_view text, std::string_view file) {
  const auto wrong = [&](std::size_t line, const std::string& what) {
    return fail(errc::bad_value, fmt::format("{}:{}: {}", file, line, what));
  };
  if (text.size() > config_bytes_max) return wrong(1, "a configuration file has at most 1 MiB");
  OptionValues found;
  std::size_t number = 0;
  for (const std::string_view whole : split(text, '\n')) {
    ++number;
    const std::string_view line = stripped(whole);
    if (line.empty() || line.starts_with('#')) continue;
    const auto equals = line.find('=');
    std::string name{stripped(line.substr(0, equals))};
    const OptionSpec* option = find_option(name);
    if (!option && name.find_first_of(" \t{}[]\"") != std::string::npos) {
      return wrong(number, fmt::format("'{}' is not NAME = VALUE, one option a line (no JSON, no sections)",
                                       line.substr(0, 40)));
    }
    if (!option || option->name == "config" || option->name == "help") {
      const std::string nearest = option ? "" : nearest_option(name);
      return wrong(number, fmt::format("no option '{}'{}", name,
                                       nearest.empty() ? "" : fmt::format(", did you mean '{}'?", nearest)));
    }
    std::string_view value = equals == std::string_view::npos ? std::string_view{} : stripped(line.substr(equals + 1));
    if (value.size() >= 2 && (value.front() == '"' || value.front() == '\'') && value.back() == value.front()) {
      value = value.substr(1, value.size() - 2);
    }
    if (option->kind == ValueKind::flag) {
      if (value == "false" || value == "0") continue;
      if (equals != std::string_view::npos && value != "true" && value != "1") {
        return wrong(number, name + " takes true or false, not '" + std::string{value} + "'");
      }
      value = "1";
    } else if (equals == std::string_view::npos) {
      return wrong(number, name + " needs a value: " + name + " = " + std::string{option->value});
    }
    if (const auto wrong_one = wrong_choice(*option, value)) return wrong(number, name + ": " + *wrong_one);
    if (auto checked = check_type(*option, value); !checked) return wrong(number, checked.error().context);
    found.set(option->name, std::string{value}, "--config");
  }
  values_.merge(found.values_);
  return {};
}

bool OptionValues::given(std::string_view name) const {
  const auto found = values_.find(name);
  return found != values_.end() && !found->second.derived;
}

std::string OptionValues::source(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? "default" : found->second.from;
}

std::string OptionValues::text(std::string_view name, std::string_view otherwise) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::string{otherwise} : found->second.text;
}

Result<std::int64_t> OptionValues::integer(std::string_view name, std::int64_t otherwise) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return otherwise;
  if (const auto value = python_int(found->second.text)) return *value;
  return invalid(*find_option(name), "int", found->second.text);
}

Result<double> OptionValues::number(std::string_view name, double otherwise) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return otherwise;
  if (const auto value = python_float(found->second.text)) return *value;
  return invalid(*find_option(name), "float", found->second.text);
}

Result<> check_types(const OptionValues& values) {
  for (const OptionSpec& option : option_table()) {
    if (!values.has(option.name)) continue;
    if (auto checked = check_type(option, values.text(option.name)); !checked) return checked.error();
  }
  return {};
}

std::optional<std::string> wrong_value(const OptionSpec& option, std::string_view text) {
  if (const auto wrong = wrong_choice(option, text))
    return fmt::format("argument {}: {}", argument_name(option), *wrong);
  if (const auto checked = check_type(option, text); !checked) return checked.error().context;
  return std::nullopt;
}

}  // namespace torchup

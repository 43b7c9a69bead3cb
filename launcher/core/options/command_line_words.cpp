#include "launcher/core/options/command_line_words.hpp"

#include <algorithm>
#include <cctype>
#include <utility>

#include "launcher/core/options/option_table.hpp"

namespace torchup {
namespace {

bool looks_like_negative_number(std::string_view word) {
  // argparse: ^-\d+$|^-\d*\.\d+$
  word.remove_prefix(1);
  const auto dot = word.find('.');
  const std::string_view whole = word.substr(0, dot);
  const auto digits = [](std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  };
  if (dot == std::string_view::npos) return !whole.empty() && digits(whole);
  const std::string_view fraction = word.substr(dot + 1);
  return digits(whole) && !fraction.empty() && digits(fraction);
}

bool looks_like_option(std::string_view word) {
  if (word.size() < 2 || word[0] != '-') return false;
  if (looks_like_negative_number(word)) return false;
  if (word.find(' ') == std::string_view::npos) return true;
  return word[1] == '-' ? find_option(word.substr(2, word.find('=') - 2)) != nullptr : find_option(word[1]) != nullptr;
}

class Splitter {
 public:
  Splitter(std::span<const std::string> arguments, SplitCommandLine& split) : arguments_{arguments}, split_{split} {}

  std::optional<std::string> run() {
    while (next_ < arguments_.size() && !error_) {
      const std::string& word = arguments_[next_];
      if (word == "--") {
        ++next_;
        take_program(false);
        break;
      }
      if (!looks_like_option(word)) {
        take_program(true);
        break;
      }
      ++next_;
      if (word.starts_with("--")) {
        long_option(word);
      } else {
        cluster(word);
      }
    }
    return error_;
  }

 private:
  /// argparse takes one `--` away: the one before the program, else one directly behind it.
  void take_program(bool take_dashes) {
    const auto rest = arguments_.subspan(std::min(next_, arguments_.size()));
    if (rest.empty()) return;
    split_.has_program = true;
    split_.program.assign(rest.begin(), rest.end());
    if (take_dashes && split_.program.size() > 1 && split_.program[1] == "--")
      split_.program.erase(split_.program.begin() + 1);
  }

  void long_option(const std::string& word) {
    const auto equals = word.find('=');
    const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    const OptionSpec* option = find_option(name);
    if (!option) {
      split_.options.push_back(word);
      return;
    }
    const std::optional<std::string> attached =
        equals == std::string::npos ? std::nullopt : std::optional{word.substr(equals + 1)};
    take(*option, "--" + name, attached);
  }

  /// "-mr3": flags, then perhaps one option with the rest as its value.
  void cluster(const std::string& word) {
    for (std::size_t at = 1; at < word.size(); ++at) {
      const OptionSpec* option = find_option(word[at]);
      if (!option) {
        split_.options.push_back(at == 1 ? word : "-" + word.substr(at));
        return;
      }
      const std::string name = std::string{"-"} + word[at];
      if (option->kind == ValueKind::flag) {
        if (at + 1 < word.size() && !find_option(word[at + 1])) {
          error_ = "argument " + argument_name(*option) + ": ignored explicit argument '" + word.substr(at + 1) + "'";
          return;
        }
        take(*option, name, std::nullopt);
        continue;
      }
      std::optional<std::string> attached;
      if (at + 1 < word.size()) attached = word.substr(word[at + 1] == '=' ? at + 2 : at + 1);
      take(*option, name, attached);
      return;
    }
  }

  void take(const OptionSpec& option, std::string name, const std::optional<std::string>& attached) {
    if (option.kind == ValueKind::flag) {
      if (attached) error_ = "argument " + argument_name(option) + ": ignored explicit argument '" + *attached + "'";
      split_.options.push_back(std::move(name));
      return;
    }
    if (!attached &&
        (next_ == arguments_.size() || looks_like_option(arguments_[next_]) || arguments_[next_] == "--")) {
      error_ = "argument " + argument_name(option) + ": expected one argument";
      return;
    }
    split_.options.push_back(std::move(name));
    split_.options.push_back(attached ? *attached : arguments_[next_++]);
  }

  std::span<const std::string> arguments_;
  SplitCommandLine& split_;
  std::size_t next_ = 0;
  std::optional<std::string> error_;
};

}  // namespace

std::optional<std::string> split_command_line(std::span<const std::string> arguments, SplitCommandLine& split) {
  return Splitter{arguments, split}.run();
}

}  // namespace torchup

#include "launcher/ctl/command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "launcher/core/record/launch_event.hpp"
#include "launcher/ctl/ctl_completion.hpp"
#include "launcher/ctl/ctl_manual.hpp"
#include "rendezvous/core/ops/job_page.hpp"
#include "rendezvous/core/ops/version_answer.hpp"

namespace torchup {
namespace {

std::string usage_line(const Verb* verb) {
  if (!verb) return "usage: torchupctl VERB [JOB] [options]\n";
  return fmt::format("usage: torchupctl {}{}{} [options]\n", verb->name, verb->operands.empty() ? "" : " ",
                     verb->operands);
}

class CtlHelp : public CLI::Formatter {
 public:
  explicit CtlHelp(const Verb* verb) : verb_{verb} { column_width(36); }
  std::string make_usage(const CLI::App*, std::string) const override { return usage_line(verb_); }
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_type_name().empty() ? "" : " " + option->get_type_name();
  }

 private:
  const Verb* verb_;
};

/// The options of a verb as CLI11 knows them: it reads them, their types and choices, and writes the help.
class CommandParser {
 public:
  explicit CommandParser(const Verb* verb) : verb_{verb} {
    app_.name("torchupctl");
    app_.description(verb ? std::string{verb->help} : "Looks at running jobs of torchup, and steers them.");
    app_.set_help_flag();
    app_.allow_extras();
    app_.formatter(std::make_shared<CtlHelp>(verb));
    if (verb) {
      for (const OptionSpec& spec : verb->options) add(spec);
    }
    for (const OptionSpec& spec : common_options()) add(spec);
  }

  /// Reads `words` into `command`; returns what is wrong, or nothing.
  std::optional<std::string> parse(std::vector<std::string> words, Command& command) {
    std::reverse(words.begin(), words.end());
    std::optional<std::string> error;
    try {
      app_.parse(words);
    } catch (const CLI::ParseError& refused) {
      error = wrong_value_.empty() ? refused.what() : wrong_value_;
    }
    for (const auto& [spec, option] : options_) {
      if (option->count() == 0) continue;
      command.options.set(spec->name, spec->kind == ValueKind::flag ? "1" : option->results().back());
    }
    command.operands = app_.remaining();
    return error;
  }

  [[nodiscard]] std::string help() {
    app_.footer(verb_ ? std::string{} : verbs_text());
    return app_.help();
  }

 private:
  void add(const OptionSpec& spec) {
    std::string names = spec.short_name ? std::string{"-"} + spec.short_name + "," : std::string{};
    names += "--" + std::string{spec.name};
    if (const std::string other = underscored(spec.name); other != spec.name) names += ",--" + other;
    CLI::Option* option = nullptr;
    if (spec.kind == ValueKind::flag) {
      option = app_.add_flag(names)->description(std::string{spec.help});
    } else {
      option = app_.add_option(names, texts_.emplace_back(), std::string{spec.help});
      option->type_name(std::string{spec.value})->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
      option->check([this, &spec](const std::string& text) {
        if (wrong_value_.empty()) wrong_value_ = wrong_value(spec, text).value_or("");
        return wrong_value_;
      });
    }
    options_.emplace_back(&spec, option);
  }

  static std::string verbs_text() {
    std::string text;
    std::string_view group;
    for (const Verb& verb : verb_table()) {
      if (verb.group != group) text += fmt::format("{}{}:\n", group.empty() ? "" : "\n", verb.group);
      group = verb.group;
      text += fmt::format("  {:<34}{}\n", fmt::format("{} {}", verb.name, verb.operands), verb.help);
    }
    return text + "\nJOB: run id, a unique prefix of one, or a launcher's pid; needed where there are several jobs.\n" +
           std::string{ctl_exit_text()};
  }

  const Verb* verb_;
  CLI::App app_;
  std::deque<std::string> texts_;
  std::string wrong_value_;  ///< in argparse's words; CLI11 puts others around what a check says
  std::vector<std::pair<const OptionSpec*, CLI::Option*>> options_;
};

/// Where the verb stands among the words: the first that is no option, nor an option's value.
std::size_t verb_at(std::span<const std::string> words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].empty() || words[i].front() != '-') return i;
    if (!words[i].starts_with("--") || words[i].find('=') != std::string::npos) continue;
    const OptionSpec* option = find_option(nullptr, words[i].substr(2));
    if (option && option->kind != ValueKind::flag) ++i;
  }
  return words.size();
}

/// A dead worker's code is told as -9, which looks like an option.
bool is_negative_number(const std::string& word) {
  return word.size() >= 2 && word[0] == '-' &&
         std::all_of(word.begin() + 1, word.end(), [](unsigned char letter) { return std::isdigit(letter) != 0; });
}

EarlyEnd unknown_verb(const std::string& word) {
  const std::string nearest = nearest_verb(word);
  return wrong_usage(nullptr, fmt::format("there is no verb '{}'{}; torchupctl --help lists them", word,
                                          nearest.empty() ? "" : " (did you mean " + nearest + "?)"));
}

bool looks_like_option(const std::string& word) { return word.size() > 1 && word.front() == '-'; }

/// Too many or too few of them.
std::optional<std::string> wrong_operands(const Command& command) {
  const auto count = static_cast<int>(command.operands.size());
  if (count > command.verb->operands_max) return "unrecognized argument: " + command.operands.back();
  if (count < command.verb->operands_min) return fmt::format("{} is missing", command.verb->operands);
  return std::nullopt;
}

/// Those that end the program at once.
std::optional<EarlyEnd> end_about_us(const OptionValues& options, CommandParser& parser) {
  if (options.flag("help")) return EarlyEnd{CtlExit::done, parser.help(), ""};
  if (options.flag("version")) {
    const auto schemas = {SchemaNumber{"events_schema", event_schema}, SchemaNumber{"page_schema", job_page_schema}};
    return EarlyEnd{CtlExit::done, version_answer("torchupctl", options.flag("json"), schemas), ""};
  }
  if (options.has("print-completion"))
    return EarlyEnd{CtlExit::done, *ctl_completion(options.text("print-completion")), ""};
  return std::nullopt;
}

}  // namespace

EarlyEnd wrong_usage(const Verb* verb, const std::string& message) {
  return {CtlExit::usage, "", usage_line(verb) + "torchupctl: error: " + message + "\n"};
}

std::variant<Command, EarlyEnd> parse_command(std::span<const std::string> words) {
  const auto dashes = std::ranges::find(words, "--");
  std::vector<std::string> rest{words.begin(), dashes};
  std::vector<std::string> plain{dashes == words.end() ? dashes : dashes + 1, words.end()};  // whatever they look like
  Command command;
  const std::size_t at = verb_at(rest);
  if (at < rest.size()) {
    command.verb = find_verb(rest[at]);
    if (!command.verb) return unknown_verb(rest[at]);
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(at));
  }
  if (command.verb && command.verb->name == "explain") {
    const auto codes =
        std::stable_partition(rest.begin(), rest.end(), [](const auto& w) { return !is_negative_number(w); });
    plain.insert(plain.begin(), codes, rest.end());
    rest.erase(codes, rest.end());
  }
  CommandParser parser{command.verb};
  if (const auto error = parser.parse(std::move(rest), command)) return wrong_usage(command.verb, *error);
  if (auto end = end_about_us(command.options, parser)) return *std::move(end);
  if (!command.verb) return wrong_usage(nullptr, "which verb? torchupctl --help lists them");
  if (const auto option = std::ranges::find_if(command.operands, looks_like_option); option != command.operands.end())
    return wrong_usage(command.verb, "unrecognized argument: " + *option);
  command.operands.insert(command.operands.end(), plain.begin(), plain.end());
  if (const auto wrong = wrong_operands(command)) return wrong_usage(command.verb, *wrong);
  return command;
}

}  // namespace torchup

#include "launcher/cli.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "launcher/core/options/command_line_words.hpp"
#include "launcher/core/options/exit_codes.hpp"

namespace torchup {
namespace {

constexpr const char* usage = "usage: torchup [options] program [arguments]\n";
constexpr std::string_view legacy_name = "torchup-launch";
constexpr std::string_view torchrun_name = "torchrun";
constexpr const char* legacy_warning =
    "torchup-launch: FutureWarning: The module torch.distributed.launch is deprecated\n"
    "and will be removed in future. Use torchup (torchrun).\n"
    "If your script expects `--local-rank` argument to be set, please\n"
    "change it to read from `os.environ['LOCAL_RANK']` instead.\n";

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(44); }
  std::string make_usage(const CLI::App*, std::string) const override { return usage; }
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_type_name().empty() ? "" : " " + option->get_type_name();
  }
};

/// Which options of the table these words may name. CLI11 compares each option that it is told of with all others,
/// which takes a good part of a short job's time: so it is told of those only.
class NamedOptions {
 public:
  explicit NamedOptions(const std::vector<std::string>& tokens) {
    for (const std::string& token : tokens) {
      if (!token.starts_with("--")) {
        every_ = every_ || token.starts_with("-");  // a short one, or several
        continue;
      }
      std::string name = token.substr(2, token.find('=') - 2);
      std::replace(name.begin(), name.end(), '_', '-');
      every_ = every_ || name == "help";
      names_.push_back(std::move(name));
    }
  }

  [[nodiscard]] bool has(const OptionSpec& spec) const {
    return every_ || std::find(names_.begin(), names_.end(), spec.name) != names_.end();
  }

 private:
  bool every_ = false;
  std::vector<std::string> names_;
};

/// The options of the table as CLI11 knows them: it reads them, their types and choices, and writes the help.
///
/// What it cannot do is done by hand, in core/options/command_line_words: argparse's rules for where the program
/// begins, for words that look like options but are none, for clusters of short options, and for one `--` too many.
class OptionParser {
 public:
  OptionParser(bool legacy, const NamedOptions& named) : legacy_{legacy} {
    app_.name("torchup");
    app_.description(
        "Starts, supervises and restarts the workers of a distributed PyTorch job; takes torchrun's options.");
    app_.set_help_flag();
    app_.allow_extras();
    app_.formatter(std::make_shared<HelpFormatter>());
    for (const OptionSpec& spec : option_table()) {
      if (!named.has(spec) || (spec.name == "use-env" && !legacy)) continue;
      CLI::Option* option = add(spec);
      option->group(std::string{spec.group});
      options_.emplace_back(&spec, option);
    }
  }

  /// Reads `tokens` into `values`; returns an error in argparse's words, or nothing.
  std::optional<std::string> parse(std::vector<std::string> tokens, OptionValues& values) {
    std::reverse(tokens.begin(), tokens.end());
    std::optional<std::string> error;
    try {
      app_.parse(tokens);
    } catch (const CLI::ParseError& refused) {
      error = wrong_value_.empty() ? refused.what() : wrong_value_;
    }
    if (const auto extras = app_.remaining(); !error && !extras.empty()) error = unrecognized(extras);
    for (const auto& [spec, option] : options_) {
      if (option->count() == 0) continue;
      values.set(spec->name, spec->kind == ValueKind::flag ? "1" : option->results().back());
    }
    return error;
  }

  [[nodiscard]] std::string help() {
    std::string footer =
        "Where the command line lacks an option, a variable PET_<NAME> stands for it (PET_NPROC_PER_NODE), then "
        "--config.\n"
        "\nExit codes:\n";
    for (const ExitCode& code : exit_codes()) footer += fmt::format("  {:<8}{}\n", code.code, code.meaning);
    footer +=
        "\nExamples:\n"
        "  torchup --nproc-per-node=auto train.py --epochs 10\n"
        "  torchup --nnodes=2 --nproc-per-node=8 --rdzv-id=job1 --rdzv-backend=c10d --rdzv-endpoint=node1:29400 "
        "train.py\n";
    app_.footer(footer);
    return app_.help();
  }

 private:
  CLI::Option* add(const OptionSpec& spec) {
    std::string names = spec.short_name ? std::string{"-"} + spec.short_name + "," : std::string{};
    names += "--" + std::string{spec.name};
    if (const std::string other = underscored(spec.name); other != spec.name) names += ",--" + other;
    if (spec.kind == ValueKind::flag) return app_.add_flag(names)->description(std::string{spec.help});
    CLI::Option* option = app_.add_option(names, texts_.emplace_back(), std::string{spec.help});
    option->type_name(std::string{spec.value});
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    option->check([this, &spec](const std::string& text) {
      if (wrong_value_.empty()) wrong_value_ = wrong_value(spec, text).value_or("");
      return wrong_value_;
    });
    return option;
  }

  [[nodiscard]] std::string unrecognized(const std::vector<std::string>& extras) const {
    std::string text = "unrecognized arguments:";
    for (const std::string& extra : extras) text += " " + extra;
    const std::string nearest =
        nearest_option(extras.front().substr(std::min(extras.front().find_first_not_of('-'), extras.front().size())));
    if (nearest == "use-env" && !legacy_) return text + " (leave it out: no program is given --local-rank)";
    if (!nearest.empty()) text += " (did you mean --" + nearest + "?)";
    return text;
  }

  const bool legacy_;  ///< where alone there is --use-env
  CLI::App app_;
  std::deque<std::string> texts_;
  std::string wrong_value_;  ///< in argparse's words; CLI11 puts others around what a check says
  std::vector<std::pair<const OptionSpec*, CLI::Option*>> options_;
};

}  // namespace

EarlyEnd usage_error(const std::string& message) { return {2, "", usage + ("torchup: error: " + message + "\n")}; }

std::variant<CommandLine, EarlyEnd> parse_command_line(std::span<const std::string> words) {
  const std::string name = words.front().substr(words.front().rfind('/') + 1);
  const bool as_launch = name == legacy_name;
  SplitCommandLine split;
  auto error = split_command_line(words.subspan(1), split);
  CommandLine line;
  OptionParser parser{as_launch, NamedOptions{split.options}};
  if (!error) error = parser.parse(split.options, line.options);
  if (line.options.flag("help")) return EarlyEnd{0, parser.help(), ""};
  if (error) return usage_error(*error);
  line.program = std::move(split.program);
  line.legacy = as_launch && !line.options.flag("use-env");
  line.as_torchrun = as_launch || name == torchrun_name;
  if (as_launch) std::fputs(legacy_warning, stderr);
  return line;
}

}  // namespace torchup

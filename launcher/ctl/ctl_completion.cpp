#include "launcher/ctl/ctl_completion.hpp"

#include <fmt/format.h>

#include "launcher/core/options/completion.hpp"
#include "launcher/ctl/verb_table.hpp"

namespace torchup {
namespace {

/// Run ids, as a shell asks for them.
constexpr std::string_view run_ids =
    "torchupctl ps --json 2>/dev/null | grep -o '\"run_id\": *\"[^\"]*\"' | cut -d'\"' -f4";

std::string verb_names() {
  std::string names;
  for (const Verb& verb : verb_table()) names += fmt::format("{}{}", names.empty() ? "" : " ", verb.name);
  return names;
}

std::string option_names(std::span<const OptionSpec> options) {
  std::string names;
  for (const OptionSpec& option : options) names += fmt::format("--{} ", option.name);
  return names;
}

/// Each option with choices of any verb, with them, in the form that `form` gives; once each.
template <class Form>
std::string each_choice(const Form& form) {
  std::string text;
  std::string seen = " ";
  const auto add = [&](const OptionSpec& option) {
    const std::string name = fmt::format("--{} ", option.name);
    if (option.choices.empty() || seen.find(" " + name) != std::string::npos) return;
    seen += name;
    text += form(option);
  };
  for (const Verb& verb : verb_table()) {
    for (const OptionSpec& option : verb.options) add(option);
  }
  for (const OptionSpec& option : common_options()) add(option);
  return text;
}

/// Common to bash and zsh: a `case` with the options of each verb.
std::string options_by_verb() {
  std::string text;
  for (const Verb& verb : verb_table()) {
    if (!verb.options.empty()) text += fmt::format("    {}) options='{}' ;;\n", verb.name, option_names(verb.options));
  }
  return text;
}

std::string bash_script() {
  const std::string choices = each_choice([](const OptionSpec& option) {
    return fmt::format("    --{}) COMPREPLY=($(compgen -W '{}' -- \"$word\")); return ;;\n", option.name,
                       spaced(option.choices));
  });
  return fmt::format(R"sh(_torchupctl() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} verb= options= at ids id
  case $before in
{}  esac
  for ((at = 1; at < COMP_CWORD; at++)); do
    case ${{COMP_WORDS[at]}} in
      --endpoint|--token-file) ((at++)) ;;
      -*) ;;
      *) verb=${{COMP_WORDS[at]}}; break ;;
    esac
  done
  case $verb in
{}  esac
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$options {}" -- "$word"))
  elif [[ -z $verb ]]; then
    COMPREPLY=($(compgen -W '{}' -- "$word"))
  else
    # Run ids are anybody's words: a list for -W would be expanded, commands in it too.
    mapfile -t ids < <({})
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
    for id in "${{ids[@]}}"; do [[ $id == "$word"* ]] && COMPREPLY+=("$id"); done
  fi
}}
complete -o filenames -F _torchupctl torchupctl
)sh",
                     choices, options_by_verb(), option_names(common_options()), verb_names(), run_ids);
}

std::string zsh_entry(const OptionSpec& option) {
  std::string help{option.help};
  std::erase_if(help, [](char c) { return c == '[' || c == ']' || c == ':' || c == '\''; });
  std::string entry = fmt::format("--{}{}[{}]", option.name, option.kind == ValueKind::flag ? "" : "=", help);
  if (option.kind != ValueKind::flag) {
    entry += fmt::format(":{}:", option.name);
    if (!option.choices.empty()) entry += fmt::format("({})", spaced(option.choices));
    if (option.value == "FILE") entry += "_files";
  }
  return shell_quoted(entry);
}

std::string zsh_script() {
  std::string text =
      "#compdef torchupctl\nlocal -a own\nlocal word verb\nfor word in ${words[2,-1]}; do\n  case $word in\n    ";
  text += fmt::format("{}) verb=$word; break ;;\n  esac\ndone\ncase $verb in\n", [] {
    std::string names = verb_names();
    for (char& c : names) c = c == ' ' ? '|' : c;
    return names;
  }());
  for (const Verb& verb : verb_table()) {
    if (verb.options.empty()) continue;
    text += fmt::format("  {}) own=(", verb.name);
    for (const OptionSpec& option : verb.options) text += zsh_entry(option) + " ";
    text += ") ;;\n";
  }
  text += "esac\n_arguments -S $own \\\n";
  for (const OptionSpec& option : common_options()) text += fmt::format("  {} \\\n", zsh_entry(option));
  return text +
         fmt::format("  '1:verb:({})' '*:job:{{compadd -- ${{(f)\"$({})\"}}; _files}}'\n", verb_names(),
                     "torchupctl ps --json 2>/dev/null | grep -o \"\\\"run_id\\\": *\\\"[^\\\"]*\" | cut -d\\\" -f4");
}

std::string fish_script() {
  std::string text = fmt::format(
      "complete -c torchupctl -n 'not __fish_seen_subcommand_from {0}' -f\n"
      "complete -c torchupctl -n '__fish_seen_subcommand_from {0}' -a '({1})'\n",
      verb_names(), [] {
        std::string command{run_ids};
        std::string escaped;
        for (const char c : command) escaped += c == '\'' ? std::string{"\\'"} : std::string{c};
        return escaped;
      }());
  const auto add = [&](const OptionSpec& option, const std::string& when) {
    text += fmt::format("complete -c torchupctl{} -l {}", when, option.name);
    if (option.short_name) text += fmt::format(" -s {}", option.short_name);
    if (option.kind != ValueKind::flag) text += " -r";
    if (!option.choices.empty()) text += " -f -a " + shell_quoted(spaced(option.choices));
    text += " -d " + shell_quoted(option.help) + "\n";
  };
  for (const Verb& verb : verb_table()) {
    text += fmt::format("complete -c torchupctl -n 'not __fish_seen_subcommand_from {}' -f -a {} -d {}\n", verb_names(),
                        verb.name, shell_quoted(verb.help));
    for (const OptionSpec& option : verb.options)
      add(option, fmt::format(" -n '__fish_seen_subcommand_from {}'", verb.name));
  }
  for (const OptionSpec& option : common_options()) add(option, "");
  return text;
}

std::string tcsh_script() {
  std::string text = "complete torchupctl";
  text += each_choice(
      [](const OptionSpec& option) { return fmt::format(" 'n/--{}/({})/'", option.name, spaced(option.choices)); });
  std::string all;
  for (const Verb& verb : verb_table()) {
    for (const OptionSpec& option : verb.options) {
      const std::string name = fmt::format("{} ", option.name);
      if ((" " + all).find(" " + name) == std::string::npos) all += name;
    }
  }
  for (const OptionSpec& option : common_options()) all += fmt::format("{} ", option.name);
  return text + fmt::format(" 'c/--/({})/' 'p/1/({})/' 'n/*/f/'\n", all, verb_names());
}

}  // namespace

std::optional<std::string> ctl_completion(std::string_view shell) {
  if (shell == "bash") return bash_script();
  if (shell == "zsh") return zsh_script();
  if (shell == "fish") return fish_script();
  if (shell == "tcsh") return tcsh_script();
  return std::nullopt;
}

}  // namespace torchup

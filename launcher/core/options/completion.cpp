#include "launcher/core/options/completion.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "launcher/core/options/option_table.hpp"

namespace torchup {

std::string spaced(std::string_view choices) {
  std::string text{choices};
  std::replace(text.begin(), text.end(), '|', ' ');
  return text;
}

std::string shell_quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string{"'\\''"} : std::string{c};
  return result + "'";
}

namespace {

std::string bash_completion() {
  std::string flags;
  std::string all;
  std::string choices;
  for (const OptionSpec& option : option_table()) {
    const std::string name = "--" + std::string{option.name};
    all += name + " ";
    if (option.kind == ValueKind::flag) continue;
    flags += (flags.empty() ? "" : "|") + name;
    if (!option.choices.empty())
      choices +=
          "    " + name + ") COMPREPLY=($(compgen -W '" + spaced(option.choices) + "' -- \"$word\")); return ;;\n";
  }
  return "_torchup() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} at\n"
         "  case $before in\n" +
         choices +
         "  esac\n"
         "  for ((at = 1; at < COMP_CWORD; at++)); do\n"
         "    case ${COMP_WORDS[at]} in\n"
         "      " +
         flags +
         ") ((at++)) ;;\n"
         "      -*) ;;\n"
         "      *) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n"
         "    esac\n"
         "  done\n"
         "  if [[ $word == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W '" +
         all +
         "' -- \"$word\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -c -f -- \"$word\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _torchup torchup torchup-launch\n";
}

/// One line for each spelling: with a short name each excludes the other.
std::string zsh_completion() {
  std::string text = "#compdef torchup torchup-launch\n_arguments -S \\\n";
  for (const OptionSpec& option : option_table()) {
    const auto plain = [](std::string_view words) {
      std::string kept{words};
      std::erase_if(kept, [](char c) { return c == '[' || c == ']' || c == ':'; });
      return kept;
    };
    std::string behind = "[" + plain(option.help) + "]";
    if (option.kind != ValueKind::flag) {
      behind += ":" + plain(option.value) + ":";
      if (!option.choices.empty()) behind += "(" + spaced(option.choices) + ")";
      if (option.value == "FILE" || option.value == "DIR") behind += "_files";
    }
    const bool takes_value = option.kind != ValueKind::flag;
    const std::string name = fmt::format("--{}", option.name);
    if (!option.short_name) {
      text += fmt::format("  {} \\\n", shell_quoted(name + (takes_value ? "=" : "") + behind));
      continue;
    }
    text += fmt::format(
        "  {} \\\n", shell_quoted(fmt::format("({})-{}{}{}", name, option.short_name, takes_value ? "+" : "", behind)));
    text += fmt::format(
        "  {} \\\n", shell_quoted(fmt::format("(-{}){}{}{}", option.short_name, name, takes_value ? "=" : "", behind)));
  }
  return text + "  '1:program:{_command_names -e; _files}' '*::arguments:_files'\n";
}

std::string fish_completion() {
  std::string taking;  // options whose value is the next word
  for (const OptionSpec& option : option_table()) {
    if (option.kind == ValueKind::flag) continue;
    taking += fmt::format(" --{0} --{1}", option.name, underscored(option.name));
    if (option.short_name) taking += fmt::format(" -{}", option.short_name);
  }
  std::string text = fmt::format(R"(function __torchup_before_program
    set -l skip 0
    set -l words (commandline -opc)
    for word in $words[2..-1]
        if test $skip = 1
            set skip 0
            continue
        end
        switch $word
            case{}
                set skip 1
            case '-*'
            case '*'
                return 1
        end
    end
    return 0
end
)",
                                 taking);
  for (const OptionSpec& option : option_table()) {
    text += fmt::format("complete -c torchup -n __torchup_before_program -l {}", option.name);
    if (option.short_name) text += fmt::format(" -s {}", option.short_name);
    if (option.kind != ValueKind::flag) text += " -r";
    if (!option.choices.empty()) text += " -f -a " + shell_quoted(spaced(option.choices));
    text += " -d " + shell_quoted(option.help) + "\n";
  }
  return text;
}

std::string tcsh_completion() {
  std::string names;
  std::string values;
  for (const OptionSpec& option : option_table()) {
    names += std::string{option.name} + " ";
    if (!option.choices.empty()) values += " 'n/--" + std::string{option.name} + "/(" + spaced(option.choices) + ")/'";
  }
  return "complete torchup" + values + " 'c/--/(" + names + ")/' 'n/*/f/'\n";
}

}  // namespace

std::optional<std::string> completion_script(std::string_view shell) {
  if (shell == "bash") return bash_completion();
  if (shell == "zsh") return zsh_completion();
  if (shell == "fish") return fish_completion();
  if (shell == "tcsh") return tcsh_completion();
  return std::nullopt;
}

}  // namespace torchup

#include "launcher/core/manual.hpp"

#include <algorithm>
#include <vector>

#include "launcher/core/option_table.hpp"

namespace torchup {
namespace {

/// Text in roff: a dash of an option is `\-`, a dot or quote at the beginning of a line is no command.
std::string roff(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
  }
  if (result.starts_with('.') || result.starts_with('\'')) result.insert(0, "\\&");
  return result;
}

/// "a b c" of "a|b|c".
std::string spaced(std::string_view choices) {
  std::string text{choices};
  std::replace(text.begin(), text.end(), '|', ' ');
  return text;
}

/// Inside single quotes of a shell.
std::string shell_quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string{"'\\''"} : std::string{c};
  return result + "'";
}

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

std::string zsh_completion() {
  std::string text = "#compdef torchup torchup-launch\n_arguments -S \\\n";
  for (const OptionSpec& option : option_table()) {
    std::string help{option.help};
    std::erase_if(help, [](char c) { return c == '[' || c == ']' || c == ':'; });
    std::string spec = "--" + std::string{option.name} + (option.kind == ValueKind::flag ? "" : "=") + "[" + help + "]";
    if (option.kind != ValueKind::flag) {
      std::string value{option.value};
      std::erase_if(value, [](char c) { return c == ':' || c == '[' || c == ']'; });
      spec += ":" + value + ":";
      if (!option.choices.empty()) spec += "(" + spaced(option.choices) + ")";
      if (option.value == "FILE" || option.value == "DIR") spec += "_files";
    }
    text += "  " + shell_quoted(spec) + " \\\n";
  }
  return text + "  '1:program:_command_names -e' '*::arguments:_files'\n";
}

std::string fish_completion() {
  std::string text;
  for (const OptionSpec& option : option_table()) {
    text += "complete -c torchup -n __fish_is_first_arg -l " + std::string{option.name};
    if (option.short_name) text += std::string{" -s "} + option.short_name;
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

std::string manual_page(std::string_view version) {
  std::string text =
      ".TH TORCHUP 1 \"\" \"torchup " + roff(version) +
      "\" \"User commands\"\n"
      ".SH NAME\ntorchup \\- start, supervise and restart the workers of a distributed PyTorch job\n"
      ".SH SYNOPSIS\n.B torchup\n[\\fIoptions\\fR] \\fIprogram\\fR [\\fIarguments\\fR]\n"
      ".SH DESCRIPTION\n"
      "Starts the program once for each worker, with the environment that PyTorch's distributed package reads, and "
      "takes\n"
      "torchrun's options. A Python script runs with python3; an ELF file, and an executable script that begins with "
      "#!\n"
      "and whose name does not end in .py, run by themselves.\n"
      "Every option may be written with dashes or underscores. Where the command line does not have it, a variable\n"
      "\\fBPET_\\fINAME\\fR stands for it, and then the file of \\fB\\-\\-config\\fR.\n"
      ".SH OPTIONS\n";
  std::string_view group;
  for (const OptionSpec& option : option_table()) {
    if (option.group != group) {
      group = option.group;
      text += ".SS " + roff(group) + "\n";
    }
    text += ".TP\n";
    if (option.short_name) text += std::string{"\\fB\\-"} + option.short_name + "\\fR, ";
    text += "\\fB\\-\\-" + roff(option.name) + "\\fR";
    if (!option.value.empty()) text += " \\fI" + roff(option.value) + "\\fR";
    text += "\n" + roff(option.help) + "\n";
  }
  struct Status {
    std::string_view code, meaning;
  };
  constexpr Status statuses[] = {{"0", "All workers exited 0."},
                                 {"1", "Workers failed and no restart was left."},
                                 {"2", "The command line was refused, or there is no such program."},
                                 {"65", "The machine does not offer what was asked for."},
                                 {"66", "Too few nodes within the join timeout."},
                                 {"67", "The endpoint cannot be reached, or its port is taken."},
                                 {"68", "The nodes do not fit together."},
                                 {"70", "Internal fault."},
                                 {"128+N", "Ended by signal N."}};
  text += ".SH EXIT STATUS\n";
  for (const Status& status : statuses) {
    text += ".TP\n\\fB" + std::string{status.code} + "\\fR\n" + roff(status.meaning) + "\n";
  }
  return text + ".SH SEE ALSO\n.BR torchupd (1)\n";
}

std::optional<std::string> completion_script(std::string_view shell) {
  if (shell == "bash") return bash_completion();
  if (shell == "zsh") return zsh_completion();
  if (shell == "fish") return fish_completion();
  if (shell == "tcsh") return tcsh_completion();
  return std::nullopt;
}

}  // namespace torchup

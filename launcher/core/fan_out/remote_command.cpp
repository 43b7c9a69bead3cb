#include "launcher/core/fan_out/remote_command.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "launcher/core/text/signals.hpp"
#include "launcher/core/text/text.hpp"
#include "rendezvous/core/text/endpoint.hpp"

namespace torchup {
namespace {

constexpr std::string_view host_mark = "{host}";
constexpr int not_executable_code = 126;
constexpr int not_found_code = 127;

/// One word after the other.
class ShellWords {
 public:
  explicit ShellWords(std::string_view text) : rest_{text} {}

  Result<std::vector<std::string>> read() {
    while (!rest_.empty()) {
      const char next = take();
      if (blanks.find(next) != std::string_view::npos) {
        end_word();
      } else if (next == '\'' || next == '"') {
        if (!read_quoted(next)) return fail(errc::bad_value, fmt::format("a {} has no end", next));
      } else if (next == '\\' && !rest_.empty()) {
        add(take());
      } else {
        add(next);
      }
    }
    end_word();
    if (words_.empty()) return fail(errc::bad_value, "there is no command");
    return std::move(words_);
  }

 private:
  char take() {
    const char next = rest_.front();
    rest_.remove_prefix(1);
    return next;
  }
  void add(char letter) {
    word_ += letter;
    open_ = true;
  }
  void end_word() {
    if (open_) words_.push_back(std::exchange(word_, {}));
    open_ = false;
  }
  bool read_quoted(char quote) {
    open_ = true;
    while (!rest_.empty()) {
      const char next = take();
      if (next == quote) return true;
      const bool escapes = quote == '"' && next == '\\' && !rest_.empty() &&
                           std::string_view{"\\\"$`"}.find(rest_.front()) != std::string_view::npos;
      word_ += escapes ? take() : next;
    }
    return false;
  }

  std::string_view rest_;
  std::string word_;
  bool open_ = false;  ///< a word has begun; it may be empty
  std::vector<std::string> words_;
};

bool replace_mark(std::string& word, const std::string& name) {
  bool found = false;
  for (std::size_t at = word.find(host_mark); at != std::string::npos; at = word.find(host_mark, at + name.size())) {
    word.replace(at, host_mark.size(), name);
    found = true;
  }
  return found;
}

}  // namespace

Result<std::vector<std::string>> split_words(std::string_view command) { return ShellWords{command}.read(); }

std::vector<std::string> remote_command(const std::vector<std::string>& command, const Host& host,
                                        const std::string& program) {
  std::vector<std::string> words = command;
  bool named = false;
  for (std::string& word : words) named = replace_mark(word, host.name) || named;
  if (!named) words.push_back(host.name);
  words.push_back(program);
  words.emplace_back(link_word);
  return words;
}

std::vector<std::string> local_command(const std::string& program, std::string_view beside) {
  return {program, fmt::format("{}={}", link_word, beside)};
}

std::optional<LinkStart> read_link_word(std::string_view argument) {
  if (!take_start(argument, link_word)) return std::nullopt;
  if (argument.empty()) return LinkStart{};
  if (argument.front() != '=') return std::nullopt;
  return LinkStart{.by_command = false, .beside = std::string{argument.substr(1)}};
}

bool is_safe_word(std::string_view word) {
  const auto safe = [](unsigned char letter) {
    return (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
           std::string_view{"_-./+,:@%="}.find(static_cast<char>(letter)) != std::string_view::npos;
  };
  return !word.empty() && !word.starts_with('-') && std::ranges::all_of(word, safe);
}

std::string_view name_of_host(std::string_view host) { return host.substr(host.rfind('@') + 1); }

bool is_this_host(const Host& host, std::string_view own_name) {
  const std::string_view name = host.name;
  return name == "localhost" || is_loopback(name) || name == own_name || name == own_name.substr(0, own_name.find('.'));
}

std::string why_broken(std::string_view why, std::optional<int> exit_code, bool linked,
                       const std::vector<std::string>& command) {
  const std::string& program = command.size() >= 2 ? command[command.size() - 2] : command.front();
  const std::string& starter = command.front();
  if (!linked && exit_code == not_found_code) {
    return fmt::format("no torchup at {} there; --remote-torchup names another", program);
  }
  if (!linked && exit_code == not_executable_code) {
    return fmt::format("{} cannot be executed there; --remote-torchup names another", program);
  }
  if (!why.empty()) return fmt::format("the link is broken: {}", why);
  if (!exit_code) return "the link has ended";
  if (const auto signal = signal_of_shell_code(*exit_code)) {
    return fmt::format("{} was ended by {}", starter, signal_text(*signal));
  }
  return fmt::format("{} ended with {}", starter, *exit_code);
}

}  // namespace torchup

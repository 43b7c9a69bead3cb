#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "launcher/core/rehearsal/rehearsal_forms.hpp"
#include "launcher/core/rehearsal/rehearsal_script.hpp"
#include "launcher/core/rehearsal/rehearsal_words.hpp"
#include "launcher/core/text/signals.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

constexpr std::size_t told_word_bytes_max = 40;
constexpr std::string_view time_wanted = "a time such as 1.5s, 500ms or 2m";

Error script_error(errc code, ScriptPlace place, std::string_view what) {
  return fail(code, fmt::format("{}:{}: {}", place.line, place.column, what));
}
Error unexpected(ScriptPlace place, std::string_view what, std::string_view expected) {
  return script_error(errc::bad_value, place, fmt::format("{}: expected {}", what, expected));
}
std::string quoted_word(std::string_view word) {
  return fmt::format("'{}'", printable_start(word, told_word_bytes_max));
}

/// Reads a script, statement by statement.
class ScriptReader {
 public:
  Result<> read(const StatementWords& statement) {
    words_ = statement.words;
    end_ = statement.end;
    const ScriptWord word = next();
    if (word.text == "at") return read_at();
    if (word.text == "every") return read_every();
    if (word.text == "expect") return read_expectations();
    if (word.text.starts_with("seed=")) return read_seed(word);
    return unexpected(word.place, quoted_word(word.text) + " begins no statement", "at, every, expect or seed=N");
  }

  RehearsalScript take() { return std::move(script_); }

 private:
  [[nodiscard]] bool at_end() const { return words_.empty(); }
  ScriptWord next() {
    if (at_end()) return {{}, end_};
    const ScriptWord word = words_.front();
    words_ = words_.subspan(1);
    return word;
  }
  static Error wrong_word(const ScriptWord& word, std::string_view what, std::string_view expected) {
    if (word.text.empty()) return unexpected(word.place, "the statement ends", expected);
    return unexpected(word.place, fmt::format("{} {}", quoted_word(word.text), what), expected);
  }

  /// Reads a time; `text` is the word or its end, `expected` what might stand there.
  static Result<Duration> time_of(const ScriptWord& word, std::string_view text, std::string_view expected) {
    const ScriptTime read = script_time(text);
    switch (read.is) {
      case ScriptTime::Is::good:
        return read.time;
      case ScriptTime::Is::zero:
        return wrong_word(word, "is no time at all", "more than 0");
      case ScriptTime::Is::too_long:
        return wrong_word(word, "is too long",
                          fmt::format("{} days or less", script_time_max / std::chrono::hours{24}));
      case ScriptTime::Is::none:
        break;
    }
    return wrong_word(word, "is no time", expected);
  }

  Result<> read_at() {
    ScriptStatement statement;
    const ScriptWord when = next();
    if (when.text == "step") {
      const ScriptWord step = next();
      const auto number = script_number<std::int64_t>(step.text, 0, script_step_max);
      if (!number) return wrong_word(step, "is no step", fmt::format("a number from 0 to {}", script_step_max));
      statement.when = ScriptStatement::When::step;
      statement.step = *number;
    } else {
      const auto time = time_of(when, when.text, fmt::format("{}, or step N", time_wanted));
      if (!time) return time.error();
      statement.time = *time;
    }
    return read_action(statement);
  }

  Result<> read_every() {
    ScriptStatement statement;
    statement.when = ScriptStatement::When::every;
    const ScriptWord word = next();
    const auto time = time_of(word, word.text, time_wanted);
    if (!time) return time.error();
    if (*time < script_every_min) {
      return wrong_word(word, "is too short", script_time_text(script_every_min) + " or more");
    }
    statement.time = *time;
    return read_action(statement);
  }

  Result<> read_action(ScriptStatement& statement) {
    const ScriptWord verb = next();
    std::vector<const ActionForm*> forms;
    std::string targets;
    for (const ActionForm& form : action_forms()) {
      if (form.verb != verb.text) continue;
      forms.push_back(&form);
      targets += fmt::format("{}{}N or {}random", targets.empty() ? "" : ", ", form.target, form.target);
    }
    if (forms.empty()) return wrong_word(verb, "is no action", "kill, stop, slow, leave or cut");
    const ScriptWord target = next();
    const auto form = std::ranges::find_if(forms, [&](auto* one) { return target.text.starts_with(one->target); });
    if (form == forms.end()) return wrong_word(target, fmt::format("is nothing to {}", verb.text), targets);
    statement.action.kind = (*form)->kind;
    const std::string_view name = target.text.substr((*form)->target.size());
    if (name != "random") {
      const int most = (is_of_rank((*form)->kind) ? world_size_max : nodes_max) - 1;
      statement.action.target = script_number<int>(name, 0, most);
      if (!statement.action.target) return wrong_word(target, "names none", targets);
    }
    std::vector<FaultOption> allowed = (*form)->allowed;
    if (statement.when == ScriptStatement::When::every) allowed.push_back(FaultOption::times);
    if (auto read = read_options(**form, allowed, statement); !read) return read.error();
    script_.statements.push_back(statement);
    return {};
  }

  Result<> read_options(const ActionForm& form, const std::vector<FaultOption>& allowed, ScriptStatement& statement) {
    std::vector<FaultOption> open = form.needed;
    open.insert(open.end(), allowed.begin(), allowed.end());
    std::vector<FaultOption> given;
    while (!at_end()) {
      const ScriptWord word = next();
      const auto found =
          std::ranges::find_if(open, [&](FaultOption one) { return word.text.starts_with(fault_option_name(one)); });
      if (found == open.end()) {
        const bool twice =
            std::ranges::any_of(given, [&](FaultOption one) { return word.text.starts_with(fault_option_name(one)); });
        return wrong_word(word, twice ? "is given twice" : "has no place here", wanted(open));
      }
      const FaultOption option = *found;
      given.push_back(option);
      open.erase(found);
      if (auto set = set_option(option, word, statement); !set) return set.error();
    }
    for (const FaultOption needed : form.needed) {
      if (std::ranges::find(open, needed) == open.end()) continue;
      return unexpected(end_, fmt::format("{} needs {}", form.verb, fault_option_name(needed)), value_wanted(needed));
    }
    return {};
  }

  static std::string wanted(const std::vector<FaultOption>& open) {
    std::string text;
    for (const FaultOption option : open) text += std::string{fault_option_name(option)} + ", ";
    return text + (text.empty() ? "the statement's end" : "or the statement's end");
  }
  static std::string value_wanted(FaultOption option) {
    switch (option) {
      case FaultOption::signal:
        return "a signal such as TERM";
      case FaultOption::by:
        return fmt::format("1% to {}%", script_slow_percent_max);
      case FaultOption::times:
        return fmt::format("a number from 1 to {}", script_times_max);
      default:
        return std::string{time_wanted};
    }
  }

  static Result<> set_option(FaultOption option, const ScriptWord& word, ScriptStatement& statement) {
    const std::string_view value = word.text.substr(fault_option_name(option).size());
    ScriptAction& action = statement.action;
    bool good = true;
    switch (option) {
      case FaultOption::signal: {
        const auto signal = signal_number(value);
        good = signal.has_value();
        action.signal = signal.value_or(action.signal);
        break;
      }
      case FaultOption::by: {
        const bool percent = value.ends_with('%');
        const auto number =
            script_number<int>(value.substr(0, value.size() - (percent ? 1 : 0)), 1, script_slow_percent_max);
        good = percent && number;
        action.by_percent = number.value_or(0);
        break;
      }
      case FaultOption::lasts:
      case FaultOption::back: {
        const auto time = time_of(word, value, time_wanted);
        if (!time) return time.error();
        (option == FaultOption::lasts ? action.lasts : action.back.emplace()) = *time;
        break;
      }
      case FaultOption::times:
        statement.times = script_number<int>(value, 1, script_times_max);
        good = statement.times.has_value();
        break;
    }
    if (good) return {};
    return wrong_word(word, "has no such value", value_wanted(option));
  }

  Result<> read_seed(const ScriptWord& word) {
    const auto seed = script_number<std::uint64_t>(word.text.substr(5), 0, std::numeric_limits<std::uint64_t>::max());
    if (!seed) return wrong_word(word, "is no seed", "seed=N, N from 0 on");
    if (!at_end()) return wrong_word(next(), "has no place here", "the statement's end");
    if (seed_known_) return unexpected(word.place, "there is a seed already", "one");
    seed_known_ = true;
    script_.seed = *seed;
    return {};
  }

  Result<> read_expectations() {
    constexpr std::string_view all = "exit=N, restarts=N, restarts<=N, recovery<=TIME or ranks=N";
    if (at_end()) return wrong_word(next(), "", all);
    while (!at_end()) {
      const ScriptWord word = next();
      const auto after = [&](std::string_view name) {
        return word.text.starts_with(name) ? std::optional{word.text.substr(name.size())} : std::nullopt;
      };
      ScriptExpectations& expect = script_.expect;
      const auto take = [&](auto& known, const auto& value) {
        const bool first = !known.has_value();
        known = value;
        return first;
      };
      bool first = true;
      bool good = true;
      if (const auto value = after("exit=")) {
        first = take(expect.exit_code, script_number<int>(*value, 0, exit_code_max));
        good = expect.exit_code.has_value();
      } else if (const auto at_most = after("restarts<=")) {
        first = take(expect.restarts, script_number<int>(*at_most, 0, restarts_max));
        good = expect.restarts.has_value();
        expect.restarts_at_most = true;
      } else if (const auto exactly = after("restarts=")) {
        first = take(expect.restarts, script_number<int>(*exactly, 0, restarts_max));
        good = expect.restarts.has_value();
      } else if (const auto text = after("recovery<=")) {
        const auto time = time_of(word, *text, all);
        if (!time) return time.error();
        first = take(expect.recovery_max, *time);
      } else if (const auto ranks = after("ranks=")) {
        first = take(expect.ranks, script_number<int>(*ranks, 0, world_size_max));
        good = expect.ranks.has_value();
      } else {
        return wrong_word(word, "cannot be expected", all);
      }
      if (!good) return wrong_word(word, "has no such value", all);
      if (!first) return wrong_word(word, "is expected twice", "it once");
    }
    return {};
  }

  std::span<const ScriptWord> words_;  ///< still to be read
  ScriptPlace end_;
  RehearsalScript script_;
  bool seed_known_ = false;
};

}  // namespace

Result<RehearsalScript> parse_rehearsal(std::string_view text) {
  if (text.size() > script_bytes_max) {
    return script_error(errc::limit_exceeded, {}, fmt::format("a script has at most {} bytes", script_bytes_max));
  }
  const std::vector<StatementWords> statements = split_statements(text);
  if (statements.empty()) return unexpected({}, "the script is empty", "a statement such as at 5s kill rank=1");
  ScriptReader reader;
  for (std::size_t i = 0; i < statements.size(); ++i) {
    if (i == script_statements_max) {
      return script_error(errc::limit_exceeded, statements[i].words.front().place,
                          fmt::format("a script has at most {} statements", script_statements_max));
    }
    if (auto read = reader.read(statements[i]); !read) return read.error();
  }
  return reader.take();
}

}  // namespace torchup

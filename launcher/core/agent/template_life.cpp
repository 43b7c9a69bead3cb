#include "launcher/core/agent/template_life.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "launcher/core/text/signals.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

/// Takes `word` off the front of `text`; false where something else stands there.
bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

std::string end_text(int exit_code) {
  return exit_code < 0 ? fmt::format("was ended by {}", signal_text(-exit_code))
                       : fmt::format("ended with exit code {}", exit_code);
}

}  // namespace

void TemplateLife::begins(TimePoint now) {
  state_ = State::loading;
  begin_ = now;
  pid_ = 0;
  importing_.clear();
  silent_ = false;
  may_be_swept_ = false;
}

std::optional<EventBody> TemplateLife::give_up(std::string reason, std::string said) {
  state_ = State::given_up;
  return event::PreloadGivenUp{std::move(reason), std::move(said)};
}

std::optional<EventBody> TemplateLife::says(std::string_view text, TimePoint now) {
  if (state_ != State::loading) return std::nullopt;
  if (take(text, "importing ")) {
    if (std::ranges::find(modules_, text) != modules_.end()) importing_ = printable_start(text);
  } else if (take(text, "failed ")) {
    return give_up(fmt::format("the process for the {} cannot be forked", python_ ? "imports" : "program"),
                   printable_start(text));
  } else if (text == "ready") {
    state_ = State::serving;
    return event::TemplateReady{pid_, modules_, std::chrono::duration<double>{now - begin_}.count()};
  }
  return std::nullopt;
}

std::string TemplateLife::early_end(int exit_code) const {
  if (!python_) return fmt::format("the program {} before it came to worker_main", end_text(exit_code));
  if (importing_.empty()) return fmt::format("the process for the imports {}", end_text(exit_code));
  return fmt::format("the process for the imports {} while importing {}", end_text(exit_code), importing_);
}

std::optional<EventBody> TemplateLife::ended(int exit_code) {
  const bool swept = may_be_swept_ && importing_.empty() && (exit_code == -SIGTERM || exit_code == -SIGKILL);
  if (state_ == State::loading && !swept) return give_up(early_end(exit_code));
  if (state_ != State::loading && state_ != State::serving) return std::nullopt;
  const std::string reason = fmt::format("the process with the {} {}", python_ ? "imports" : "program",
                                         silent_ ? "does not answer" : end_text(exit_code));
  if (state_ == State::serving && std::exchange(lost_, true))
    return give_up(reason + ", and is the second of this job");
  state_ = State::absent;
  return event::TemplateLost{pid_, reason};
}

std::optional<EventBody> TemplateLife::not_started(const std::string& error) {
  return give_up(fmt::format("no process for the {}: {}", python_ ? "imports" : "program", error));
}

std::optional<EventBody> TemplateLife::takes_too_long() {
  if (state_ != State::loading) return std::nullopt;
  const auto limit = std::chrono::duration_cast<std::chrono::seconds>(preload_limit).count();
  if (!python_) return give_up(fmt::format("the program takes over {} s to its worker_main", limit));
  return give_up(
      fmt::format("the import of {} takes over {} s", importing_.empty() ? "the modules" : importing_, limit));
}

}  // namespace torchup

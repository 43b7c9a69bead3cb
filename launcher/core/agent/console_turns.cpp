#include "launcher/core/agent/console_turns.hpp"

#include <algorithm>
#include <utility>

namespace torchup {

ConsoleTurns::Source ConsoleTurns::add(LineRules rules) {
  const bool as_is = rules.form == LineRules::Form::as_is;
  sources_.emplace(next_, State{.splitter = LineSplitter{std::move(rules)}, .as_is = as_is});
  return next_++;
}

/// What `add` appends comes from `source`: a line that another left open is ended first.
template <class Add>
void ConsoleTurns::show(Source source, State& state, std::string& text, Add add) {
  const std::size_t before = text.size();
  add(text);
  if (text.size() == before) return;
  if ((open_line_ && *open_line_ != source) || left_open_) {
    const std::string own = text.substr(before);
    text.resize(before);
    end_open_line(text);
    text += own;
  }
  const char last = text.back();
  ends_line_ = last == '\n';
  open_line_.reset();
  if (last != '\n' && last != '\r' && !state.as_is) open_line_ = source;
}

void ConsoleTurns::end_open_line(std::string& text) {
  if (left_open_) text += '\n';
  if (open_line_) {
    const std::size_t before = text.size();
    LineSplitter& splitter = sources_.at(*open_line_).splitter;
    splitter.break_line(text);
    if (text.size() == before) text += '\n';
  }
  open_line_.reset();
  left_open_ = false;
}

void ConsoleTurns::feed(Source source, std::string_view bytes, TimePoint now, std::string& text,
                        std::string& duplicates) {
  State& state = sources_.at(source);
  state.last_fed = last_fed_ = now;
  if (holder_ && *holder_ != source) {
    state.splitter.feed(bytes, now, state.held, duplicates);
    return;
  }
  show(source, state, text, [&](std::string& out) { state.splitter.feed(bytes, now, out, duplicates); });
  if (state.splitter.mid_line()) {
    holder_ = source;
  } else if (holder_) {
    release(text);
  }
}

void ConsoleTurns::end(Source source, std::string& text, std::string& duplicates) {
  State& state = sources_.at(source);
  state.ended = true;
  if (holder_ && *holder_ != source) {
    state.splitter.finish(state.held, duplicates);
    if (!state.held.empty()) return;  // in its turn
  } else {
    show(source, state, text, [&](std::string& out) { state.splitter.finish(out, duplicates); });
  }
  const bool held_others = holder_ == source;
  if (open_line_ == source) {
    open_line_.reset();
    left_open_ = true;
  }
  sources_.erase(source);
  if (held_others) release(text);
}

void ConsoleTurns::own(std::string_view lines, std::string& text) {
  if (lines.empty()) return;
  const std::size_t before = text.size();
  end_open_line(text);
  const bool line_ended = text.size() != before ? text.back() == '\n' : ends_line_;
  if (!line_ended) text += '\n';
  text += lines;
  ends_line_ = text.back() == '\n';
  if (holder_ && !sources_.at(*holder_).splitter.mid_line()) release(text);
}

/// The open line is complete, or was interrupted: the others' turn.
void ConsoleTurns::release(std::string& text) {
  const std::optional<Source> before = std::exchange(holder_, std::nullopt);
  for (auto at = sources_.begin(); at != sources_.end() && !holder_;) {
    auto& [source, state] = *at;
    show(source, state, text, [&held = state.held](std::string& out) { out += std::exchange(held, {}); });
    if (!state.ended) {
      if (source != before && open_line_ == source) holder_ = source;
      ++at;
      continue;
    }
    if (open_line_ == source) {
      open_line_.reset();
      left_open_ = true;
    }
    at = sources_.erase(at);
  }
}

/// Since when it has something to show; nothing: it has not.
std::optional<TimePoint> ConsoleTurns::waits_since(const Sources::value_type& each) const {
  const auto& [source, state] = each;
  if (!state.held.empty()) return TimePoint::min();
  const auto half = state.splitter.half_line();
  if (!half) return std::nullopt;
  return std::max(*half, state.last_fed + half_line_silence);
}

std::optional<TimePoint> ConsoleTurns::next_wait() const {
  std::optional<TimePoint> first;
  for (const auto& each : sources_) {
    if (each.first == holder_) continue;
    if (const auto since = waits_since(each)) first = std::min(first.value_or(*since), *since);
  }
  return first;
}

std::optional<TimePoint> ConsoleTurns::deadline() const {
  const auto first = next_wait();
  if (!first) return std::nullopt;
  return std::max(*first, holder_ ? sources_.at(*holder_).last_fed + hold_limit : last_fed_ + half_line_silence);
}

void ConsoleTurns::tick(TimePoint now, std::string& text) {
  const auto due = deadline();
  if (!due || now < *due) return;
  if (holder_) {
    end_open_line(text);
    return release(text);
  }
  const auto half = std::find_if(sources_.begin(), sources_.end(), [&](const auto& each) {
    const auto since = waits_since(each);
    return since && *since <= now;
  });
  auto& [source, state] = *half;
  show(source, state, text, [&splitter = state.splitter](std::string& out) { splitter.show_half(out); });
  if (state.splitter.mid_line()) holder_ = source;
}

void ConsoleTurns::stood_still(TimePoint now) {
  last_fed_ = now;
  for (auto& [source, state] : sources_) state.last_fed = now;
}

}  // namespace torchup

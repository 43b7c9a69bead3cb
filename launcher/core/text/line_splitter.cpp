#include "launcher/core/text/line_splitter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "launcher/core/text/text.hpp"

namespace torchup {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

bool is_ascii(std::string_view text) {
  std::uint64_t high = 0;
  std::size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, 8);
    high |= word;
  }
  for (; at < text.size(); ++at) high |= static_cast<unsigned char>(text[at]);
  return (high & 0x8080808080808080U) == 0;
}

/// rfind, at the speed of memchr.
std::size_t find_last(std::string_view text, char wanted) {
  const void* found = text.empty() ? nullptr : memrchr(text.data(), wanted, text.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

/// `text` without a character that its end cuts in two.
std::size_t whole_characters(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const std::size_t at = text.size() - back;
    if ((static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) continue;
    return first_character(text.substr(at)).unfinished ? at : text.size();
  }
  return text.size();
}

}  // namespace

void append_as_utf8(std::string_view text, std::string& out) {
  if (is_ascii(text)) {
    out += text;
    return;
  }
  while (!text.empty()) {
    const Character character = first_character(text);
    out += character.valid ? text.substr(0, character.length) : replacement;
    text.remove_prefix(character.length);
  }
}

void LineSplitter::feed(std::string_view bytes, TimePoint now, std::string& console, std::string& duplicates) {
  if (bytes.empty()) return;
  switch (rules_.form) {
    case LineRules::Form::as_is:
      console += bytes;
      break;
    case LineRules::Form::whole_lines:
      feed_whole_lines(bytes, console);
      break;
    case LineRules::Form::prefixed:
      console.reserve(console.size() + bytes.size() + bytes.size() / 4);
      feed_prefixed(bytes, now, console, duplicates);
      break;
  }
}

void LineSplitter::feed_whole_lines(std::string_view bytes, std::string& console) {
  // A CR at the very end may be the first half of CR LF, which must not be torn: it completes a line with the next
  // byte.
  const auto line_feed = find_last(bytes, '\n');
  const auto carriage_return = find_last(bytes.substr(0, bytes.size() - 1), '\r');
  std::size_t end = 0;  // just after the last line that is complete
  if (line_feed != std::string_view::npos) end = line_feed + 1;
  if (carriage_return != std::string_view::npos) end = std::max(end, carriage_return + 1);
  if (end == 0 && !partial_.empty() && partial_.back() == '\r') {
    console.append(partial_, shown_);
    end_line(true);
  }
  if (end != 0) {
    std::string_view complete = bytes.substr(0, end);
    if (cutting_) {
      const auto first = complete.find_first_of("\r\n");
      cut_bytes_ += first;
      complete.remove_prefix(first);
      end_cut(console);
    }
    console.append(partial_, shown_);
    console += complete;
    end_line(complete.back() == '\r');
  }
  const std::string_view rest = bytes.substr(end);
  if (cutting_) {
    cut_bytes_ += rest.size();
    return;
  }
  partial_ += rest;
  if (partial_.size() > console_line_bytes_max) {
    if (rules_.terminal) {
      console.append(partial_, shown_, console_line_bytes_max - shown_);
      cutting_ = true;
      cut_bytes_ = partial_.size() - console_line_bytes_max;
    } else {
      console.append(partial_, shown_);
      mid_line_ = true;
    }
    partial_.clear();
    shown_ = 0;
  } else if (mid_line_) {
    show_rest(console);
  }
}

void LineSplitter::end_line(bool by_return) {
  partial_.clear();
  shown_ = 0;
  mid_line_ = piece_shown_ = false;
  redrawn_ = by_return;
}

void LineSplitter::show_rest(std::string& console) {
  console.append(partial_, shown_);
  shown_ = partial_.size();
}

std::optional<TimePoint> LineSplitter::half_line() const {
  const bool prefixed = rules_.form == LineRules::Form::prefixed;
  if (cutting_ || (prefixed ? whole_characters(partial_) : partial_.size()) <= shown_) return std::nullopt;
  const bool bar = prefixed && rules_.terminal && redrawn_ && !mid_line_;
  return bar && progress_shown_ ? *progress_shown_ + progress_interval : TimePoint::min();
}

void LineSplitter::show_half(std::string& console) {
  if (cutting_) return;
  if (rules_.form != LineRules::Form::prefixed) {
    if (partial_.size() > shown_) mid_line_ = true;
    return show_rest(console);
  }
  const std::size_t whole = whole_characters(partial_);
  if (whole <= shown_) return;
  if (!mid_line_) console += rules_.prefix;
  append_as_utf8(std::string_view{partial_}.substr(shown_, whole - shown_), console);
  shown_ = whole;
  mid_line_ = true;
}

void LineSplitter::end_cut(std::string& console) {
  console += fmt::format(" ... [{} bytes of this line are not shown]", cut_bytes_);
  cutting_ = false;
  cut_bytes_ = 0;
}

void LineSplitter::feed_prefixed(std::string_view bytes, TimePoint now, std::string& console, std::string& duplicates) {
  if (after_return_ && bytes.front() == '\n') {
    bytes.remove_prefix(1);
    redrawn_ = false;
  }
  after_return_ = false;
  bool any_return = bytes.find('\r') != std::string_view::npos;
  while (!bytes.empty()) {
    auto end = bytes.find('\n');
    if (any_return) {
      const auto carriage_return = bytes.substr(0, end).find('\r');
      if (carriage_return != std::string_view::npos) end = carriage_return;
    }
    if (end == std::string_view::npos) {
      if (cutting_) {
        cut_bytes_ += bytes.size();
        return;
      }
      partial_ += bytes;
      if (partial_.size() > console_line_bytes_max) {
        show_piece(console, duplicates);
      } else if (mid_line_) {
        show_half(console);
      }
      return;
    }
    bool progress = bytes[end] == '\r';
    std::size_t next = end + 1;
    if (progress) {
      if (next == bytes.size()) {
        after_return_ = true;
      } else if (bytes[next] == '\n') {
        ++next;
        progress = false;
      }
    }
    if (partial_.empty()) {
      show_line(bytes.substr(0, end), progress, now, console, duplicates);
    } else {
      partial_ += bytes.substr(0, end);
      show_line(partial_, progress, now, console, duplicates);
    }
    end_line(progress);
    bytes.remove_prefix(next);
  }
}

void LineSplitter::show_line(std::string_view text, bool progress, TimePoint now, std::string& console,
                             std::string& duplicates) {
  if (cutting_) {
    cut_bytes_ += text.size();
    end_cut(console);
    console += '\n';
    return;
  }
  if (!piece_shown_ && chosen(text)) add_duplicate(text, duplicates);
  if (progress && rules_.terminal) {
    // A bar that is redrawn ten times a second would push everything else off the screen.
    if (!mid_line_ && (text.empty() || (progress_shown_ && now - *progress_shown_ < progress_interval))) return;
    progress_shown_ = now;
  }
  const bool broken = (shown_ != 0 || piece_shown_) && !mid_line_;
  if (broken && shown_ == text.size()) return;  // all of it is shown, and its line is ended
  if (!mid_line_) console += rules_.prefix;
  append_as_utf8(text.substr(shown_), console);
  console += '\n';
}

bool LineSplitter::chosen(std::string_view text) const {
  return std::any_of(rules_.filters.begin(), rules_.filters.end(),
                     [&](const std::string& part) { return text.find(part) != std::string_view::npos; });
}

void LineSplitter::add_duplicate(std::string_view text, std::string& duplicates) {
  duplicates += rules_.duplicate_prefix;
  append_as_utf8(text, duplicates);
  duplicates += '\n';
}

void LineSplitter::show_piece(std::string& console, std::string& duplicates) {
  const std::size_t shown = whole_characters(
      std::string_view{partial_}.substr(0, rules_.terminal ? console_line_bytes_max : partial_.size()));
  const std::string_view piece = std::string_view{partial_}.substr(0, shown);
  if (!mid_line_) console += rules_.prefix;
  if (!piece_shown_ && chosen(piece)) add_duplicate(piece, duplicates);
  append_as_utf8(piece.substr(std::min(shown_, shown)), console);
  shown_ = 0;
  if (rules_.terminal) {
    cutting_ = true;
    cut_bytes_ = partial_.size() - shown;
    partial_.clear();
  } else {
    mid_line_ = piece_shown_ = true;
    partial_.erase(0, shown);
  }
}

void LineSplitter::break_line(std::string& console) {
  if (!mid_line_) return;
  if (rules_.form == LineRules::Form::prefixed) {
    console += '\n';
    mid_line_ = false;
  } else {
    console += redrawn_ ? '\r' : '\n';
  }
}

void LineSplitter::finish(std::string& console, std::string& duplicates) {
  if (rules_.form == LineRules::Form::prefixed) {
    if (!partial_.empty() || mid_line_ || cutting_) show_line(partial_, false, TimePoint{}, console, duplicates);
  } else {
    if (cutting_) end_cut(console);
    console.append(partial_, shown_);
  }
  end_line(false);
  cutting_ = after_return_ = false;
}

void OutputTail::feed(Stream stream, std::string_view bytes) {
  const std::size_t index = stream == Stream::out ? 0 : 1;
  std::string& open = open_[index];
  fed_[index] += bytes.size();
  const auto end = find_last(bytes, '\n');
  if (end != std::string_view::npos) {
    append(stream, open);
    append(stream, bytes.substr(0, end + 1));
    open.clear();
    open_cut_[index] = false;
    bytes.remove_prefix(end + 1);
  }
  if (bytes.size() > tail_bytes_max) {
    open.clear();
    open_cut_[index] = true;
    bytes.remove_prefix(bytes.size() - tail_bytes_max);
  }
  open += bytes;
  if (open.size() <= 2 * tail_bytes_max) return;
  open.erase(0, open.size() - tail_bytes_max);
  open_cut_[index] = true;
}

void OutputTail::append(Stream stream, std::string_view text) {
  if (text.empty()) return;
  if (text.size() >= tail_bytes_max) {
    text_.clear();
    parts_.clear();
    text.remove_prefix(text.size() - tail_bytes_max);
  }
  text_ += text;
  if (parts_.empty() || parts_.back().stream != stream) parts_.push_back({stream});
  parts_.back().bytes += text.size();
  if (text_.size() > 2 * tail_bytes_max) forget(text_.size() - tail_bytes_max);
}

void OutputTail::forget(std::size_t bytes) {
  text_.erase(0, bytes);
  while (bytes > 0) {
    const std::size_t gone = std::min(bytes, parts_.front().bytes);
    parts_.front().bytes -= gone;
    bytes -= gone;
    if (parts_.front().bytes == 0) parts_.pop_front();
  }
}

OutputTail::Kept OutputTail::of(Stream stream) const {
  const std::size_t index = stream == Stream::out ? 0 : 1;
  Kept kept{.end = fed_[index]};
  std::size_t at = 0;
  for (const Part& part : parts_) {
    if (part.stream == stream && !open_cut_[index]) kept.bytes.append(text_, at, part.bytes);
    at += part.bytes;
  }
  kept.bytes += open_[index];
  return kept;
}

std::vector<std::string> OutputTail::last_lines(std::size_t lines_max) const {
  std::string all = text_;
  for (const std::string& open : open_) {
    if (open.empty()) continue;
    all += open;
    all += '\n';
  }
  std::vector<std::string> result;
  std::string_view rest = all;
  std::size_t bytes = 0;
  if (!rest.empty()) rest.remove_suffix(1);  // the last line end
  while (!all.empty() && result.size() < lines_max && bytes < tail_bytes_max) {
    const auto before = rest.rfind('\n');
    std::string_view line = before == std::string_view::npos ? rest : rest.substr(before + 1);
    while (line.ends_with('\r')) line.remove_suffix(1);
    // What a progress bar has overwritten is not worth a line.
    if (const auto redrawn = line.rfind('\r'); redrawn != std::string_view::npos) line.remove_prefix(redrawn + 1);
    line = line.substr(line.size() - std::min(line.size(), tail_bytes_max - bytes));
    std::string text;
    append_as_utf8(line, text);
    bytes += text.size();
    result.push_back(std::move(text));
    if (before == std::string_view::npos) break;
    rest = rest.substr(0, before);
  }
  std::reverse(result.begin(), result.end());
  return result;
}

}  // namespace torchup

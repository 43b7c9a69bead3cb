#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/types.hpp"

namespace torchup {

/// A longer line is shown in pieces, or cut on a terminal.
inline constexpr std::size_t console_line_bytes_max = std::size_t{64} << 10;

/// On a terminal one stream's progress bar is redrawn this often at most.
inline constexpr Duration progress_interval = std::chrono::seconds{1};

/// How a stream is shown on the console.
struct LineRules {
  enum class Form {
    as_is,        ///< bytes pass at once: one worker, nothing to keep apart
    whole_lines,  ///< bytes unchanged, given on when a line is complete (a carriage return completes one too)
    prefixed,     ///< the prefix before every line
  };
  Form form = Form::as_is;
  std::string prefix{};
  bool terminal = false;               ///< people watch: over-long lines are cut, progress bars thinned out
  std::string duplicate_prefix{};      ///< of lines in the duplicates; the console's may have colours
  std::vector<std::string> filters{};  ///< a line with one of these goes to the duplicates too; prefixed form only
};

/// One stream's bytes to console text. Pure; a chunk may end anywhere.
///
/// Prefixed form: LF, CR and CR LF end a line and become LF; bytes that are not UTF-8 become U+FFFD; the open last line
/// gets its LF from finish(). Source: torchrun's tail_log.py reads with universal newlines and errors="replace"; other
/// than there a line has its prefix once, however it was written.
class LineSplitter {
 public:
  explicit LineSplitter(LineRules rules) : rules_{std::move(rules)} {}

  /// Takes `bytes` and appends what is to be shown now to `console`, what the filters chose to `duplicates`.
  void feed(std::string_view bytes, TimePoint now, std::string& console, std::string& duplicates);

  /// The stream has ended: shows the open last line.
  void finish(std::string& console, std::string& duplicates);

  /// Nothing more has come for a while: shows what there is of the open line. The rest follows in the same line, unless
  /// break_line comes between.
  void show_half(std::string& console);

  /// When show_half has something to show at the earliest; nothing: no part of the open line is kept back. On a
  /// terminal a progress bar keeps its own pace.
  [[nodiscard]] std::optional<TimePoint> half_line() const;

  /// True while a part of the open line is shown: a half line, or a line of more than console_line_bytes_max in pieces.
  /// Nothing of others may come between.
  [[nodiscard]] bool mid_line() const { return mid_line_; }

  /// The shown part of the open line stands behind a carriage return: it is a bar that is drawn over.
  [[nodiscard]] bool redrawn() const { return redrawn_; }

  /// Others have waited long enough for the rest of that line: ends it here. In the prefixed form the rest begins a
  /// line with a prefix of its own, in the others a bar is left where the next line is drawn over it.
  void break_line(std::string& console);

 private:
  void feed_whole_lines(std::string_view bytes, std::string& console);
  void feed_prefixed(std::string_view bytes, TimePoint now, std::string& console, std::string& duplicates);
  void show_line(std::string_view text, bool progress, TimePoint now, std::string& console, std::string& duplicates);
  void show_piece(std::string& console, std::string& duplicates);
  void show_rest(std::string& console);
  [[nodiscard]] bool chosen(std::string_view text) const;  ///< by the filters
  void add_duplicate(std::string_view text, std::string& duplicates);
  void end_line(bool by_return);
  void end_cut(std::string& console);

  LineRules rules_;
  std::string partial_;        ///< the open line, or what of it has come since its last piece
  std::size_t shown_ = 0;      ///< so many bytes of `partial_` are shown
  bool mid_line_ = false;      ///< a part of the open line is shown
  bool piece_shown_ = false;   ///< the open line is over-long: `partial_` is not its beginning
  bool cutting_ = false;       ///< the rest of the open line is not shown
  std::size_t cut_bytes_ = 0;  ///< of that rest so far
  bool after_return_ = false;  ///< prefixed form: the last byte was CR, an LF now belongs to it
  bool redrawn_ = false;       ///< the open line began behind a CR
  std::optional<TimePoint> progress_shown_;
};

/// `text` with every part that is not UTF-8 replaced by U+FFFD, as Python's decoder does.
void append_as_utf8(std::string_view text, std::string& out);

/// The last lines of a worker's output, for the record of its death: at most `tail_lines_max` and tail_bytes_max.
inline constexpr std::size_t tail_lines_max = 20;
inline constexpr std::size_t tail_bytes_max = std::size_t{16} << 10;

/// Remembers the end of two streams in the order in which their lines were completed.
class OutputTail {
 public:
  enum class Stream { out, err };
  void feed(Stream stream, std::string_view bytes);
  /// Open last lines included, stdout's before stderr's.
  [[nodiscard]] std::vector<std::string> lines() const { return last_lines(tail_lines_max); }
  /// All lines that are remembered.
  [[nodiscard]] std::vector<std::string> all_lines() const { return last_lines(tail_bytes_max); }

  /// What is remembered of one stream, as it was written: the last of its bytes.
  struct Kept {
    std::string bytes = {};
    std::uint64_t end = 0;  ///< of all that were written to it: so many there were
  };
  [[nodiscard]] Kept of(Stream stream) const;

 private:
  /// Of `text_`, in its order.
  struct Part {
    Stream stream = Stream::out;
    std::size_t bytes = 0;
  };
  void append(Stream stream, std::string_view text);
  void forget(std::size_t bytes);
  [[nodiscard]] std::vector<std::string> last_lines(std::size_t lines_max) const;
  std::string text_;
  std::deque<Part> parts_;
  std::string open_[2];
  bool open_cut_[2] = {};  ///< the beginning of the open line is forgotten
  std::uint64_t fed_[2] = {};
};

}  // namespace torchup

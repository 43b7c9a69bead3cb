#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/core/text/line_splitter.hpp"
#include "rendezvous/base/types.hpp"

namespace torchup {

/// What a source may keep back while another shows a line; one that holds more is not to be fed.
inline constexpr std::size_t held_bytes_max = std::size_t{256} << 10;
/// A line that stands still so long while others wait is interrupted by them.
inline constexpr Duration hold_limit = std::chrono::seconds{1};
/// Where nothing was written for so long, a half line is shown as it is.
inline constexpr Duration half_line_silence = std::chrono::milliseconds{200};

/// Whose text comes next on a console that several streams share, so that lines stay whole: one stream may have the
/// open line there, the others keep back what they have. Pure; bytes in, text out.
///
/// Every call appends to `text` what is to be written now. A source is one stream of one worker; sources take turns in
/// the order in which they were added.
class ConsoleTurns {
 public:
  using Source = int;

  Source add(LineRules rules);

  /// Bytes of `source`. `duplicates` is what its filters chose.
  void feed(Source source, std::string_view bytes, TimePoint now, std::string& text, std::string& duplicates);

  /// `source` has ended: its open last line is shown, now or in its turn. It is not to be used again.
  void end(Source source, std::string& text, std::string& duplicates);

  /// Whole lines of the launcher's own: they wait for nobody.
  void own(std::string_view lines, std::string& text);

  /// Half lines and interruptions that are due.
  void tick(TimePoint now, std::string& text);
  /// When `tick` has something to do if nothing else happens.
  [[nodiscard]] std::optional<TimePoint> deadline() const;

  /// Nothing could be written until now, so nobody was silent.
  void stood_still(TimePoint now);

  [[nodiscard]] bool may_feed(Source source) const { return sources_.at(source).held.size() <= held_bytes_max; }

 private:
  struct State {
    LineSplitter splitter;
    bool as_is;
    std::string held{};  ///< what waits for its turn
    TimePoint last_fed{};
    bool ended = false;
  };
  using Sources = std::map<Source, State>;

  template <class Add>
  void show(Source source, State& state, std::string& text, Add add);
  void end_open_line(std::string& text);
  void release(std::string& text);
  [[nodiscard]] std::optional<TimePoint> waits_since(const Sources::value_type& each) const;
  [[nodiscard]] std::optional<TimePoint> next_wait() const;

  Sources sources_;
  Source next_ = 0;
  std::optional<Source> holder_;     ///< has the open line; the others keep theirs back
  std::optional<Source> open_line_;  ///< whose text ended in the middle of a line
  bool left_open_ = false;           ///< the same, by a source that is gone
  bool ends_line_ = true;            ///< the last byte of all was a line feed
  TimePoint last_fed_{};             ///< by whomever
};

}  // namespace torchup

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/base/types.hpp"

/// The line at the bottom of a terminal that says how the job is while nobody writes: what it says, and when it may
/// stand there. Pure.
namespace torchup {

/// What is known of a job.
struct StatusFacts {
  std::string waits_for = {};  ///< while there is no round: "1 of 2 nodes: node1; not heard of: node2"
  TimePoint waits_since{};
  int ranks = 0;  ///< of the round; 0: there is none
  int nodes = 0;
  std::optional<std::int64_t> step = {};
  double steps_per_second = 0;  ///< where there is a step
  int restarts = 0;
};

/// "16 ranks on 2 nodes, step 41200, 3.1 steps/s, 1 restart", "1 of 2 nodes: node1; not heard of: node2 (0:35)"; empty
/// where there is nothing to say. Foreign text in it is printable.
[[nodiscard]] std::string status_text(const StatusFacts& facts, TimePoint now);

/// As much of a printable text as surely stands in one line of a terminal that is so wide: what is not ASCII may take
/// two columns, and the last one stays free, for in it a terminal may go on to the next line.
[[nodiscard]] std::string_view cut_to_columns(std::string_view text, int columns);

/// For so long nobody has written when the line is drawn.
inline constexpr Duration status_silence = std::chrono::seconds{2};
inline constexpr Duration status_interval = std::chrono::seconds{1};

/// Whether the line stands there, and when it may. Whatever else is written on that terminal passes `before`: its bytes
/// stay as they are, and what stands in the way is taken away first. Where the last byte of others did not end a line,
/// a prompt or a bar that is drawn over, nothing is drawn until it has ended.
class StatusLine {
 public:
  /// `colour`: grey, else plain.
  StatusLine(bool colour, TimePoint now) : colour_{colour}, written_{now} {}

  /// What to write so that `bytes`, which others write, come out as if there were no line.
  [[nodiscard]] std::string before(std::string bytes, TimePoint now);
  /// The same where others write in another way: what is to be written before they do.
  [[nodiscard]] std::string make_way(std::string_view bytes, TimePoint now);
  /// What to write so that `text` stands there, one line; empty: nothing, for it stands there already, or may not.
  [[nodiscard]] std::string draw(std::string_view text, TimePoint now);
  /// What to write so that nothing of it is left.
  [[nodiscard]] std::string erase();

  /// When to draw next; nothing: not before somebody has written.
  [[nodiscard]] std::optional<TimePoint> deadline() const;

 private:
  bool colour_;
  bool line_ended_ = true;  ///< the last byte of others was a line end
  TimePoint written_;       ///< when others wrote last
  std::optional<TimePoint> drawn_at_;
  std::string drawn_;  ///< what stands there; empty: nothing
};

}  // namespace torchup

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "launcher/core/text/line_splitter.hpp"

namespace torchup {

/// Our stdout or stderr, which the streams of several agents share: what waits for its reader.
class ShownStream {
 public:
  explicit ShownStream(int fd) : fd_{fd} {}

  /// To be watched for writing; -1: nothing waits.
  [[nodiscard]] int wanted() const { return text_.empty() ? -1 : fd_; }
  [[nodiscard]] bool empty() const { return text_.empty(); }
  /// The agents have to wait for whoever reads us.
  [[nodiscard]] bool is_full() const;

  /// Lines of ours.
  void add(std::string_view whole_lines);
  /// What came of an agent's stream; nothing: it has ended. A line that another has open is ended before.
  void feed(LineSplitter& lines, std::string_view bytes);
  void finish(LineSplitter& lines);
  /// When wanted() is writable.
  void write();

 private:
  void make_way(const LineSplitter* for_whom);
  void settle(LineSplitter& lines);

  int fd_;
  std::string text_;
  LineSplitter* open_ = nullptr;  ///< a part of its open line is shown
  bool gone_ = false;             ///< nobody reads it any more
};

}  // namespace torchup

#include "launcher/os/rehearsal/shown_stream.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

namespace torchup {
namespace {

/// What the reader may leave lying before the agents have to wait for him.
constexpr std::size_t unread_bytes_max = std::size_t{1} << 20;
/// What a pipe that poll calls writable takes without blocking.
constexpr std::size_t write_bytes = 4096;

}  // namespace

bool ShownStream::is_full() const { return text_.size() >= unread_bytes_max; }

void ShownStream::add(std::string_view whole_lines) {
  make_way(nullptr);
  if (!gone_) text_ += whole_lines;
}

void ShownStream::feed(LineSplitter& lines, std::string_view bytes) {
  make_way(&lines);
  std::string duplicates;
  lines.feed(bytes, std::chrono::steady_clock::now(), text_, duplicates);
  settle(lines);
}

void ShownStream::finish(LineSplitter& lines) {
  make_way(&lines);
  std::string duplicates;
  lines.finish(text_, duplicates);
  if (open_ == &lines) open_ = nullptr;
  if (gone_) text_.clear();
}

void ShownStream::write() {
  const ssize_t written = ::write(fd_, text_.data(), std::min(text_.size(), write_bytes));
  if (written >= 0) {
    text_.erase(0, static_cast<std::size_t>(written));
  } else if (errno != EINTR && errno != EAGAIN) {
    gone_ = true;
    text_.clear();
  }
}

void ShownStream::make_way(const LineSplitter* for_whom) {
  if (open_ && open_ != for_whom) std::exchange(open_, nullptr)->break_line(text_);
}

void ShownStream::settle(LineSplitter& lines) {
  open_ = lines.mid_line() ? &lines : nullptr;
  if (gone_) text_.clear();
}

}  // namespace torchup

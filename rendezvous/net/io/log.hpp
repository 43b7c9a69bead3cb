#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/text/log_limit.hpp"
#include "rendezvous/core/text/log_line.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

/// Lines that wait for whoever reads stderr; further ones are lost and counted.
inline constexpr std::size_t unwritten_log_bytes_max = std::size_t{1} << 20;
/// How long the end of a program waits for its last lines to be read.
inline constexpr Duration last_lines_limit = std::chrono::seconds{1};

enum class LogFormat : std::uint8_t {
  text,  ///< "torchupd: job a1: a node left"
  json,  ///< one object in a line: time (UTC), level, program, job, peer, message
};

struct LogOptions {
  std::string program;              ///< in front of each line
  LogLevel level = LogLevel::info;  ///< and what is worse
  LogFormat format = LogFormat::text;
  bool colours = false;  ///< of text: errors are red, warnings yellow
  LogLimits limits = {};
  /// Takes one whole line, its end included, and must not wait. Unset: stderr, each line in one write, by a thread of
  /// its own, so that nobody waits for whoever reads it. Where that one falls behind by unwritten_log_bytes_max lines
  /// are lost, and the next one that is written is a count of them.
  std::function<void(std::string line)> write = {};
};

/// What a program tells people while it runs. Every line passes here, and here foreign text is made printable, levels
/// are compared, floods are counted instead of written. spdlog carries the lines; no header of it is seen outside.
///
/// For one thread. `write` is called from within `tell`, and from the loop when a count is due.
class Log {
 public:
  explicit Log(LogOptions options);
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  /// Writes the counts of what was kept back, and gives what lies unread last_lines_limit.
  ~Log();

  void tell(LogLine line);
  /// For those who get a function instead. The log must outlive it.
  [[nodiscard]] LogSink sink();
  class Impl;
  struct Release {
    void operator()(Impl* log) const;
  };
  /// As long as what it returns lives, counts are written by `loop` when they are due, and not with the next line or at
  /// the end. While one is due later the loop has work. The loop must outlive it, and so must the log.
  using LoopUse = std::unique_ptr<Impl, Release>;
  [[nodiscard]] LoopUse use(boost::asio::io_context& loop);

 private:
  std::shared_ptr<Impl> impl_;
};

/// "debug", "info", "warning", "error". Errors: errc::bad_value, which names them.
[[nodiscard]] Result<LogLevel> read_log_level(std::string_view word);
/// "text", "json". Errors: errc::bad_value, which names them.
[[nodiscard]] Result<LogFormat> read_log_format(std::string_view word);

}  // namespace torchup

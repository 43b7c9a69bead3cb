#include "rendezvous/net/io/log.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/formatter.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/sink.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <future>
#include <memory>
#include <utility>

#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/net/io/console_writer.hpp"

namespace torchup {
namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
  }
  return spdlog::level::critical;
}

std::string_view level_name(LogLevel level) {
  constexpr std::string_view names[] = {"debug", "info", "warning", "error"};
  return names[static_cast<std::size_t>(level)];
}

std::string_view colour_of(LogLevel level) {
  if (level == LogLevel::error) return "\x1b[31m";
  return level == LogLevel::warning ? "\x1b[33m" : "";
}

/// As a text of JSON: `text` is printable, so that only two characters mean something else there.
std::string quoted(std::string_view text) {
  std::string out{"\""};
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

/// The end of the line: whole lines, as they are, to whoever wants them.
class LineSink final : public spdlog::sinks::sink {
 public:
  explicit LineSink(std::function<void(std::string line)> write) : write_{std::move(write)} {}
  void log(const spdlog::details::log_msg& message) override {
    write_(std::string{message.payload.data(), message.payload.size()});
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

 private:
  std::function<void(std::string line)> write_;
};

}  // namespace

class Log::Impl : public std::enable_shared_from_this<Log::Impl> {
 public:
  explicit Impl(LogOptions options)
      : options_{std::move(options)}, limit_{options_.limits}, logger_{options_.program,
                                                                       std::make_shared<LineSink>(way_out())} {
    logger_.set_level(spdlog_level(options_.level));
  }

  void tell(LogLine line) {
    if (!logger_.should_log(spdlog_level(line.level))) return;
    write(limit_.step(std::move(line), std::chrono::steady_clock::now()));
    wait();
  }

  void finish() {
    let_go();
    write(limit_.rest(std::chrono::steady_clock::now()));
    if (!stderr_) return;
    tell_lost();
    const auto written = std::make_shared<std::promise<void>>();
    stderr_->when_at_most(0, [written] { written->set_value(); });
    written->get_future().wait_for(last_lines_limit);
  }

  void use(boost::asio::io_context& loop) { timer_.emplace(loop); }
  void let_go() {
    timer_.reset();
    waiting_ = false;
  }

 private:
  std::function<void(std::string line)> way_out() {
    if (options_.write) return options_.write;
    stderr_ = std::make_unique<ConsoleWriter>(STDERR_FILENO, [](const std::string&, std::uint64_t) {
      // Where nobody reads it, there is nobody to tell.
    });
    return [this](std::string line) { stderr_->write(std::move(line)); };
  }

  void write(const std::vector<LogLine>& lines) {
    for (const LogLine& line : lines) {
      if (stderr_ && stderr_->queued_bytes() >= unwritten_log_bytes_max) {
        ++lost_;
        continue;
      }
      tell_lost();
      write(line);
    }
  }

  void write(const LogLine& line) {
    logger_.log(spdlog_level(line.level), options_.format == LogFormat::text ? text_of(line) : json_of(line));
  }

  void tell_lost() {
    if (lost_ == 0) return;
    write(LogLine{LogLevel::warning,
                  fmt::format("{} lines are lost: nobody read those before them", std::exchange(lost_, 0))});
  }

  [[nodiscard]] std::string text_of(const LogLine& line) const {
    const std::string_view colour = options_.colours ? colour_of(line.level) : "";
    const std::string job = line.job.empty() ? "" : fmt::format("job {}: ", printable_start(line.job));
    return fmt::format("{}{}: {}{}{}\n", colour, options_.program, job,
                       printable_start(line.text, options_.limits.line_bytes_max), colour.empty() ? "" : "\x1b[0m");
  }

  [[nodiscard]] std::string json_of(const LogLine& line) const {
    const auto now = std::chrono::floor<std::chrono::microseconds>(std::chrono::system_clock::now());
    const auto whole = std::chrono::floor<std::chrono::seconds>(now);
    std::string object =
        fmt::format("{{\"time\":\"{:%Y-%m-%dT%H:%M:%S}.{:06}Z\",\"level\":\"{}\",\"program\":{}", whole,
                    (now - whole).count(), level_name(line.level), quoted(printable(options_.program)));
    if (!line.job.empty()) object += ",\"job\":" + quoted(printable_start(line.job));
    if (!line.source.empty()) object += ",\"peer\":" + quoted(printable(line.source));
    return object + ",\"message\":" + quoted(printable_start(line.text, options_.limits.line_bytes_max)) + "}\n";
  }

  /// A count that nothing follows is written by the loop.
  void wait() {
    const auto deadline = limit_.deadline();
    if (!timer_ || waiting_ || !deadline) return;
    waiting_ = true;
    timer_->expires_at(*deadline);
    timer_->async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
      const auto self = weak.lock();
      if (!self) return;
      self->waiting_ = false;
      if (error) return;
      self->write(self->limit_.due(std::chrono::steady_clock::now()));
      self->wait();
    });
  }

  LogOptions options_;
  LogLimit limit_;
  std::unique_ptr<ConsoleWriter> stderr_;  ///< null: the lines go elsewhere
  std::uint64_t lost_ = 0;                 ///< lines that found no room since the last that did
  spdlog::logger logger_;
  std::optional<boost::asio::steady_timer> timer_;
  bool waiting_ = false;
};

Log::Log(LogOptions options) : impl_{std::make_shared<Impl>(std::move(options))} {}
Log::~Log() { impl_->finish(); }

void Log::tell(LogLine line) { impl_->tell(std::move(line)); }
LogSink Log::sink() {
  return [this](LogLine line) { tell(std::move(line)); };
}
Log::LoopUse Log::use(boost::asio::io_context& loop) {
  impl_->use(loop);
  return LoopUse{impl_.get()};
}
void Log::Release::operator()(Impl* log) const { log->let_go(); }

Result<LogLevel> read_log_level(std::string_view word) {
  for (const LogLevel level : {LogLevel::debug, LogLevel::info, LogLevel::warning, LogLevel::error}) {
    if (word == level_name(level)) return level;
  }
  return fail(errc::bad_value, fmt::format("\"{}\" is no level of the log: debug, info, warning or error", word));
}

Result<LogFormat> read_log_format(std::string_view word) {
  if (word == "text") return LogFormat::text;
  if (word == "json") return LogFormat::json;
  return fail(errc::bad_value, fmt::format("\"{}\" is no format of the log: text or json", word));
}

}  // namespace torchup

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/result.hpp"

namespace torchup {

/// More of an error file is not read.
inline constexpr std::size_t error_file_bytes_max = std::size_t{1} << 20;

/// A worker's last words, as read from its error file.
struct WorkerError {
  std::string message;       ///< `ValueError: bad`
  std::string traceback;     ///< what the report shows: the call stack, else the message, else `<N/A>`
  std::int64_t time_us = 0;  ///< microseconds since 1970 by the worker, written as seconds; 0 when it gave none
  bool structured = false;   ///< the message was an object: an error code may be added at hand-over
  friend bool operator==(const WorkerError&, const WorkerError&) = default;
};

/// Reads both shapes of contract §5.1.
///
/// Errors: errc::bad_value when it is not JSON, lacks `message`, or an object message has no usable timestamp;
/// errc::limit_exceeded when longer than error_file_bytes_max or nested deeper than json_depth_max. A timestamp that is
/// too large for seconds is read as milli-, micro- or nanoseconds.
/// Source: torch/distributed/elastic/multiprocessing/errors/__init__.py, ProcessFailure.__post_init__.
[[nodiscard]] Result<WorkerError> parse_error_file(std::string_view bytes);

/// The lines of a WorkerError's traceback, without the indentation that the report gives them.
[[nodiscard]] std::vector<std::string> reported_lines(std::string_view traceback);

/// A WorkerError's traceback, whose last line is as the worker's last line of output has it where that goes on: Python
/// before 3.12 adds `. Did you mean: 'print'?` to what it prints alone.
[[nodiscard]] std::string completed(std::string traceback, const std::vector<std::string>& output);

/// The bytes of an error file for hand-over to whoever started us: `"errorCode"` added inside an object message; a text
/// message unchanged. `bytes` was accepted by parse_error_file.
[[nodiscard]] std::string with_error_code(std::string_view bytes, int exit_code);

/// The error file of the launcher itself, shape of contract §5.1.
[[nodiscard]] std::string make_error_file(std::string_view message, std::string_view traceback, std::int64_t time_s);

}  // namespace torchup

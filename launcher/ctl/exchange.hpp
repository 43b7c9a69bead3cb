#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

struct HttpQuestion {
  std::string method = "GET";
  std::string target = {};
  std::string host = "localhost";
  std::string token = {};  ///< as bearer; empty: none
  std::string body = {};   ///< JSON; a POST always has one
  std::vector<std::pair<std::string, std::string>> headers = {};
};

struct HttpAnswer {
  int status = 0;
  std::string body = {};
  std::optional<std::uint64_t> offset = {};  ///< Torchup-Offset: where the next part of a log begins
  std::uint64_t log = 0;                     ///< Torchup-Log: which log it is; 0: it does not say
  std::string source = {};                   ///< Torchup-Source: `memory` where a log's files are not there
};

/// An answer that is longer is cut off, and an error.
inline constexpr std::size_t answer_bytes_max = std::size_t{32} << 20;
inline constexpr std::size_t stream_part_bytes_max = std::size_t{32} << 20;

/// One HTTP/1.1 request and its answer on a socket that does not block: whoever is at the other end. Moves as far as it
/// can whenever it is told to; several of them can be waited for at once.
class Exchange {
 public:
  /// `socket` is connected, or about to be, and non-blocking. `streaming`: the body has no end and is taken in parts.
  Exchange(UniqueFd socket, const HttpQuestion& question, bool streaming = false);
  /// One that has failed before it began.
  explicit Exchange(Error error);
  Exchange(Exchange&&) noexcept;
  Exchange& operator=(Exchange&&) noexcept;
  ~Exchange();

  /// The whole answer is there, or there will be none.
  [[nodiscard]] bool done() const;
  [[nodiscard]] bool has_head() const;
  [[nodiscard]] int status() const;  ///< after the head
  /// What to wait for; negative when done.
  [[nodiscard]] pollfd wish() const;
  void advance();

  /// When done. Errors: the system's; errc::bad_frame for what is no HTTP, or was cut off; errc::limit_exceeded.
  [[nodiscard]] Result<HttpAnswer> answer() const;
  /// Of a stream: what has come of its body since the last call.
  [[nodiscard]] std::string take_body();

 private:
  struct State;
  void send();
  void receive();
  void feed(std::string_view bytes);
  void fail_with(Error error);

  std::unique_ptr<State> state_;
};

/// Lets them run until all are done, or `until`.
void run_exchanges(std::span<Exchange> exchanges, TimePoint until);

}  // namespace torchup

#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/net/ops/http_server.hpp"

namespace torchup {

// What came by that way, as what came by a door, and back.
[[nodiscard]] OpsRequest request_of(const Ask& question);
/// Whoever has passed the question on has found his right.
[[nodiscard]] OpsCaller caller_of(const Ask& question);
/// An answer that is too long for the link becomes one that says so.
[[nodiscard]] Answer answer_to(std::uint64_t number, OpsAnswer given);

/// A number from which on no other life of the process will have numbered its questions.
[[nodiscard]] std::uint64_t fresh_question_number();

/// What one process has asked another over the agents' link, and not been answered yet: a coordinator its nodes about
/// their workers, a node its coordinator about the job. Who is asked may answer what a former life of this process has
/// asked: so each numbers its questions from somewhere else on.
class OpenQuestions {
 public:
  static constexpr std::size_t open_max = 64;

  explicit OpenQuestions(boost::asio::io_context& loop, std::uint64_t first = fresh_question_number(),
                         Duration limit = std::chrono::seconds{15})
      : loop_{loop}, limit_{limit}, next_{first} {}
  OpenQuestions(const OpenQuestions&) = delete;
  OpenQuestions& operator=(const OpenQuestions&) = delete;

  using Reply = std::function<void(OpsAnswer)>;
  /// Passes the call on: `send` says false where `whom` has no connection now. The reply is called once: with what is
  /// answered, with a 504 when the limit is over (here another one, or the usual one), or with a 503 where it cannot be
  /// asked.
  void ask(std::string whom, const OpsCall& call, const std::function<bool(Ask)>& send, Reply reply,
           std::optional<Duration> limit = {});
  /// `who` has answered; an answer that nobody waits for, or that was another's to give, is nothing.
  void answered(const std::string& who, Answer answer);

 private:
  struct Open {
    Open(boost::asio::io_context& loop, std::string asked, Reply to)
        : whom{std::move(asked)}, reply{std::move(to)}, timer{loop} {}
    std::string whom;
    Reply reply;
    boost::asio::steady_timer timer;
  };
  void close(std::uint64_t number, OpsAnswer answer);

  boost::asio::io_context& loop_;
  Duration limit_;
  std::uint64_t next_;
  std::map<std::uint64_t, std::unique_ptr<Open>> open_;
  std::shared_ptr<char> alive_ = std::make_shared<char>();  ///< a handler that is on its way asks whether this is
};

}  // namespace torchup

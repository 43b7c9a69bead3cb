#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "rendezvous/core/link/open_questions.hpp"
#include "rendezvous/core/link/operations_messages.hpp"
#include "rendezvous/net/ops/http_server.hpp"

namespace torchup {

/// Requests that one process of a job answers for another, over the link: those that this one hands on, and those that
/// it is handed. At the coordinator the others are nodes by their ids, at an agent the coordinator alone.
class NodeQuestions {
 public:
  using Word = std::variant<Ask, Answer>;
  /// False: nobody of that name can be told anything now.
  using Say = std::function<bool(const std::string& whom, Word word)>;
  /// As OpsService::perform for another node.
  using Perform = std::function<void(const OpsRequest& request, const OpsCaller& caller, std::string_view body,
                                     HttpServer::Reply reply)>;

  /// `has_token`: the job has one, with which those who speak here have proved themselves. Else no log and no stack is
  /// given to another machine.
  NodeQuestions(boost::asio::io_context& loop, bool has_token, Say say, Perform perform);
  NodeQuestions(const NodeQuestions&) = delete;
  NodeQuestions& operator=(const NodeQuestions&) = delete;
  ~NodeQuestions();  ///< who waits is answered by 503

  /// Hands `question` on, whose number is given here, and calls `reply` once, with the answer: with 503 where nobody
  /// can be asked or open_questions_max wait, with 504 after answer_wait_max.
  void ask(const std::string& whom, Ask question, HttpServer::Reply reply);

  /// What `by` has said over the link.
  void heard(const std::string& by, Word word);

  [[nodiscard]] std::size_t open() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace torchup

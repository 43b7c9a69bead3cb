#include "rendezvous/net/daemon/node_questions.hpp"

#include <fmt/format.h>

#include <utility>

#include "rendezvous/net/coordinator/coordinator.hpp"

namespace torchup {
namespace {

/// Of what a node calls its answer only what means nothing to a browser, and breaks no header.
std::string known_type(const std::string& type) {
  return type == json_content || type == text_content ? type : "application/octet-stream";
}

}  // namespace

void NodeQuestions::ask(const RunId& run_id, const NodeId& node, const OpsCall& call, Reply reply) {
  if (open_.size() >= open_max) {
    return reply(
        answer_of({503, "too_many_questions", fmt::format("{} questions are open already", open_.size()), ""}));
  }
  Ask question;
  question.number = next_++;
  question.control = call.caller.right == Right::control;
  question.by = call.caller.by;
  question.method = takes_body(call) ? "POST" : "GET";
  question.target = call.target;
  question.body = call.body;
  const std::uint64_t number = question.number;
  if (!coordinator_.tell_node(run_id, node, std::move(question))) {
    return reply(answer_of({503, "node_cut_off", "The node has no connection now", ""}));
  }
  auto& open = open_[number] = std::make_unique<Open>(loop_, run_id, node, std::move(reply));
  open->timer.expires_after(limit);
  open->timer.async_wait([this, number](boost::system::error_code error) {
    if (!error) close(number, answer_of({504, "no_answer", "The node has not answered in time", ""}));
  });
}

void NodeQuestions::answered(const RunId& run_id, const NodeId& node, Answer answer) {
  const auto open = open_.find(answer.number);
  if (open == open_.end() || open->second->run_id != run_id || open->second->node != node) return;
  OpsAnswer given;
  given.status = answer.status >= 200 ? answer.status : 502;  // what is below is no answer
  given.content_type = known_type(answer.type);
  given.body = std::move(answer.body);
  if (answer.offset) given.headers.emplace_back("Torchup-Offset", std::to_string(*answer.offset));
  close(answer.number, std::move(given));
}

void NodeQuestions::close(std::uint64_t number, OpsAnswer answer) {
  const auto open = open_.find(number);
  if (open == open_.end()) return;  // it was answered while its time was over already
  const auto closed = std::move(open->second);
  open_.erase(open);
  closed->timer.cancel();
  closed->reply(std::move(answer));
}

}  // namespace torchup

#include "rendezvous/net/ops/open_questions.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "rendezvous/net/io/token.hpp"

namespace torchup {
namespace {

/// A log's bytes that are only in the memory of who has answered, from node to node.
constexpr const char* bytes_of_memory = "application/octet-stream; source=memory";

/// Of what the other calls its answer only what means nothing to a browser, and breaks no header.
std::string known_type(const std::string& type) {
  return type == json_content || type == text_content ? type : bytes_content;
}

Ask question_of(const OpsCall& call, std::uint64_t number) {
  Ask question;
  question.number = number;
  question.control = call.caller.right == Right::control;
  question.by = call.caller.by;
  question.method = takes_body(call) ? "POST" : "GET";
  question.target = call.target;
  question.body = call.body;
  return question;
}

}  // namespace

std::uint64_t fresh_question_number() {
  const Nonce chance = fresh_nonce();
  std::uint64_t number = 0;
  std::memcpy(&number, chance.data(), sizeof number);
  return number >> 1U;
}

OpsRequest request_of(const Ask& question) {
  OpsRequest request{.method = question.method, .target = question.target, .headers = {}};
  if (!question.body.empty()) request.headers.emplace_back("Content-Type", json_content);
  return request;
}

OpsCaller caller_of(const Ask& question) {
  return {.right = question.control ? Right::control : Right::read, .by = question.by, .proved = true};
}

Answer answer_to(std::uint64_t number, OpsAnswer given) {
  if (given.body.size() > answer_body_bytes_max) {
    given =
        answer_of({503, "too_long", "That is too long to be passed on from node to node; ask at the job's host", ""});
  }
  Answer answer;
  answer.number = number;
  answer.status = given.status;
  answer.type = std::move(given.content_type);
  answer.body = std::move(given.body);
  for (const auto& [name, value] : given.headers) {
    if (name == offset_header) answer.offset = std::stoull(value);
    if (name == log_header) answer.log = std::stoull(value);
    if (name == source_header && value == source_memory) answer.type = bytes_of_memory;
  }
  return answer;
}

void OpenQuestions::ask(std::string whom, const OpsCall& call, const std::function<bool(Ask)>& send, Reply reply,
                        std::optional<Duration> limit) {
  if (open_.size() >= open_max) {
    return reply(
        answer_of({503, "too_many_questions", fmt::format("{} questions are open already", open_.size()), ""}));
  }
  const std::uint64_t number = next_++;
  if (!send(question_of(call, number))) {
    return reply(answer_of({503, "cut_off", "Who could answer has no connection now", ""}));
  }
  const auto& open = open_[number] = std::make_unique<Open>(loop_, std::move(whom), std::move(reply));
  open->timer.expires_after(limit.value_or(limit_));
  open->timer.async_wait([this, number, alive = std::weak_ptr{alive_}](boost::system::error_code error) {
    if (!error && !alive.expired())
      close(number, answer_of({504, "no_answer", "Who was asked has not answered in time", ""}));
  });
}

void OpenQuestions::answered(const std::string& who, Answer answer) {
  const auto open = open_.find(answer.number);
  if (open == open_.end() || open->second->whom != who) return;
  OpsAnswer given;
  given.status = answer.status >= 200 ? answer.status : 502;  // what is below is no answer
  given.content_type = known_type(answer.type);
  if (answer.type == bytes_of_memory) given.headers.emplace_back(source_header, source_memory);
  given.body = std::move(answer.body);
  if (answer.offset) given.headers.emplace_back(offset_header, std::to_string(*answer.offset));
  if (answer.log != 0) given.headers.emplace_back(log_header, std::to_string(answer.log));
  close(answer.number, std::move(given));
}

void OpenQuestions::close(std::uint64_t number, OpsAnswer answer) {
  const auto open = open_.find(number);
  if (open == open_.end()) return;  // it was answered while its time was over already
  const auto closed = std::move(open->second);
  open_.erase(open);
  closed->timer.cancel();
  closed->reply(std::move(answer));
}

}  // namespace torchup

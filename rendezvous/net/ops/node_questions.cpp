#include "rendezvous/net/ops/node_questions.hpp"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <chrono>
#include <utility>
#include <vector>

#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

/// Of a log, in answers: where the next part begins.
constexpr std::string_view offset_header = "Torchup-Offset";

TimePoint now() { return std::chrono::steady_clock::now(); }

OpsAnswer answer_of(const Answer& told) {
  OpsAnswer answer{.status = told.status, .content_type = told.type, .body = told.body};
  if (told.offset) answer.headers.emplace_back(offset_header, std::to_string(*told.offset));
  return answer;
}

Answer told_of(std::uint64_t number, OpsAnswer answer) {
  if (answer.body.size() > answer_body_bytes_max) {
    answer = torchup::answer_of(Refusal{
        503, "too_long", fmt::format("The answer has over {} bytes: ask the node itself", answer_body_bytes_max), ""});
  }
  Answer told{.number = number,
              .status = answer.status,
              .type = std::move(answer.content_type),
              .body = std::move(answer.body)};
  for (const auto& [name, value] : answer.headers) {
    std::uint64_t offset = 0;
    if (name != offset_header) continue;
    if (std::from_chars(value.data(), value.data() + value.size(), offset).ec == std::errc{}) told.offset = offset;
  }
  return told;
}

/// What workers wrote, or have in memory.
bool asks_for_output(const OpsRequest& request, const OpsCaller& caller) {
  const auto asked = routed(request, caller);
  const auto* const call = std::get_if<OpsCall>(&asked);
  return call && (call->route == OpsRoute::log || call->route == OpsRoute::stacks);
}

Refusal needs_token() {
  return {403, "token_needed",
          "Without a token what workers wrote goes to no other machine: give the job one with --token-file", ""};
}

Refusal unreachable(const std::string& why) { return {503, "not_reachable", why, ""}; }

}  // namespace

class NodeQuestions::Impl : public std::enable_shared_from_this<NodeQuestions::Impl> {
 public:
  Impl(boost::asio::io_context& loop, bool has_token, Say say, Perform perform)
      : timer_{loop}, has_token_{has_token}, say_{std::move(say)}, perform_{std::move(perform)} {}

  void ask(const std::string& whom, Ask question, HttpServer::Reply reply) {
    if (open_.size() >= open_questions_max) {
      return reply(torchup::answer_of(unreachable(fmt::format("{} questions wait for answers", open_questions_max))));
    }
    const auto number = open_.ask(whom, std::move(reply), now());
    question.number = *number;
    if (!say_(whom, std::move(question))) {
      if (const auto asker = open_.answered(whom, *number)) {
        (*asker)(torchup::answer_of(unreachable("Nobody who could answer is connected")));
      }
      return;
    }
    arm();
  }

  void heard(const std::string& by, Ask question) {
    std::size_t& unanswered = unanswered_[by];
    if (unanswered >= open_questions_max) {
      say_(by, told_of(question.number, torchup::answer_of(unreachable("Too many questions wait for answers"))));
      return;
    }
    ++unanswered;
    OpsRequest request{.method = std::move(question.method), .target = std::move(question.target), .headers = {}};
    if (!question.body.empty()) request.headers.emplace_back("Content-Type", json_content);
    const OpsCaller caller{
        .right = question.control ? Right::control : Right::read, .by = std::move(question.by), .proved = true};
    if (!has_token_ && asks_for_output(request, caller)) {
      return answer(by, question.number, torchup::answer_of(needs_token()));
    }
    perform_(request, caller, question.body, [weak = weak_from_this(), by, number = question.number](OpsReply reply) {
      if (const auto self = weak.lock()) self->answer(by, number, std::move(reply));
    });
  }

  void heard(const std::string& by, const Answer& told) {
    const auto asker = open_.answered(by, told.number);
    if (asker) (*asker)(answer_of(told));
  }

  /// Nobody is asked any more.
  void end() {
    timer_.cancel();
    for (const HttpServer::Reply& asker : open_.overdue(TimePoint::max())) {
      asker(torchup::answer_of(unreachable("This process ends")));
    }
  }

  [[nodiscard]] std::size_t open() const { return open_.size(); }

 private:
  void answer(const std::string& by, std::uint64_t number, OpsReply reply) {
    const auto found = unanswered_.find(by);
    if (found != unanswered_.end() && --found->second == 0) unanswered_.erase(found);
    auto* const whole = std::get_if<OpsAnswer>(&reply);
    say_(by, whole ? told_of(number, std::move(*whole))
                   : told_of(number, torchup::answer_of(Refusal{501, "not_here", "Streams are not handed on", ""})));
  }

  void arm() {
    const auto deadline = open_.deadline();
    if (!deadline) return timer_.expires_at(TimePoint::max()), void();
    timer_.expires_at(*deadline);
    timer_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
      const auto self = weak.lock();
      if (error || !self) return;
      for (const HttpServer::Reply& asker : self->open_.overdue(now())) {
        asker(torchup::answer_of(
            Refusal{504, "no_answer", fmt::format("No answer within {}", seconds(answer_wait_max)), ""}));
      }
      self->arm();
    });
  }

  boost::asio::steady_timer timer_;
  bool has_token_;
  Say say_;
  Perform perform_;
  OpenQuestions<std::string, HttpServer::Reply> open_;
  std::map<std::string, std::size_t> unanswered_;  ///< of what others have asked, by whom
};

NodeQuestions::NodeQuestions(boost::asio::io_context& loop, bool has_token, Say say, Perform perform)
    : impl_{std::make_shared<Impl>(loop, has_token, std::move(say), std::move(perform))} {}
NodeQuestions::~NodeQuestions() { impl_->end(); }

void NodeQuestions::ask(const std::string& whom, Ask question, HttpServer::Reply reply) {
  impl_->ask(whom, std::move(question), std::move(reply));
}
void NodeQuestions::heard(const std::string& by, Word word) {
  std::visit([&](auto& said) { impl_->heard(by, std::move(said)); }, word);
}
std::size_t NodeQuestions::open() const { return impl_->open(); }

}  // namespace torchup

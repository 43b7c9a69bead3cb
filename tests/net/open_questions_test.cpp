#include "rendezvous/net/ops/open_questions.hpp"

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

std::string code_of(const OpsAnswer& answer) {
  return nlohmann::json::parse(answer.body).at("error").at("code").get<std::string>();
}

/// One who asks "node", and what was sent and replied.
struct Asking {
  explicit Asking(std::uint64_t first = 1, Duration limit = 60s) : questions{loop, first, limit} {}
  void ask(std::optional<Duration> limit = {}) {
    const auto send = [this](Ask question) {
      if (connected) sent.push_back(std::move(question));
      return connected;
    };
    questions.ask(
        "node", {.target = "/"}, send, [this](OpsAnswer answer) { replies.push_back(std::move(answer)); }, limit);
  }
  boost::asio::io_context loop;
  OpenQuestions questions;
  bool connected = true;
  std::vector<Ask> sent;
  std::vector<OpsAnswer> replies;
};

}  // namespace

TEST_CASE("so many questions are open, and no more", "[net][ops]") {
  Asking it;
  for (std::size_t number = 0; number < OpenQuestions::open_max; ++number) it.ask();
  REQUIRE(it.replies.empty());
  REQUIRE(it.sent.size() == OpenQuestions::open_max);
  it.ask();
  REQUIRE(it.sent.size() == OpenQuestions::open_max);
  REQUIRE(it.replies.size() == 1);
  REQUIRE(it.replies.back().status == 503);
  REQUIRE(code_of(it.replies.back()) == "too_many_questions");
  it.questions.answered("node", {.number = it.sent.front().number, .body = "one"});
  REQUIRE(it.replies.back().body == "one");
  it.ask();  // there is room again
  REQUIRE(it.replies.size() == 2);
  REQUIRE(it.sent.size() == OpenQuestions::open_max + 1);
}

TEST_CASE("a question that nobody answers in time has an answer, and no other", "[net][ops]") {
  Asking it{1, 1ms};
  it.ask();
  it.loop.run();
  REQUIRE(it.replies.size() == 1);
  REQUIRE(it.replies.back().status == 504);
  REQUIRE(code_of(it.replies.back()) == "no_answer");
  it.questions.answered("node", {.number = it.sent.front().number, .body = "late"});
  REQUIRE(it.replies.size() == 1);
}

TEST_CASE("one question may have a limit of its own", "[net][ops]") {
  Asking it;
  it.ask(1ms);
  it.loop.run();
  REQUIRE(it.replies.back().status == 504);
}

TEST_CASE("who has no connection is not waited for", "[net][ops]") {
  Asking it;
  it.connected = false;
  it.ask();
  REQUIRE(it.replies.size() == 1);
  REQUIRE(code_of(it.replies.back()) == "cut_off");
}

TEST_CASE("an answer to another life's question is not taken", "[net][ops]") {
  Asking former{1000}, it{5'000'000};
  former.ask();
  it.ask();
  REQUIRE(it.sent.front().number == 5'000'000);
  it.questions.answered("node", {.number = former.sent.front().number, .body = "to the former"});
  REQUIRE(it.replies.empty());
  std::set<std::uint64_t> lives;
  for (int life = 0; life < 100; ++life) lives.insert(fresh_question_number());
  REQUIRE(lives.size() == 100);
  boost::asio::io_context loop;
  OpenQuestions one{loop}, other{loop};  // each begins at one
  std::vector<std::uint64_t> numbers;
  const auto send = [&](const Ask& question) {
    numbers.push_back(question.number);
    return false;
  };
  for (OpenQuestions* questions : {&one, &other})
    questions->ask("node", {.target = "/"}, send, [](const OpsAnswer&) {});
  REQUIRE(numbers.at(0) != numbers.at(1));
}

TEST_CASE("an answer that is too long for the way says so", "[net][ops]") {
  const std::string longest(answer_body_bytes_max, 'x');
  REQUIRE(answer_to(7, {.body = longest}).body == longest);
  REQUIRE(answer_to(7, {.body = longest}).status == 200);
  const Answer cut = answer_to(7, {.body = longest + "x"});
  REQUIRE(cut.number == 7);
  REQUIRE(cut.status == 503);
  REQUIRE(cut.body.find("too_long") != std::string::npos);
}

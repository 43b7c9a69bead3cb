// Requests that one process of a job answers for another.
#include "rendezvous/net/ops/node_questions.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <catch2/catch.hpp>
#include <optional>
#include <vector>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

const std::string node = "a_1_0", coordinator = "coordinator";

/// Two that ask each other: what one says, the other hears in a later turn of the loop.
struct Two {
  NodeQuestions::Say way_to(const std::string& from, NodeQuestions*& to) {
    return [this, from, &to](const std::string&, NodeQuestions::Word word) {
      if (!connected) return false;
      boost::asio::post(loop, [&to, from, word = std::move(word)]() mutable {
        if (to) to->heard(from, std::move(word));
      });
      return true;
    };
  }
  /// Does with a request what `then` says, and remembers it.
  void perform(const OpsRequest& request, const OpsCaller& caller, std::string_view body, HttpServer::Reply reply) {
    requests.push_back(request);
    callers.push_back(caller);
    bodies.emplace_back(body);
    if (answers) return reply(*answers);
    kept.push_back(std::move(reply));
  }
  std::optional<OpsAnswer>& ask(Ask question) {
    asker.ask(node, std::move(question), [this](OpsReply reply) {
      REQUIRE_FALSE(got);
      got = std::get<OpsAnswer>(std::move(reply));
    });
    loop.poll();
    loop.restart();
    return got;
  }

  boost::asio::io_context loop;
  bool has_token;
  bool connected = true;
  std::vector<OpsRequest> requests;
  std::vector<OpsCaller> callers;
  std::vector<std::string> bodies;
  std::optional<OpsAnswer> answers = OpsAnswer{.status = 202, .body = "{}"};
  std::vector<HttpServer::Reply> kept;
  std::optional<OpsAnswer> got;
  NodeQuestions* to_asker = nullptr;
  NodeQuestions* to_node = nullptr;
  NodeQuestions asker{loop, true, way_to(coordinator, to_node), [](auto&&...) { FAIL("nobody asks the coordinator"); }};
  NodeQuestions answerer{loop, has_token, way_to(node, to_asker),
                         [this](const OpsRequest& request, const OpsCaller& caller, std::string_view body,
                                HttpServer::Reply reply) { perform(request, caller, body, std::move(reply)); }};
  explicit Two(bool token = true) : has_token{token} {
    to_asker = &asker;
    to_node = &answerer;
  }
};

}  // namespace

TEST_CASE("a request is performed elsewhere with the right of who asks", "[net][questions]") {
  Two two;
  const bool control = GENERATE(true, false);
  const auto& got = two.ask(
      {.control = control, .by = "ada", .method = "POST", .target = "/v1/jobs/a%2Fb/stop", .body = R"({"save":true})"});
  REQUIRE(two.requests.size() == 1);
  REQUIRE(two.requests[0].method == "POST");
  REQUIRE(two.requests[0].target == "/v1/jobs/a%2Fb/stop");
  REQUIRE(header(two.requests[0], "content-type") == json_content);
  REQUIRE(two.bodies[0] == R"({"save":true})");
  REQUIRE(two.callers[0].by == "ada");
  REQUIRE(two.callers[0].right == (control ? Right::control : Right::read));
  REQUIRE((got && got->status == 202 && got->body == "{}" && got->content_type == json_content));
}

TEST_CASE("a log's answer says where the next part begins", "[net][questions]") {
  Two two;
  two.answers = OpsAnswer{.content_type = "application/octet-stream", .body = std::string("\0\xff", 2)};
  two.answers->headers.emplace_back("Torchup-Offset", "18446744073709551615");
  const auto& got = two.ask({.method = "GET", .target = "/v1/jobs/a/ranks/0/log"});
  REQUIRE((got && got->body == std::string("\0\xff", 2)));
  REQUIRE(got->headers == std::vector<OpsRequest::Header>{{"Torchup-Offset", "18446744073709551615"}});
}

TEST_CASE("without a token no output goes to another machine", "[net][questions]") {
  Two two{false};
  SECTION("no log, no stack") {
    const std::string what = GENERATE(as<std::string>{}, "ranks/0/log", "stacks");
    const auto& got = two.ask({.control = true, .method = "GET", .target = "/v1/jobs/a/" + what});
    REQUIRE(got.value().status == 403);
    REQUIRE(got->body.find("token") != std::string::npos);
    REQUIRE(two.requests.empty());
  }
  SECTION("the rest does") {
    REQUIRE(two.ask({.control = true, .method = "GET", .target = "/v1/jobs/a"}).value().status == 202);
  }
}

TEST_CASE("what has no answer is told so", "[net][questions]") {
  Two two;
  SECTION("nobody is there") {
    two.connected = false;
    REQUIRE(two.ask({}).value().status == 503);
  }
  SECTION("the answer is too long for its way") {
    two.answers->body.assign(answer_body_bytes_max + 1, 'x');
    REQUIRE(two.ask({}).value().status == 503);
  }
  SECTION("as long as may be it is none") {
    two.answers->body.assign(answer_body_bytes_max, 'x');
    REQUIRE(two.ask({}).value().body.size() == answer_body_bytes_max);
  }
  SECTION("who asks ends") {
    two.answers.reset();
    std::optional<int> status;
    {
      NodeQuestions brief{two.loop, true, two.way_to(coordinator, two.to_node), [](auto&&...) {}};
      brief.ask(node, {}, [&](OpsReply reply) { status = std::get<OpsAnswer>(reply).status; });
      REQUIRE_FALSE(status);
    }
    REQUIRE(status == 503);
  }
  REQUIRE(two.asker.open() == 0);
}

TEST_CASE("so many questions are open at a time, and no more", "[net][questions]") {
  Two two;
  two.answers.reset();
  std::vector<int> statuses;
  const auto ask = [&] {
    two.asker.ask(node, {}, [&](OpsReply reply) { statuses.push_back(std::get<OpsAnswer>(reply).status); });
    two.loop.poll();
    two.loop.restart();
  };
  for (std::size_t i = 0; i < open_questions_max; ++i) ask();
  REQUIRE(statuses.empty());
  ask();
  REQUIRE(statuses == std::vector{503});
  two.kept.front()(OpsAnswer{});
  two.loop.poll();
  REQUIRE(statuses == std::vector{503, 200});
  SECTION("nor are more taken of somebody who counts otherwise") {
    statuses.clear();
    const std::size_t before = two.requests.size();
    for (std::uint64_t number = 1000; number < 1010; ++number) two.answerer.heard("b_1_0", Ask{.number = number});
    REQUIRE(two.requests.size() == before + 10);
    for (std::uint64_t number = 2000; number < 2100; ++number) two.answerer.heard("b_1_0", Ask{.number = number});
    REQUIRE(two.requests.size() == before + open_questions_max);
  }
}

TEST_CASE("an answer that nobody has asked for is passed over", "[net][questions]") {
  Two two;
  two.answers.reset();
  const auto& got = two.ask({});
  two.asker.heard("another", Answer{.number = 1});
  two.asker.heard(node, Answer{.number = 77});
  REQUIRE_FALSE(got);
  two.asker.heard(node, Answer{.number = 1, .status = 404, .type = "text/plain"});
  REQUIRE(got.value().status == 404);
}

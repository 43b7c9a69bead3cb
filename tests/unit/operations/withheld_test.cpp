#include "rendezvous/core/ops/withheld.hpp"

#include <catch2/catch.hpp>
#include <string>

using namespace torchup;

TEST_CASE("what workers or users wrote is left out wherever it stands", "[unit][withheld]") {
  for (const std::string name :
       {"command", "message", "traceback", "last_lines", "native_backtrace", "kernel_lines", "last_words",
        "python_stack", "findings", "ended_for", "said", "scope", "collective", "operation"}) {
    INFO(name);
    REQUIRE(is_withheld(name));
    REQUIRE(withheld(R"({"rank":3,")" + name + R"(":"secret"})") == R"({"rank":3,"withheld":true})");
    REQUIRE(withheld(R"({"a":[{")" + name + R"(":["secret"],"b":1}],"c":{")" + name + R"(":{"d":"secret"}}})") ==
            R"({"a":[{"b":1}],"c":{},"withheld":true})");
  }
}

TEST_CASE("a name that is spelled with escapes is left out, too", "[unit][withheld]") {
  REQUIRE(withheld(R"({"mess\u0061ge":"secret"})") == R"({"withheld":true})");
}

TEST_CASE("what holds none of it comes back as it was", "[unit][withheld]") {
  for (const std::string text : {R"({"type":"round_completed", "x" : 1.50})", R"({"text":"the message"})", "{}",
                                 R"({"messages":1,"a":"message","b":"\u00e4"})"}) {
    REQUIRE(withheld(text) == text);
  }
}

TEST_CASE("a summary is cut to what is ours", "[unit][withheld]") {
  const std::string ours = "rank 3 (local rank 3, pid 7) on node1: exit code 1";
  REQUIRE(summary_without_message(ours) == ours);
  REQUIRE(summary_without_message(ours + ": ValueError: secret; out of memory") == ours);
  REQUIRE(summary_without_message("no colon") == "no colon");
  REQUIRE(withheld(R"({"summary":"rank 3 on n: exit code 1: secret","b":[{"summary":"x: y: z"}]})") ==
          R"({"summary":"rank 3 on n: exit code 1","b":[{"summary":"x: y"}],"withheld":true})");
  REQUIRE(withheld(R"({"summary":"rank 3 on n: exit code 1"})") == R"({"summary":"rank 3 on n: exit code 1"})");
}

TEST_CASE("text that is no object of ours shows nothing", "[unit][withheld]") {
  const std::string nothing = R"({"withheld":true})";
  REQUIRE(withheld(R"(["message","secret"])") == nothing);
  REQUIRE(withheld(R"({"message":"secret")") == nothing);
  REQUIRE(withheld(R"("message")") == nothing);
  const std::string deep(100'000, '[');
  REQUIRE(withheld(R"({"message":1,"a":)" + deep) == nothing);
  const std::string closed =
      R"({"message":1,"a":)" + std::string(1000, '[') + "\"secret\"" + std::string(1000, ']') + "}";
  REQUIRE(withheld(closed).find("secret") == std::string::npos);
}

TEST_CASE("an event that leaves its machine has nothing that workers have printed", "[unit][withheld]") {
  REQUIRE(without_output(R"({"event":"a","last_lines":["secret"],"summary":"x: y: z"})") ==
          R"({"event":"a","summary":"x: y: z","withheld":true})");
  REQUIRE(without_output(R"({"last\u005flines":["secret"]})") == R"({"withheld":true})");
  for (const std::string text : {R"({"event" : "a","message":"last_lines"})", "no JSON of last_lines", "{}"})
    REQUIRE(without_output(text) == text);
}

#include "rendezvous/core/text/json_text.hpp"

#include <catch2/catch.hpp>
#include <limits>
#include <nlohmann/json.hpp>

using namespace torchup;
using namespace std::string_literals;

namespace {

std::string in_json(std::string_view text) {
  std::string out;
  put_json(out, text);
  return out;
}

}  // namespace

TEST_CASE("whatever a text is, JSON reads it back", "[unit][json_text]") {
  const std::string text =
      GENERATE(as<std::string>{}, "", "plain", "a \"b\" \\ c", "line\nend\r\t", "</script><img src=x>",
               "Knoten „böß“ 節点 🦜", "\u2028\u2029\u0085\u202e", "a\0b\x1b[2J\x7f"s);
  REQUIRE(nlohmann::json::parse(in_json(text)).get<std::string>() == text);
}

TEST_CASE("bytes that are no UTF-8 become U+FFFD, one by one", "[unit][json_text]") {
  REQUIRE(nlohmann::json::parse(in_json("a\xff\xfez")).get<std::string>() == "a\ufffd\ufffdz");
  REQUIRE(nlohmann::json::parse(in_json("\xe2\x82")).get<std::string>() == "\ufffd\ufffd");
  REQUIRE(nlohmann::json::parse(in_json("\xed\xa0\x80")).get<std::string>() == "\ufffd\ufffd\ufffd");
}

TEST_CASE("nothing in a text ends a script or a line", "[unit][json_text]") {
  const std::string out = in_json("</script>\n\u2028\x7f");
  REQUIRE(out.find('<') == std::string::npos);
  REQUIRE(out.find('\n') == std::string::npos);
  REQUIRE(out.find("\u2028") == std::string::npos);
  REQUIRE(out == "\"\\u003c/script>\\n\\u2028\\u007f\"");
}

TEST_CASE("an object has its members in their order", "[unit][json_text]") {
  std::string out = "before ";
  JsonObject{out}
      .text("a", "x")
      .text_or_null("b", "")
      .number("c", std::numeric_limits<std::int64_t>::min())
      .number_or_null("d", std::nullopt)
      .real("e", 1.5)
      .real("f", std::numeric_limits<double>::infinity())
      .flag("g", true)
      .json("h", "[1]")
      .end();
  REQUIRE(out ==
          "before {\"a\":\"x\",\"b\":null,\"c\":-9223372036854775808,\"d\":null,\"e\":1.500,\"f\":null,\"g\":true,"
          "\"h\":[1]}");
}

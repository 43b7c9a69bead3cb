#include "launcher/core/text/text.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

TEST_CASE("text of others cannot steer a terminal", "[unit][text]") {
  CHECK(printable_lines("plain \u00e4 \u20ac \U0001F600\n\tnext") == "plain \u00e4 \u20ac \U0001F600\n\tnext");
  CHECK(printable_lines("\x1b[2J\x07\r\x08\x7f") == "\\x1b[2J\\x07\\x0d\\x08\\x7f");
  CHECK(printable_lines(std::string_view{"a\0b", 3}) == "a\\x00b");
  CHECK(printable_lines("\u009b2J") == "\\xc2\\x9b2J");  // a terminal takes it for ESC [
  CHECK(printable_lines("\u00a0") == "\u00a0");
  CHECK(printable_lines("\x9b"
                        "2J \xff \xe2\x82") == "\\x9b2J \\xff \\xe2\\x82");
  CHECK(printable_lines("").empty());
}

TEST_CASE("names in a text are replaced as by Python's string.Template", "[unit][text]") {
  const auto replaced = [](std::string_view text) { return substituted(text, {{"rank", "7"}, {"_x1", "y"}}); };
  CHECK(replaced("$rank,${rank},$_x1") == "7,7,y");
  CHECK(replaced("$$rank ${nosuch} $nosuch $ ${rank ${} $1") == "$rank ${nosuch} $nosuch $ ${rank ${} $1");
  CHECK(replaced("$ranks ${rank}s $rank-$rank") == "$ranks 7s 7-7");
  CHECK(replaced("$$$rank ${$rank}") == "$7 ${7}");
  CHECK(replaced("").empty());
}

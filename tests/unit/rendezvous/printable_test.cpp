#include "rendezvous/core/text/printable.hpp"

#include <catch2/catch.hpp>

using namespace torchup;
using namespace std::string_literals;

TEST_CASE("text that steers nothing is printed as it is", "[unit][printable]") {
  const std::string text =
      GENERATE(as<std::string>{}, "", "a node left", "Knoten „böß“ ging", "узел", "節点", "🦜 100 %n \\n");
  REQUIRE(printable(text) == text);
}

TEST_CASE("what moves a cursor, ends a line or turns the writing is written out", "[unit][printable]") {
  REQUIRE(printable("left\ntorchupd: job a ends with 0") == "left\\ntorchupd: job a ends with 0");
  REQUIRE(printable("\x1b[2J\r\t\b\x7f") == "\\x1b[2J\\r\\t\\x08\\x7f");
  REQUIRE(printable("a\0b"s) == "a\\x00b");
  REQUIRE(printable("\u0085\u009b2J") == "\\x85\\x9b2J");  // C1: a terminal's other way to write ESC [
  REQUIRE(printable("\u202e0 htiw dne\u2066\u2028\u2029\u200f") == "\\u202e0 htiw dne\\u2066\\u2028\\u2029\\u200f");
}

TEST_CASE("bytes that are no UTF-8 are written out one by one", "[unit][printable]") {
  REQUIRE(printable("\xff\xfe") == "\\xff\\xfe");
  REQUIRE(printable("\xc3") == "\\xc3");                    // cut off
  REQUIRE(printable("\xc0\x8a") == "\\xc0\\x8a");           // an overlong line end
  REQUIRE(printable("\xe0\x80\x8a") == "\\xe0\\x80\\x8a");  // likewise
  REQUIRE(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // a surrogate
  REQUIRE(printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");
  REQUIRE(printable("\x9b") == "\\x9b");  // C1 as one byte
  REQUIRE(printable("a\xe2\x82z") == "a\\xe2\\x82z");
}

TEST_CASE("a long foreign text is cut at a whole character and says so", "[unit][printable]") {
  REQUIRE(printable_start(std::string(256, 'x')) == std::string(256, 'x'));
  REQUIRE(printable_start(std::string(257, 'x')) == std::string(256, 'x') + "… (257 bytes)");
  REQUIRE(printable_start("aé", 2) == "a… (3 bytes)");
  REQUIRE(printable_start("a🦜", 4) == "a… (5 bytes)");
  REQUIRE(printable_start("aé", 3) == "aé");
  REQUIRE(printable_start("\x1b\x1b\x1b", 2) == "\\x1b\\x1b… (3 bytes)");
}

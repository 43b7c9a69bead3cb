#include "rendezvous/net/io/token.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

TEST_CASE("a token is long and has many different characters", "[net][token]") {
  REQUIRE(*checked_token("0123456789abcdef", "here") == "0123456789abcdef");  // token_bytes_min
  REQUIRE(checked_token("0123456789abcde", "here").error().code == errc::bad_value);
  REQUIRE(checked_token("", "here").has_error());
  REQUIRE(checked_token("abcdefghaaaaaaaa", "here").has_value());  // token_distinct_bytes_min
  REQUIRE(checked_token("abcdefgaaaaaaaaa", "here").has_error());
  std::string longest;
  while (longest.size() < token_bytes_max) longest += "0123456789abcdef";
  REQUIRE(checked_token(longest, "here").has_value());
  REQUIRE(checked_token(longest + "x", "here").error().code == errc::limit_exceeded);
}

TEST_CASE("an error about a token names where it was and not what it is", "[net][token]") {
  const std::string text = checked_token("hunter2", "token file /x").error().message();
  REQUIRE(text.find("token file /x") == 0);
  REQUIRE(text.find("hunter2") == std::string::npos);
  REQUIRE(text.find("/dev/urandom") != std::string::npos);
}

TEST_CASE("secrets are compared whole", "[net][token]") {
  REQUIRE(same("0123456789abcdef", "0123456789abcdef"));
  REQUIRE_FALSE(same("0123456789abcdef", "0123456789abcdeg"));
  REQUIRE_FALSE(same("0123456789abcdef", "0123456789abcde"));
  REQUIRE_FALSE(same("", "0"));
  REQUIRE(same("", ""));
}

#include "launcher/core/error_file.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

TEST_CASE("an error file as @record writes it", "[unit][report]") {
  const auto error = parse_error_file(
      R"({"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack": "Traceback:\n  File\nValueError: bad\n", "timestamp": "1795234093"}}})");
  REQUIRE(error.has_value());
  CHECK(*error == WorkerError{.message = "ValueError: bad",
                              .traceback = "Traceback:\n    File\n  ValueError: bad\n  ",
                              .time_s = 1795234093,
                              .structured = true});
}

TEST_CASE("error files of other shapes", "[unit][report]") {
  const auto read = [](const char* text) {
    const auto error = parse_error_file(text);
    REQUIRE(error.has_value());
    return *error;
  };
  CHECK(read(R"({"message": "text\nmore", "timestamp": 10})") == WorkerError{"text\nmore", "text\nmore", 10, false});
  CHECK(read(R"({"message": "text", "timestamp": " 11 "})").time_s == 11);
  CHECK(read(R"({"message": "text"})").time_s == 0);
  CHECK(read(R"({"message": {"message": "m", "extraInfo": {"timestamp": 3}}})").traceback == "m");
  CHECK(read(R"({"message": {"extraInfo": {"timestamp": 3.9}}})") == WorkerError{"", "<N/A>", 3, true});
}

TEST_CASE("what is no error file is refused", "[unit][report]") {
  for (const char* text :
       {"", "{", "[]", "7", "{}", R"({"message": {}})", R"({"message": {"extraInfo": {"timestamp": "soon"}}})",
        R"({"message": {"extraInfo": {"timestamp": 1e300}}})", R"({"message": "m", "timestamp": []})",
        R"({"message": 3})"}) {
    INFO(text);
    const auto error = parse_error_file(text);
    REQUIRE_FALSE(error.has_value());
    CHECK(error.error().code == make_error_code(errc::bad_value));
  }
}

TEST_CASE("an error file has a greatest length", "[unit][report]") {
  std::string text = R"({"message": "m"})";
  text.resize(error_file_bytes_max, ' ');
  CHECK(parse_error_file(text).has_value());
  text += ' ';
  CHECK(parse_error_file(text).error().code == make_error_code(errc::limit_exceeded));
}

TEST_CASE("hand-over adds the exit code to an object message only", "[unit][report]") {
  CHECK(with_error_code(R"({"message": {"message": "m", "extraInfo": {"timestamp": "3"}}})", -9) ==
        R"({"message":{"errorCode":-9,"extraInfo":{"timestamp":"3"},"message":"m"}})");
  CHECK(with_error_code(R"({"message": "text", "timestamp": 1})", 7) == R"({"message": "text", "timestamp": 1})");
}

TEST_CASE("our own error file can be read back", "[unit][report]") {
  const auto error = parse_error_file(make_error_file("SignalException: Process 7 got signal: 15", "stack\xff", 12));
  REQUIRE(error.has_value());
  CHECK(*error == WorkerError{"SignalException: Process 7 got signal: 15", "stack\uFFFD", 12, true});
}

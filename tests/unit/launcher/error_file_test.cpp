#include "launcher/core/record/error_file.hpp"

#include <catch2/catch.hpp>

#include "launcher/core/text/json.hpp"

using namespace torchup;

TEST_CASE("an error file as @record writes it", "[unit][report]") {
  const auto error = parse_error_file(
      R"({"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack": "Traceback:\n  File\nValueError: bad\n", "timestamp": "1795234093"}}})");
  REQUIRE(error.has_value());
  CHECK(*error == WorkerError{.message = "ValueError: bad",
                              .traceback = "Traceback:\n    File\n  ValueError: bad\n  ",
                              .time_us = 1'795'234'093'000'000,
                              .structured = true});
}

TEST_CASE("error files of other shapes", "[unit][report]") {
  const auto read = [](const char* text) {
    const auto error = parse_error_file(text);
    REQUIRE(error.has_value());
    return *error;
  };
  CHECK(read(R"({"message": "text\nmore", "timestamp": 10})") ==
        WorkerError{"text\nmore", "text\nmore", 10'000'000, false});
  CHECK(read(R"({"message": "text", "timestamp": " 11 "})").time_us == 11'000'000);
  CHECK(read(R"({"message": "text"})").time_us == 0);
  CHECK(read(R"({"message": {"message": "m", "extraInfo": {"timestamp": 3}}})").traceback == "m");
  CHECK(read(R"({"message": {"extraInfo": {"timestamp": 3.9}}})") == WorkerError{"", "<N/A>", 3'000'000, true});
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

TEST_CASE("an error file has a greatest depth, of whatever brackets", "[unit][report]") {
  // The file itself is one level, its `message` another.
  const auto nested = [](int levels, const std::string& open, const std::string& close) {
    std::string text = R"({"message": {"message": )";
    for (int level = 2; level < levels; ++level) text += open;
    text += "0";
    for (int level = 2; level < levels; ++level) text += close;
    return text + R"(, "extraInfo": {"timestamp": 1}}})";
  };
  const auto [open, close] = GENERATE(table<std::string, std::string>({{"[", "]"}, {"{\"a\":", "}"}}));
  const std::string deepest = nested(json_depth_max, open, close);
  REQUIRE(parse_error_file(deepest).has_value());
  CHECK(with_error_code(deepest, 3).find("errorCode") != std::string::npos);
  const auto refused = parse_error_file(nested(json_depth_max + 1, open, close));
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code == make_error_code(errc::limit_exceeded));
  CHECK(refused.error().context == "it is nested deeper than 64 levels");
  // Brackets in text are no nesting.
  const std::string text = R"({"message": ")" + std::string(1000, '[') + R"(\"{{"})";
  CHECK(parse_error_file(text).has_value());
}

TEST_CASE("the deepest error file within the length limit does no harm", "[unit][report]") {
  const std::string brackets = R"({"message": )" + std::string(500'000, '[');
  CHECK_FALSE(parse_error_file(brackets).has_value());
  CHECK_FALSE(parse_error_file(brackets + std::string(500'000, ']') + "}").has_value());
  CHECK(with_error_code(brackets, 3) == brackets);
}

TEST_CASE("a timestamp of any usual unit becomes the same time", "[unit][report]") {
  const auto time_of = [](const std::string& stamp) {
    const auto error = parse_error_file(R"({"message": "m", "timestamp": )" + stamp + "}");
    return error ? std::optional{error->time_us} : std::nullopt;
  };
  for (const char* stamp : {"1795234093", "1795234093.0", "\"1795234093\"", "1795234093000", "1795234093000000",
                            "1795234093000000000", "\"1795234093000000000\"", "1.795234093e18"})
    CHECK(time_of(stamp) == 1'795'234'093'000'000);
  CHECK(time_of("99999999999") == 99'999'999'999'000'000);  // the last that is taken for seconds
  CHECK(time_of("100000000000") == 100'000'000'000'000);
  CHECK(time_of("9223372036854775807") == 9'223'372'036'854'775);
  CHECK(time_of("-9223372036854775807") == -9'223'372'036'854'775);
  for (const char* stamp : {"9223372036854775808", "18446744073709551615", "\"9223372036854775808\"", "1e19"})
    CHECK(time_of(stamp) == std::nullopt);
}

TEST_CASE("hand-over adds the exit code to an object message only", "[unit][report]") {
  CHECK(with_error_code(R"({"message": {"message": "m", "extraInfo": {"timestamp": "3"}}})", -9) ==
        R"({"message":{"errorCode":-9,"extraInfo":{"timestamp":"3"},"message":"m"}})");
  CHECK(with_error_code(R"({"message": "text", "timestamp": 1})", 7) == R"({"message": "text", "timestamp": 1})");
}

TEST_CASE("our own error file can be read back", "[unit][report]") {
  const auto error = parse_error_file(make_error_file("SignalException: Process 7 got signal: 15", "stack\xff", 12));
  REQUIRE(error.has_value());
  CHECK(*error == WorkerError{"SignalException: Process 7 got signal: 15", "stack\uFFFD", 12'000'000, true});
}

TEST_CASE("a traceback ends as the worker's output does", "[unit][error_file]") {
  const std::string traceback =
      "Traceback (most recent call last):\n    File \"t.py\", line 1\n  NameError: no 'prnt'\n";
  const auto completed_by = [&](const std::vector<std::string>& output) { return completed(traceback, output); };
  CHECK(completed_by({"epoch 1", "NameError: no 'prnt'. Did you mean: 'print'?", ""}) ==
        "Traceback (most recent call last):\n    File \"t.py\", line 1\n  NameError: no 'prnt'. Did you mean: "
        "'print'?\n");
  CHECK(completed_by({"NameError: no 'prnt'"}) == traceback);
  CHECK(completed_by({"NameError: no 'prnt'. Did you mean: 'print'?", "bye"}) == traceback);
  CHECK(completed_by({}) == traceback);
  CHECK(completed("", {"words"}).empty());
}

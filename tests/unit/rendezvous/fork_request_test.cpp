#include "rendezvous/base/fork_request.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

namespace {

ForkRequest usual() {
  return {ForkRequest::Program::module,
          "/home/u",
          {0, 1, 2, 8},
          {"python3", "-u", "-m", "pkg", ""},
          {"RANK=0", "EMPTY=", "TEXT=a\nb\xff"}};
}

std::string fields(std::initializer_list<std::string_view> list) {
  std::string bytes;
  for (const std::string_view field : list) bytes.append(field).push_back('\0');
  return bytes;
}

}  // namespace

TEST_CASE("a fork request is read as it was written", "[unit][preload]") {
  for (const ForkRequest& request :
       {usual(), ForkRequest{}, ForkRequest{.program = ForkRequest::Program::native, .arguments = {"train"}}}) {
    const auto bytes = to_bytes(request);
    REQUIRE(bytes.has_value());
    const auto read = parse_fork_request(*bytes);
    REQUIRE(read.has_value());
    CHECK(*read == request);
  }
  CHECK(*to_bytes({ForkRequest::Program::script, "/", {1}, {"py", "x"}, {"A=b"}}) ==
        fields({"torchup fork 1", "script", "/", "1", "2", "py", "x", "A=b"}));
}

TEST_CASE("a fork request that nobody could have written is refused", "[unit][preload]") {
  const auto code = [](const std::string& bytes) { return parse_fork_request(bytes).error().code; };
  CHECK(code("") == errc::wrong_version);
  CHECK(code(fields({"torchup fork 2", "script", "/", "1", "0"})) == errc::wrong_version);
  CHECK(code(fields({"torchup fork 1", "folder", "/", "1", "0"})) == errc::bad_frame);
  CHECK(code(fields({"torchup fork 1", "script", "/", "9-1", "0"})) == errc::bad_frame);
  CHECK(code(fields({"torchup fork 1", "script", "/", "1", "x"})) == errc::bad_frame);
  CHECK(code(fields({"torchup fork 1", "script", "/", "1", "2", "python3"})) == errc::bad_frame);
  CHECK(code(fields({"torchup fork 1", "script", "/", "1", "1", "python3"}) + "A=b") == errc::bad_frame);
  const std::string whole = *to_bytes(usual());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const auto read = parse_fork_request(whole.substr(0, length));
    if (read) CHECK(read->arguments == usual().arguments);
  }
}

TEST_CASE("a fork request has a largest size", "[unit][preload]") {
  ForkRequest request{.arguments = {"python3"}};
  request.environment = {std::string(fork_request_bytes_max - to_bytes(request)->size() - 1, 'x')};
  const auto largest = to_bytes(request);
  REQUIRE(largest.has_value());
  CHECK(largest->size() == fork_request_bytes_max);
  CHECK(parse_fork_request(*largest).has_value());
  request.environment.front() += 'x';
  CHECK(to_bytes(request).error().code == errc::limit_exceeded);
  CHECK(parse_fork_request(*largest + 'x').error().code == errc::limit_exceeded);
  CHECK(to_bytes({.arguments = {std::string{"a\0b", 3}}}).error().code == errc::bad_value);
}

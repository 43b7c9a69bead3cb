#include "worker_runtime/place/launcher_arguments.hpp"

#include <catch2/catch.hpp>
#include <string>
#include <torchup/error.hpp>

using namespace torchup;

namespace {

LauncherArguments take(std::vector<std::string> words, std::vector<std::string>& rest) {
  std::vector<char*> line;
  for (std::string& word : words) line.push_back(word.data());
  LauncherArguments taken = take_launcher_arguments(line);
  REQUIRE(taken.rest.back() == nullptr);
  for (std::size_t i = 0; i + 1 < taken.rest.size(); ++i) rest.emplace_back(taken.rest[i]);
  return taken;
}

}  // namespace

TEST_CASE("the launcher's local rank is taken off the command line in all spellings", "[worker_runtime][arguments]") {
  const auto spelling =
      GENERATE(std::vector<std::string>{"--local-rank", "3"}, std::vector<std::string>{"--local_rank", "3"},
               std::vector<std::string>{"--local-rank=3"}, std::vector<std::string>{"--local_rank=3"});
  std::vector<std::string> words{"train"};
  words.insert(words.end(), spelling.begin(), spelling.end());
  words.insert(words.end(), {"--lr", "0.1"});
  std::vector<std::string> rest;
  REQUIRE(take(words, rest).local_rank == 3);
  REQUIRE(rest == std::vector<std::string>{"train", "--lr", "0.1"});
}

TEST_CASE("other arguments stay as they are", "[worker_runtime][arguments]") {
  std::vector<std::string> rest;
  const std::vector<std::string> words{"train", "--local-ranks=2", "--", "--local-rank", "1"};
  REQUIRE_FALSE(take(words, rest).local_rank.has_value());
  REQUIRE(rest == words);
}

TEST_CASE("a local rank that is no number is refused", "[worker_runtime][arguments]") {
  std::vector<std::string> rest;
  REQUIRE_THROWS_AS(take({"train", "--local-rank=x"}, rest), Error);
  REQUIRE_THROWS_AS(take({"train", "--local-rank=-1"}, rest), Error);
  REQUIRE_THROWS_AS(take({"train", "--local_rank"}, rest), Error);
}

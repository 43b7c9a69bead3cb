#include "worker_runtime/format/safetensors_header.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <torchup/error.hpp>

using namespace torchup;
using Catch::Contains;

namespace {

std::string entry(const std::string& name, const std::string& shape, int begin, int end,
                  const std::string& dtype = "F32") {
  return "\"" + name + R"(": {"dtype": ")" + dtype + R"(", "shape": [)" + shape + R"(], "data_offsets": [)" +
         std::to_string(begin) + ", " + std::to_string(end) + "]}";
}
auto read(const std::string& entries, std::uint64_t data_bytes) {
  return parse_safetensors_header("{" + entries + "}", data_bytes);
}

}  // namespace

TEST_CASE("tensors come in the order of their data", "[unit][safetensors]") {
  const auto header =
      read(entry("a", "2", 4, 12) + "," + entry("b", "", 0, 4) + R"(, "__metadata__": {"by": "me"})", 12);
  REQUIRE(header.tensors.size() == 2);
  REQUIRE(header.tensors[0].name == "b");
  REQUIRE(header.tensors[1].shape == std::vector<std::int64_t>{2});
  REQUIRE(header.metadata.at("by") == "me");
}

TEST_CASE("what a safetensors header says must fit the file", "[unit][safetensors]") {
  REQUIRE_THROWS_WITH(read(entry("a", "2", 0, 8), 4), Contains("does not fit"));
  REQUIRE_THROWS_WITH(read(entry("a", "2", 0, 8), 9), Contains("belong to no tensor"));
  REQUIRE_THROWS_WITH(read(entry("a", "-1", 0, 4), 4), Contains("the shape of tensor a"));
  REQUIRE_THROWS_WITH(read(entry("a", "4611686018427387904, 4611686018427387904", 0, 4), 4), Contains("the shape"));
  REQUIRE(read(entry("a", "0, 4611686018427387904", 0, 0, "U8"), 0).tensors.size() == 1);
  REQUIRE_THROWS_WITH(read(entry("a", "0, 4611686018427387904, 2", 0, 0, "U8"), 0), Contains("the shape"));
  REQUIRE_THROWS_WITH(read(entry("a", "1", 0, 4) + "," + entry("b", "1", 0, 4), 8), Contains("neighbours"));
  REQUIRE_THROWS_WITH(read(entry("a", "1", 4, 0), 4), Contains("neighbours"));
  REQUIRE_THROWS_WITH(read(entry("a", "1", 0, 4, "F4"), 4), Contains("dtype F4"));
  REQUIRE_THROWS_WITH(read(R"("a": 3)", 0), Contains("does not describe tensors"));
  REQUIRE_THROWS_WITH(parse_safetensors_header("[]", 0), Contains("no JSON object"));
  REQUIRE_THROWS_WITH(parse_safetensors_header("", 0), Contains("no JSON object"));
}

TEST_CASE("sides and offsets are whole numbers, and not made such", "[unit][safetensors]") {
  REQUIRE_THROWS_WITH(read(entry("a", "1.5", 0, 4), 4), Contains("whole number"));
  REQUIRE_THROWS_WITH(read(entry("a", "0, 895223372036854775807777", 0, 0), 0), Contains("whole number"));
  REQUIRE_THROWS_WITH(read(entry("a", "true", 0, 4), 4), Contains("whole number"));
  REQUIRE_THROWS_WITH(read(entry("a", "1", -4, 0), 4), Contains("whole number"));
  REQUIRE_THROWS_WITH(read(R"("a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4.5]})", 4),
                      Contains("whole number"));
  REQUIRE_THROWS_WITH(read(R"("a": {"dtype": "F32", "shape": null, "data_offsets": [0, 4]})", 4), Contains("no list"));
  REQUIRE_THROWS_WITH(read(R"("a": {"dtype": "F32", "shape": {"b": 1}, "data_offsets": [0, 4]})", 4),
                      Contains("no list"));
}

TEST_CASE("limits of a safetensors header, at each and one past it", "[unit][safetensors]") {
  const auto ones = [](std::size_t count) {
    std::string sides = "1";
    while (--count > 0) sides += ",1";
    return entry("a", sides, 0, 4);
  };
  REQUIRE(read(ones(safetensors_dimensions_max), 4).tensors[0].shape.size() == safetensors_dimensions_max);
  REQUIRE_THROWS_WITH(read(ones(safetensors_dimensions_max + 1), 4), Contains("more than 64"));
  REQUIRE_THROWS_WITH(read(entry("a", "[1]", 0, 4), 4), Contains("nested too deep"));
  REQUIRE_THROWS_WITH(parse_safetensors_header(R"({"a":)" + std::string(5'000'000, '['), 0),
                      Contains("nested too deep"));
}

TEST_CASE("what a safetensors header may cost, at each limit and one past it", "[unit][safetensors]") {
  const auto metadata = [](std::size_t texts) {
    std::string entries;
    for (std::size_t i = 0; i < texts; ++i) entries += fmt::format("{}\"{}\":\"\"", i > 0 ? "," : "", i);
    return R"("__metadata__":{)" + entries + "}";
  };
  constexpr std::size_t texts_max =
      (safetensors_values_max - 1) / 2;  // the object itself is one, a text and its key two
  REQUIRE(read(metadata(texts_max), 0).metadata.size() == texts_max);
  REQUIRE_THROWS_WITH(read(metadata(texts_max + 1), 0), Contains("more than 65536 values are named __metadata__"));
  std::string sides = "1";
  for (std::size_t i = 0; i < safetensors_values_max; ++i) sides += ",1";
  REQUIRE_THROWS_WITH(read(entry("a", sides, 0, 4), 4), Contains("more than 65536 values are named a"));
  REQUIRE_THROWS_WITH(parse_safetensors_header("[" + sides, 0), Contains("no JSON object"));
  const std::string two = "{" + entry("a", "0", 0, 0) + "," + entry("b", "0", 0, 0) + "}";
  REQUIRE(parse_safetensors_header(two, 0, 2).tensors.size() == 2);
  REQUIRE_THROWS_WITH(parse_safetensors_header(two, 0, 1), Contains("more than 1 tensors"));
}

TEST_CASE("no two tensors of a safetensors file have one name", "[unit][safetensors]") {
  REQUIRE_THROWS_WITH(read(entry("a", "1", 0, 4) + "," + entry("a", "1", 4, 8), 8),
                      Contains("two tensors are named a"));
}

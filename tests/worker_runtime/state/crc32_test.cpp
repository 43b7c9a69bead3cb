#include "worker_runtime/state/crc32.hpp"

#include <catch2/catch.hpp>
#include <string_view>

using namespace torchup;

TEST_CASE("the checksum is CRC-32, and goes on from what came before", "[worker_runtime][checkpoint]") {
  constexpr std::string_view digits = "123456789";
  REQUIRE(crc32(0, digits.data(), digits.size()) == 0xCBF43926);  // the standard's own check value
  REQUIRE(crc32(crc32(0, digits.data(), 4), digits.data() + 4, 5) == 0xCBF43926);
  REQUIRE(crc32(0xCBF43926, nullptr, 0) == 0xCBF43926);  // a tensor without elements among others
}

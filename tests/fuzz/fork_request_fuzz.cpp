// What a forked process is to become.
#include "rendezvous/base/fork_request.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto request = parse_fork_request({reinterpret_cast<const char*>(data), size});
  if (!request) return 0;
  const auto bytes = to_bytes(*request);
  fuzz::require(bytes.has_value());
  const auto again = parse_fork_request(*bytes);
  fuzz::require(again.has_value() && *again == *request);
  return 0;
}

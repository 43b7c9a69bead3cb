#pragma once

#include "tests/support/store_harness.hpp"

namespace torchup::test {

/// A store and some connected clients that talk in PyTorch's bytes. Answers are compared as hex: WAIT's is "00".
struct Clients : StoreHarness {
  explicit Clients(StoreLimits limits = {}) : StoreHarness{limits} {
    for (std::uint32_t id = 0; id < 8; ++id) send(id, test::validate);
  }
  /// Sends one request and returns what has come back to the same client since it was last asked.
  std::string ask(std::uint32_t id, Query query, std::vector<std::string> keys = {},
                  std::vector<std::string> values = {}, std::int64_t number = 0) {
    send(id, request(query, std::move(keys), std::move(values), number));
    return hex(received(id));
  }
  std::string answer(std::uint32_t id) { return hex(received(id)); }
};

inline std::string text(std::string_view value) {
  std::string bytes;
  put_bytes(bytes, value);
  return hex(bytes);
}
inline std::string number(std::int64_t value) {
  std::string bytes;
  put_number(bytes, value);
  return hex(bytes);
}

}  // namespace torchup::test

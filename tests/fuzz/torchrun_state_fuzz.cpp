// torchrun's state, a pickle in base64, from whomever: read or refused; what is read is written as the same, and its
// rules can be applied to it.
#include "rendezvous/core/torchrun_wire/torchrun_state.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

namespace {

void use(TorchrunState state) {
  const TorchrunTerms terms{.min_nodes = 1, .max_nodes = 2};
  const TorchrunNode node{"10.0.0.9", 1, 0};
  const UtcTime now{std::chrono::hours{24 * 365 * 55}};
  drop_silent(state, terms, now);
  for (int steps = 0; steps < 4; ++steps) (void)join_step(state, terms, node, now, {});
  (void)keep_alive_step(state, terms, node, now + std::chrono::seconds{6});
  (void)exit_step(state, terms, node);
  remove_node(state, terms, node);
}

void check(std::string_view pickle) {
  const auto state = read_torchrun_state(pickle);
  if (!state) return;
  const auto again = read_torchrun_state(write_torchrun_state(*state));
  fuzz::require(again && *again == *state);
  use(*state);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes{reinterpret_cast<const char*>(data), size};
  check(bytes);
  const auto decoded = from_base64(bytes);
  if (decoded) check(*decoded);
  const auto same = from_base64(to_base64(bytes));
  fuzz::require(same && *same == bytes);
  return 0;
}

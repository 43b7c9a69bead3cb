// The JSON by which torchrun's agents tell their roles and ranks.
#include "rendezvous/core/torchrun_wire/torchrun_roles.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text{reinterpret_cast<const char*>(data), size};
  if (const auto role = read_role(text)) {
    Join join;
    join.role = role->name;
    join.local_world_size = role->local_world_size;
    const auto again = read_role(write_role(join, 0));
    fuzz::require(again && again->name == role->name && again->local_world_size == role->local_world_size);
    const std::vector<TorchrunRole> all(std::size_t{nodes_max}, *role);
    fuzz::require(share_ranks(all).back().world_size <= world_size_max);
  }
  if (const auto ranks = read_ranks(text, 1, 1)) {
    fuzz::require(ranks->world_size <= world_size_max && ranks->first_rank < ranks->world_size);
    fuzz::require(read_ranks(write_ranks(*ranks), 1, 1).value() == *ranks);
  }
  return 0;
}

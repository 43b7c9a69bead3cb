#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace torchup {

/// Samples that each rank gets out of `remaining` ones: rounded up, or down with `drop_last`.
[[nodiscard]] std::size_t samples_per_rank(std::size_t remaining, int world_size, bool drop_last);

/// One rank's indices of an epoch whose first `consumed` samples everybody has had.
///
/// `order` is the whole epoch's permutation of 0 .. order.size() - 1. What remains is dealt like cards: rank r gets the
/// samples consumed + r, consumed + r + world_size, …  Where the remainder does not divide, the deal goes on from the
/// beginning of `order` (several times if need be), or stops early with `drop_last`. With consumed = 0 this is Python's
/// rule; with consumed = k * world_size it continues that very list.
[[nodiscard]] std::vector<std::size_t> deal(std::span<const std::int64_t> order, std::size_t consumed, int rank,
                                            int world_size, bool drop_last);

}  // namespace torchup

#include <fmt/format.h>

#include <ATen/Parallel.h>
#include <torch/utils.h>

#include <cstdlib>
#include <torchup/collectives.hpp>
#include <torchup/error.hpp>
#include <torchup/seed.hpp>

#include "worker_runtime/group/group_rounds.hpp"

namespace torchup {

namespace {

// What must be the same on all ranks for their bits to be.
void check_alike(const SeedOptions& options, const ProcessGroup& group) {
  const OwnCollectives own{group};
  const auto mine =
      torch::tensor({static_cast<std::int64_t>(options.seed), std::int64_t{at::get_num_threads()}}, torch::kInt64);
  const std::vector<torch::Tensor> all = all_gather(mine.to(group.device()), group);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const torch::Tensor first = all[0].cpu(), other = all[rank].cpu();
    for (const auto& [index, name] :
         {std::pair{0, "seed"}, std::pair{1, "number of intra-op threads (OMP_NUM_THREADS)"}}) {
      const auto here = first[index].item<std::int64_t>(), there = other[index].item<std::int64_t>();
      if (here == there) continue;
      throw Error{fmt::format("seed_everything: rank 0 has {} {}, rank {} has {}: a deterministic run needs them alike",
                              name, here, rank, there)};
    }
  }
}

}  // namespace

std::uint64_t seed_everything(const SeedOptions& options, const ProcessGroup& group) {
  if (options.threads) torch::set_num_threads(*options.threads);
  if (options.deterministic) {
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
    at::Context& context = at::globalContext();
    context.setDeterministicAlgorithms(true, /*warn_only=*/false);
    context.setDeterministicCuDNN(true);
    context.setBenchmarkCuDNN(false);
    context.setAllowTF32CuBLAS(false);
    context.setAllowTF32CuDNN(false);
    if (!sets_up_alone(group)) check_alike(options, group);
  }
  const std::uint64_t seed = options.seed + (options.per_rank ? static_cast<std::uint64_t>(group.rank()) : 0);
  torch::manual_seed(seed);
  return seed;
}

}  // namespace torchup

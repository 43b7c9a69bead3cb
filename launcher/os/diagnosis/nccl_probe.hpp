#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/core/diagnosis/preflight.hpp"
#include "launcher/core/options/launch_config.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/core/diagnosis/pair_plan.hpp"

/// The way between the GPUs of two nodes, tried over NCCL by the program all_reduce, where it lies beside torchup.
namespace torchup {

/// For a start, with all libraries of torch, and a few all-reduces.
inline constexpr Duration nccl_pair_limit = std::chrono::seconds{30};
inline constexpr std::int64_t nccl_pair_bytes = std::int64_t{64} << 20;

struct NcclProgram {
  std::string path = {};  ///< of all_reduce
  std::string gpus = {};  ///< for CUDA_VISIBLE_DEVICES; empty: as we have it
  Duration limit = nccl_pair_limit;
  int cancel = -1;  ///< as in Helper
};
/// The GPUs that the job's workers see, where its options say so.
[[nodiscard]] std::string gpus_of(const LaunchConfig& config);
/// all_reduce beside this very program; empty: it is not there.
[[nodiscard]] std::string all_reduce_beside();

/// Whether it computes with NCCL on this node alone; else why not, in a stranger's words.
[[nodiscard]] std::optional<std::string> why_no_nccl(const NcclProgram& program);

/// One end of a pair: a world of two, with a store of its own.
struct NcclEnd {
  int rank = 0;             ///< 0: the first of the two, who serves the store
  std::string master_addr;  ///< of that one
  Port master_port{0};
};
/// Only rank 0 says a rate: of rank 1 the result counts for nothing.
[[nodiscard]] PairResult probe_nccl_pair(const NodePair& pair, const NcclEnd& end, const NcclProgram& program);

/// What all_reduce says of that size, in bytes a second; nothing where it has not come so far.
[[nodiscard]] std::optional<std::int64_t> all_reduce_rate(std::string_view output, std::int64_t bytes);

}  // namespace torchup

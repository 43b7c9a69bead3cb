#include <ATen/ScalarOps.h>

#include "torchup/comm_hook.hpp"
#include "worker_runtime/ddp/flat_buffer.hpp"

namespace torchup {
namespace {

/// Python's compress hooks: cast, divide in the narrow type, sum in the narrow type, copy back into the bucket.
CommHook compress_hook(ProcessGroup group, torch::ScalarType narrow) {
  return [group = std::move(group), narrow](const GradBucket& bucket) {
    refuse_complex(bucket.buffer(), narrow == torch::kHalf ? "fp16_compress_hook" : "bf16_compress_hook");
    // As Python divides: Tensor::div_(Scalar) would round the divisor to the narrow type first.
    auto compressed = bucket.buffer().to(narrow).div_(at::native::wrapped_scalar_tensor(group.size()));
    BucketReduction reduction{.result = bucket.buffer(), .work = all_reduce_async(compressed, group), .stages = {}};
    reduction.stages.emplace_back([buffer = bucket.buffer(), compressed]() mutable {
      buffer.copy_(compressed);
      return Work{};
    });
    return reduction;
  };
}

}  // namespace

CommHook all_reduce_hook(ProcessGroup group) {
  return [group = std::move(group)](const GradBucket& bucket) {
    auto buffer = bucket.buffer();
    buffer.div_(group.size());
    return BucketReduction{.result = buffer, .work = all_reduce_async(buffer, group), .stages = {}};
  };
}

CommHook fp16_compress_hook(ProcessGroup group) { return compress_hook(std::move(group), torch::kHalf); }
CommHook bf16_compress_hook(ProcessGroup group) { return compress_hook(std::move(group), torch::kBFloat16); }

}  // namespace torchup

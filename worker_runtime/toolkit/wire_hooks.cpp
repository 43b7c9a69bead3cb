#include <torch/torch.h>

#include <memory>
#include <torchup/collectives.hpp>
#include <torchup/wire_hooks.hpp>

#include "worker_runtime/ddp/flat_buffer.hpp"

namespace torchup {
namespace {

using torch::Tensor;

CommHook compress_wrapper(CommHook inner, torch::ScalarType narrow) {
  return [inner = std::move(inner), narrow](const GradBucket& bucket) {
    refuse_complex(bucket.buffer(), narrow == torch::kHalf ? "fp16_compress_wrapper" : "bf16_compress_wrapper");
    const Tensor buffer = bucket.buffer(), cast = buffer.to(narrow);
    std::vector<Tensor> gradients;
    for (const Tensor& gradient : bucket.gradients())
      gradients.push_back(cast.as_strided(gradient.sizes(), gradient.strides(),
                                          gradient.storage_offset() - buffer.storage_offset() + cast.storage_offset()));
    BucketReduction reduction =
        inner(GradBucket{bucket.index(), bucket.is_last(), cast, std::move(gradients), bucket.parameters()});
    reduction.stages.emplace_back([buffer, result = reduction.result]() mutable {
      buffer.copy_(result);
      return Work{};
    });
    reduction.result = buffer;
    return reduction;
  };
}

}  // namespace

CommHook fp16_compress_wrapper(CommHook inner) { return compress_wrapper(std::move(inner), torch::kHalf); }
CommHook bf16_compress_wrapper(CommHook inner) { return compress_wrapper(std::move(inner), torch::kBFloat16); }

CommHook bf16_wire_hook(ProcessGroup group) {
  return [group = std::move(group)](const GradBucket& bucket) -> BucketReduction {
    const Tensor buffer = bucket.buffer();
    refuse_complex(buffer, "bf16_wire_hook");
    const int64_t ranks = group.size(), elements = buffer.numel(), part = (elements + ranks - 1) / ranks;
    const auto narrow = buffer.options().dtype(torch::kBFloat16);
    Tensor outgoing = torch::empty({ranks * part}, narrow);
    outgoing.narrow(0, 0, elements).copy_(buffer);
    outgoing.narrow(0, elements, ranks * part - elements).zero_();
    Tensor incoming = torch::empty_like(outgoing);
    BucketReduction reduction{.result = buffer, .work = all_to_all_async(incoming, outgoing, group), .stages = {}};
    // `outgoing` is held until the first stage runs: the exchange reads it.
    reduction.stages.emplace_back([group, incoming, outgoing, ranks, part, type = buffer.scalar_type()]() mutable {
      const auto wide = type == torch::kDouble ? torch::kDouble : torch::kFloat;
      const Tensor mean = incoming.view({ranks, part}).sum(0, /*keepdim=*/false, wide).div_(ranks).to(torch::kBFloat16);
      Work work = all_gather_into_async(outgoing, mean, group);
      incoming = mean;  // keeps what the gather reads
      return work;
    });
    reduction.stages.emplace_back([buffer, outgoing, elements]() mutable {
      buffer.copy_(outgoing.narrow(0, 0, elements));
      return Work{};
    });
    return reduction;
  };
}

}  // namespace torchup

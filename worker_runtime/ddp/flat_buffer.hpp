#pragma once

#include <torch/types.h>

#include <span>
#include <string>
#include <vector>

#include "worker_runtime/ddp/bucket_plan.hpp"

namespace torchup {

/// A parameter with its name within the module.
struct NamedParameter {
  std::string name;
  torch::Tensor tensor;
};

/// What the bucket plan must know of the parameters, in the order of `order` (empty: as they are).
std::vector<PlannedTensor> planned_tensors(const std::vector<NamedParameter>& parameters,
                                           std::span<const std::size_t> order);

/// Throws Error unless `plan` holds every parameter once, and buckets of one dtype and device each.
void check_plan(const BucketPlan& plan, const std::vector<NamedParameter>& parameters);

/// The part of the flat `buffer` from element `offset` on, shaped like `parameter` and in its memory order: a
/// channels_last weight lies in the buffer as it lies in memory.
torch::Tensor view_like(const torch::Tensor& buffer, const torch::Tensor& parameter, std::int64_t offset);

/// Whether `tensor` is all of `buffer`, element by element in its order and none conjugated or negated, whatever its
/// sizes are.
bool is_flat_view(const torch::Tensor& tensor, const torch::Tensor& buffer);

/// `tensor`, complex numbers seen as pairs of real ones: the backends do not know the former.
torch::Tensor real_view(const torch::Tensor& tensor);

/// For the communication hook `hook`, which would lose what is imaginary: throws Error when `gradients` are complex.
void refuse_complex(const torch::Tensor& gradients, const char* hook);

}  // namespace torchup

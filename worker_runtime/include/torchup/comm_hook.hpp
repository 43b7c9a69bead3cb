#pragma once

#include <torch/types.h>

#include <functional>
#include <string>
#include <torchup/collectives.hpp>
#include <torchup/process_group.hpp>
#include <vector>

namespace torchup {

/// One bucket of gradients on its way to the other ranks: what a communication hook gets.
class GradBucket {
 public:
  GradBucket(std::size_t index, bool last, torch::Tensor buffer, std::vector<torch::Tensor> gradients,
             std::vector<torch::Tensor> parameters)
      : index_{index}, last_{last}, buffer_{std::move(buffer)}, gradients_{std::move(gradients)}, parameters_{std::move(
                                                                                                      parameters)} {}

  std::size_t index() const { return index_; }  ///< 0 .. bucket count - 1; hooks are called in this order
  bool is_last() const { return last_; }        ///< of this backward pass
  /// All gradients of the bucket, flat, one dtype, *not* divided by anything yet.
  const torch::Tensor& buffer() const { return buffer_; }
  /// Views into buffer(), one per parameter, with the parameter's sizes.
  const std::vector<torch::Tensor>& gradients() const { return gradients_; }
  const std::vector<torch::Tensor>& parameters() const { return parameters_; }

 private:
  std::size_t index_;
  bool last_;
  torch::Tensor buffer_;
  std::vector<torch::Tensor> gradients_;
  std::vector<torch::Tensor> parameters_;
};

/// What a hook has begun for one bucket.
///
/// At the end of backward the reducer waits for `work`, calls the first stage, waits for what that returns, and so on:
/// first stage of every bucket in order, then second stage of every bucket. So all ranks issue later collectives in the
/// same order (gloo matches them by order of issue), and the buckets' stages overlap. After the last stage `result`, a
/// tensor of the buffer's number of elements, holds the reduced gradients, which are taken in the order of its indices:
/// it may have any shape, memory order and dtype, and be the buffer itself or a view of it.
struct BucketReduction {
  torch::Tensor result;
  Work work;
  std::vector<std::function<Work()>> stages;
};

/// Called once per bucket and synchronised backward pass, in bucket order, with the streams of the gradients current.
/// It divides by the world size itself. An exception leaves backward() as an exception.
using CommHook = std::function<BucketReduction(const GradBucket& bucket)>;

/// buffer / size, then a sum: Python's allreduce_hook. (Without any hook the scaling is part of the copy into the
/// bucket.) The only one here that takes complex gradients: all others throw Error, in backward(), on all ranks alike,
/// where Python's drop the imaginary parts.
CommHook all_reduce_hook(ProcessGroup group);
/// Sums in half the bytes: cast to fp16, divide, sum, cast back. Python's fp16_compress_hook.
CommHook fp16_compress_hook(ProcessGroup group);
/// The same in bf16, which keeps fp32's range. Python's bf16_compress_hook. On GPUs needs NCCL >= 2.10.
CommHook bf16_compress_hook(ProcessGroup group);

}  // namespace torchup

#pragma once

#include <torch/types.h>

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torchup/process_group.hpp>

namespace torchup {

enum class ReduceOp { sum, average, product, min, max };

/// A collective under way. wait() before the result is used or an input is changed.
///
/// With nccl wait() makes the current stream wait and returns at once; with gloo it blocks the thread.
/// Dropping it does not cancel the collective.
class Work {
 public:
  Work() = default;  ///< nothing under way; wait() returns at once
  explicit Work(c10::intrusive_ptr<c10d::Work> work) : work_{std::move(work)} {}
  /// Throws when the collective failed: a peer is gone, or the group's timeout passed. The group is dead then.
  void wait();
  bool completed() const { return !work_ || work_->isCompleted(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

// Tensors are dense, contiguous in some memory format, on the group's device, and of the same shape and dtype on all
// ranks. `root` is a rank within the group. Names with _async return before the result is there.

/// Replaces `tensor` by its reduction over all ranks; every rank gets the same bits.
void all_reduce(torch::Tensor tensor, const ProcessGroup& group, ReduceOp op = ReduceOp::sum);
Work all_reduce_async(torch::Tensor tensor, const ProcessGroup& group, ReduceOp op = ReduceOp::sum);

/// Replaces `tensor` by root's.
void broadcast(torch::Tensor tensor, const ProcessGroup& group, int root = 0);
Work broadcast_async(torch::Tensor tensor, const ProcessGroup& group, int root = 0);

/// Like all_reduce, but only root's tensor is defined afterwards.
void reduce(torch::Tensor tensor, const ProcessGroup& group, int root = 0, ReduceOp op = ReduceOp::sum);

/// Every rank's tensor, by rank.
std::vector<torch::Tensor> all_gather(torch::Tensor tensor, const ProcessGroup& group);
/// The same into one tensor: output.numel() = size() * input.numel(), rank r's part from r * input.numel() on.
void all_gather_into(torch::Tensor output, torch::Tensor input, const ProcessGroup& group);
Work all_gather_into_async(torch::Tensor output, torch::Tensor input, const ProcessGroup& group);

/// Every rank's tensor on root, by rank; empty on the others.
std::vector<torch::Tensor> gather(torch::Tensor tensor, const ProcessGroup& group, int root = 0);
/// Rank r's output is root's inputs[r]; `inputs` is looked at on root only.
void scatter(torch::Tensor output, std::vector<torch::Tensor> inputs, const ProcessGroup& group, int root = 0);

/// Rank r gets the reduction of everybody's r-th part: input.numel() = size() * output.numel().
void reduce_scatter_into(torch::Tensor output, torch::Tensor input, const ProcessGroup& group,
                         ReduceOp op = ReduceOp::sum);
Work reduce_scatter_into_async(torch::Tensor output, torch::Tensor input, const ProcessGroup& group,
                               ReduceOp op = ReduceOp::sum);

/// Part r of input goes to rank r, part r of output comes from it; both have size() equal parts along dimension 0.
void all_to_all(torch::Tensor output, torch::Tensor input, const ProcessGroup& group);
Work all_to_all_async(torch::Tensor output, torch::Tensor input, const ProcessGroup& group);

/// Point to point; both sides give the same tag.
void send(torch::Tensor tensor, const ProcessGroup& group, int to, int tag = 0);
void receive(torch::Tensor tensor, const ProcessGroup& group, int from, int tag = 0);

/// Returns when every rank has called it. With nccl the host waits too.
void barrier(const ProcessGroup& group);

/// Replaces each tensor by root's, flattened by dtype and device into pieces of at most 250 MiB, two under way at a
/// time; the order and content of the pieces are those of Python's DDP. Empty tensors pass; versions of tensors do not
/// change.
void broadcast_coalesced(const std::vector<torch::Tensor>& tensors, const ProcessGroup& group, int root = 0);

}  // namespace torchup

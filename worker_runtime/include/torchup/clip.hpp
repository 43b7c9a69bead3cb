#pragma once

#include <torch/types.h>

#include <vector>

namespace torchup {

class ProcessGroup;

struct ClipOptions {
  double norm_type = 2;             ///< > 0; infinity: the largest absolute value
  bool error_if_nonfinite = false;  ///< throw Error when the norm is infinite or NaN; this waits for the device
};

/// Scales the gradients of `parameters`, taken as one vector, so that their norm is at most `max_norm`; returns the
/// norm before, a scalar on the first gradient's device. Nothing waits for the device. Call it after backward()
/// (gradients are reduced then) and after GradScaler::unscale_.
///
/// torch.nn.utils.clip_grad_norm_, with the same bits on the CPU. A norm that is not finite makes the gradients NaN.
torch::Tensor clip_grad_norm_(const std::vector<torch::Tensor>& parameters, double max_norm, ClipOptions options = {});

/// The same where every rank of `group` holds another part of the gradients (shards): one all-reduce, and every rank
/// gets the norm of the whole and scales by the same factor. A rank may hold nothing. The sum over parts rounds
/// otherwise than the unsharded one: equal within 1e-6.
torch::Tensor clip_grad_norm_(const std::vector<torch::Tensor>& parameters, double max_norm, const ProcessGroup& group,
                              ClipOptions options = {});

/// Cuts every element of the gradients to -limit .. limit.
void clip_grad_value_(const std::vector<torch::Tensor>& parameters, double limit);

}  // namespace torchup

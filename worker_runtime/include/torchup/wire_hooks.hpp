#pragma once

#include <torchup/comm_hook.hpp>

namespace torchup {

/// Half the bytes on the wire with float32's accuracy of the sum: every rank sends its gradients in bfloat16, each
/// element is summed in float32 on one rank (an all-to-all), and the mean goes round in bfloat16 (an all-gather). A
/// value is rounded twice, whatever the number of ranks; bf16_compress_hook, which sums in bfloat16, rounds at every
/// addition.
CommHook bf16_wire_hook(ProcessGroup group);

/// Gives `inner` the bucket in float16 or bfloat16 and casts its result back: Python's fp16_compress_wrapper and
/// bf16_compress_wrapper. For example bf16_compress_wrapper(power_sgd.hook()).
CommHook fp16_compress_wrapper(CommHook inner);
CommHook bf16_compress_wrapper(CommHook inner);

}  // namespace torchup

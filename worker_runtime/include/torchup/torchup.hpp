#pragma once

// Everything that a training program needs, LibTorch itself included. The single headers may be included instead.
#include <torch/torch.h>

#include <torchup/amp.hpp>
#include <torchup/checkpoint.hpp>
#include <torchup/clip.hpp>
#include <torchup/collectives.hpp>
#include <torchup/comm_hook.hpp>
#include <torchup/distributed_data_parallel.hpp>
#include <torchup/distributed_sampler.hpp>
#include <torchup/elastic.hpp>
#include <torchup/error.hpp>
#include <torchup/fused_optimizers.hpp>
#include <torchup/lr_scheduler.hpp>
#include <torchup/output_tensors.hpp>
#include <torchup/power_sgd.hpp>
#include <torchup/process_group.hpp>
#include <torchup/safetensors.hpp>
#include <torchup/seed.hpp>
#include <torchup/spawn.hpp>
#include <torchup/state_dict.hpp>
#include <torchup/summary.hpp>
#include <torchup/sync_batch_norm.hpp>
#include <torchup/to_device.hpp>
#include <torchup/weights.hpp>
#include <torchup/wire_hooks.hpp>
#include <torchup/worker.hpp>
#include <torchup/zero_first.hpp>
#include <torchup/zero_redundancy_optimizer.hpp>

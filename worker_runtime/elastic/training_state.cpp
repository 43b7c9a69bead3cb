#include "worker_runtime/elastic/training_state.hpp"

#include <torch/torch.h>

#include <algorithm>

#include "worker_runtime/elastic/step_seed.hpp"
#include "worker_runtime/state/generators.hpp"

namespace torchup {
namespace {

StateDict copy_of(const StateDict& state) {
  StateDict copy;
  for (const auto& [name, tensor] : state) copy.emplace(name, tensor.detach().clone());
  return copy;
}

bool alike(const torch::Tensor& one, const torch::Tensor& other) {
  return one.sizes() == other.sizes() && one.scalar_type() == other.scalar_type() && one.device() == other.device();
}

std::vector<torch::Tensor> copies_of(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> copies;
  for (const torch::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

void drop_gradients(const std::vector<torch::Tensor>& parameters) {
  for (const torch::Tensor& parameter : parameters) parameter.mutable_grad() = torch::Tensor{};
}

}  // namespace

TrainingState::TrainingState(CheckpointParts parts, bool copies) : parts_{std::move(parts)}, copies_{copies} {
  generators_.push_back(cpu_generator());
  if (auto gpu = gpu_generator(parts_.module.get())) {
    on_gpu_ = true;
    generators_.push_back(std::move(*gpu));
  }
  look_at_parts();
  keep();
}

/// What stays the same while a round lasts.
void TrainingState::look_at_parts() {
  if (parts_.module) buffers_ = parts_.module->buffers();
  std::erase_if(buffers_, [](const torch::Tensor& buffer) { return !buffer.defined(); });
  kept_layout_.reset();
  if (parts_.ddp != nullptr) kept_layout_ = parts_.ddp->bucket_layout();
}

void TrainingState::begin(std::optional<std::uint64_t> seed) {
  seed_ = seed;
  fresh_ = false;
  clean_ = true;
  if (copies_) look_at_parts();
  keep();
  seed_step();
}

void TrainingState::commit(Position done) {
  position_ = done;
  ++commits_;
  clean_ = true;
  keep();
  seed_step();
}

void TrainingState::loaded(Position position) {
  position_ = position;
  commits_ = 0;
  clean_ = true;
  // From here on this is where a round that ends early goes back to.
  if (copies_) look_at_parts();
  keep();
}

void TrainingState::became(Position position, std::int64_t commits) {
  position_ = position;
  commits_ = commits;
  clean_ = true;
}

void TrainingState::seed_step() {
  if (!seed_) return;
  const std::uint64_t of_epoch = seed_within(*seed_, static_cast<std::uint64_t>(position_.epoch));
  const std::uint64_t of_step = seed_within(of_epoch, static_cast<std::uint64_t>(position_.step));
  for (const at::Generator& generator : generators_) set_seed(generator, of_step);
}

void TrainingState::keep() {
  if (!copies_) return;
  const torch::NoGradGuard no_grad;
  if (std::ranges::equal(kept_buffers_, buffers_, alike)) {
    if (!buffers_.empty()) at::_foreach_copy_(kept_buffers_, buffers_);
  } else {
    kept_buffers_ = copies_of(buffers_);
  }
  kept_options_.clear();
  for (const torch::optim::Optimizer* const optimizer : parts_.optimizers) {
    auto& options = kept_options_.emplace_back();
    for (const auto& group : optimizer->param_groups()) options.push_back(group.options().clone());
  }
  kept_others_.clear();
  for (const auto& part : parts_.others) kept_others_.push_back(copy_of(part.get()));
  if (parts_.sampler) kept_sampler_ = parts_.sampler->position();
  // Once the buckets have been laid out by the gradients' order they stay.
  if (kept_layout_ && !kept_layout_->rebuilt) kept_layout_ = parts_.ddp->bucket_layout();
  kept_numbers_.clear();
  if (seed_) return;
  for (const at::Generator& generator : generators_) kept_numbers_.push_back(state_of(generator));
}

void TrainingState::restore() {
  if (parts_.module) drop_gradients(parts_.module->parameters());
  for (const torch::optim::Optimizer* const optimizer : parts_.optimizers)
    for (const auto& group : optimizer->param_groups()) drop_gradients(group.params());
  // Without copies it is the one that all ranks, new ones too, begin with.
  if (kept_layout_) parts_.ddp->start_over(*kept_layout_);
  if (!copies_) return;
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    // A forward pass may have given it another shape.
    if (!alike(buffers_[i], kept_buffers_[i])) buffers_[i].set_data(torch::empty_like(kept_buffers_[i]));
    buffers_[i].copy_(kept_buffers_[i]);
  }
  for (std::size_t i = 0; i < parts_.optimizers.size(); ++i) {
    auto& groups = parts_.optimizers[i]->param_groups();
    for (std::size_t g = 0; g < std::min(groups.size(), kept_options_[i].size()); ++g)
      groups[g].set_options(kept_options_[i][g]->clone());
  }
  for (std::size_t i = 0; i < parts_.others.size(); ++i) parts_.others[i].set(copy_of(kept_others_[i]));
  if (kept_sampler_) DistributedSampler{*parts_.sampler}.resume(*kept_sampler_);
  for (std::size_t i = 0; i < kept_numbers_.size(); ++i) set_state(generators_[i], kept_numbers_[i]);
}

}  // namespace torchup

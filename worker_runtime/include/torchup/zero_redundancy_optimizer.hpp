#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <torchup/fused_optimizers.hpp>
#include <torchup/process_group.hpp>
#include <torchup/state_dict.hpp>
#include <type_traits>
#include <vector>

namespace torchup {

class PeerMemory;

/// The rank that keeps each parameter's optimizer state: in every group the largest parameter first goes to the rank
/// that has the least so far (the first such rank). Pure: `elements[g][i]` is the size of parameter i of group g; the
/// result has the same shape. Source: torch/distributed/optim/zero_redundancy_optimizer.py, _partition_parameters.
std::vector<std::vector<int>> zero_owners(const std::vector<std::vector<int64_t>>& elements, int ranks);

struct ZeroOptions {
  /// Make the parameters views into one flat buffer per owner, so that each owner's travel in one piece. Faster; the
  /// parameters then share storage, which matters to code that looks at storages.
  bool parameters_as_bucket_view = false;
};

/// Everything of ZeroRedundancyOptimizer that does not depend on the inner optimizer's type.
class ZeroRedundancyOptimizerBase : public torch::optim::Optimizer {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&)>;
  ZeroRedundancyOptimizerBase(const Groups& groups, ProcessGroup group, Make make, ZeroOptions options);
  ~ZeroRedundancyOptimizerBase() override;

  /// Steps this rank's parameters, then all get every owner's. Collective.
  torch::Tensor step(LossClosure closure = nullptr) override;

  /// This rank's part, in the inner optimizer's own format with the other ranks' states left out. Each rank saves one.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Takes from `archive` what this rank keeps: load every rank's part, one after another, in any order, at any world
  /// size. What the inner optimizer saved without sharding loads as well. Load the archive to the parameters' device.
  void load(torch::serialize::InputArchive& archive) override;

  /// An inner optimizer over all parameters with the states of all ranks, on the CPU, on rank `to`; null elsewhere. It
  /// is there to be saved: as if the training had not been sharded. Collective.
  std::unique_ptr<torch::optim::Optimizer> consolidate(int to = 0) const;

  /// For Checkpoint: one byte tensor "optimizer" with what consolidate(0)->save() writes, on rank 0, empty elsewhere.
  /// Collective. Loads at any world size.
  static constexpr bool state_is_collective = true;
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

  /// Who owns which parameter is dealt once: make a new optimizer with all groups instead.
  void add_param_group(const torch::optim::OptimizerParamGroup&) = delete;

  /// Owner of each parameter, by group.
  const std::vector<std::vector<int>>& owners() const { return owners_; }
  /// What really steps: this rank's parameters only.
  const torch::optim::Optimizer& local() const { return *local_; }
  /// Whether updated parameters are read from their owners' memory (large ones on the CPUs of one machine, where the
  /// kernel permits it) instead of sent. Known after the first step.
  bool reads_memory_of_owners() const { return owners_memory_ != nullptr; }

 protected:
  torch::optim::Optimizer& inner() { return *local_; }

 private:
  struct Piece {
    torch::Tensor tensor;
    int owner;
  };
  torch::Device parameters_device() const;
  void copy_options_to_local();
  void flatten_parameters();
  void choose_way();
  void send_parameters();
  void read_parameters();
  std::unique_ptr<torch::optim::Optimizer> with_all_parameters() const;

  ProcessGroup group_;
  Make make_;
  std::vector<std::vector<int>> owners_;
  std::unique_ptr<torch::optim::Optimizer> local_;
  std::vector<Piece>
      pieces_;  ///< what is sent after a step, the same on all ranks: parameters, or flat buffers of them
  bool way_chosen_ = false;
  std::unique_ptr<PeerMemory> owners_memory_;
};

namespace detail {
struct NoScaledStep {};
}  // namespace detail

/// ZeRO stage 1, torch.distributed.optim.ZeroRedundancyOptimizer: every rank keeps the optimizer state of its share of
/// the parameters only, 1/W of the memory. `Inner` is any optimizer that treats each element, or each parameter, by
/// itself:
///
///     torchup::ZeroRedundancyOptimizer<torchup::FusedAdamW> optimizer{ddp.parameters(), group,
///     torchup::FusedAdamWOptions{1e-3}};
///
/// Use it like Inner, after DDP's backward(): the parameters are then those of Inner without sharding, bit by bit.
/// Learning rates and other options are set on this object's param_groups(). Not for optimizers that look across
/// parameters (LBFGS).
template <class Inner>
class ZeroRedundancyOptimizer
    : public ZeroRedundancyOptimizerBase,
      public std::conditional_t<std::is_base_of_v<ScaledStep, Inner>, ScaledStep, detail::NoScaledStep> {
 public:
  template <class Options>
  ZeroRedundancyOptimizer(const Groups& groups, ProcessGroup group, Options defaults, ZeroOptions options = {})
      : ZeroRedundancyOptimizerBase{
            groups, std::move(group),
            [defaults = std::move(defaults)](const Groups& some) { return std::make_unique<Inner>(some, defaults); },
            options} {}
  template <class Options>
  ZeroRedundancyOptimizer(std::vector<torch::Tensor> parameters, ProcessGroup group, Options defaults,
                          ZeroOptions options = {})
      : ZeroRedundancyOptimizer{Groups{torch::optim::OptimizerParamGroup{std::move(parameters)}}, std::move(group),
                                std::move(defaults), options} {}

  torch::Tensor step(LossClosure closure = nullptr) override {
    if constexpr (std::is_base_of_v<ScaledStep, Inner>) {
      auto& scaled = static_cast<Inner&>(inner());
      scaled.grad_scale = this->grad_scale;
      scaled.found_inf = this->found_inf;
    }
    return ZeroRedundancyOptimizerBase::step(std::move(closure));
  }
};

}  // namespace torchup

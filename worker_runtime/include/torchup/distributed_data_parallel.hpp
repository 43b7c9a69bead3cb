#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <string>
#include <torchup/comm_hook.hpp>
#include <torchup/output_tensors.hpp>
#include <torchup/process_group.hpp>
#include <type_traits>
#include <utility>
#include <vector>

namespace torchup {

/// Options with the names, meanings and defaults of torch.nn.parallel.DistributedDataParallel (torch 2.15).
struct DistributedDataParallelOptions {
  /// Empty, or the one GPU on which the whole module lies: inputs are moved there.
  std::vector<torch::Device> device_ids = {};
  /// Rank 0's buffers (BatchNorm's statistics) go to all ranks before a forward pass. At construction they always do.
  bool forward_sync_buffers = true;
  /// At construction: check that all ranks have the same parameters, and take rank 0's parameters and buffers.
  bool init_sync = true;
  /// Bytes of gradients that travel together, in MiB; fractions allowed. Default: 1 for the first bucket, 25 for the
  /// others.
  std::optional<double> bucket_cap_mb = {};
  /// One cap per bucket, the last one for the rest.
  std::vector<double> bucket_cap_mb_list = {};
  /// Search the graph behind forward's outputs for parameters that will get no gradient. Costs time in every step.
  bool find_unused_parameters = false;
  /// Gradients are views into the buckets: no copies, less memory.
  bool gradient_as_bucket_view = false;
  /// The graph is the same in all iterations: unused parameters, re-use and activation checkpointing cost nothing then.
  bool static_graph = false;
  /// Names of parameters and buffers that are left alone (Python: _ddp_params_and_buffers_to_ignore).
  std::vector<std::string> parameters_to_ignore = {};
};

/// Which parameters' gradients travel together, in the order in which buckets are reduced. Parameters are counted as in
/// DistributedDataParallel::parameters(). For W >= 3 a resumed run has the same bits only with the same layout.
struct BucketLayout {
  std::vector<std::vector<std::int64_t>> buckets;
  bool rebuilt = false;         ///< the buckets follow the order in which gradients arrived, which is decided once
  std::vector<double> caps_mb;  ///< bucket_cap_mb or bucket_cap_mb_list that the program gave; empty: none
  /// The order in which the last step's gradients arrived, by which the next forward pass lays the buckets out; empty:
  /// it does not.
  std::vector<std::int64_t> arrived = {};

  friend bool operator==(const BucketLayout&, const BucketLayout&) = default;
};

struct JoinOptions {
  /// False: by the number of ranks that still have inputs. As in Python, of several models the first one's gradients
  /// alone; those of the others are divided by the world size still.
  bool divide_by_initial_world_size = true;
  bool enable = true;
  bool throw_on_early_termination = false;  ///< all ranks throw as soon as one has no more inputs
};

/// Everything of DistributedDataParallel that does not depend on the module's type.
class DataParallelCore {
 public:
  DataParallelCore(std::shared_ptr<torch::nn::Module> module, ProcessGroup group,
                   DistributedDataParallelOptions options);
  ~DataParallelCore();
  DataParallelCore(DataParallelCore&&) noexcept;
  DataParallelCore& operator=(DataParallelCore&&) noexcept;

  /// Restores what it found when it ends.
  class [[nodiscard]] NoSync {
   public:
    NoSync(DataParallelCore& core, bool active);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DataParallelCore* core_;
    bool before_;
  };

  /// As long as the guard lives, gradients only add up locally; forward passes must lie inside as well. The first
  /// forward and backward pass afterwards reduces the sum. `no_sync(false)` does nothing: convenient in loops.
  NoSync no_sync(bool active = true) { return NoSync{*this, active}; }

  /// How gradients are averaged, instead of a sum of 1/W of each. Once, before the first forward pass.
  void register_comm_hook(CommHook hook);

  const ProcessGroup& group() const;
  /// Those that are reduced: require a gradient, not ignored, each once. In the order of the module's
  /// named_parameters().
  std::vector<torch::Tensor> parameters() const;
  std::vector<std::string> parameter_names() const;

  BucketLayout bucket_layout() const;
  /// Takes the layout of a checkpoint, the same on all ranks, between two steps. False, and nothing is changed, when
  /// the program gives other caps now than it did then: what it asks for wins.
  bool restore_bucket_layout(const BucketLayout& layout);

  /// All ranks begin anew with `layout`, new ones among them: forgets a half-finished step as reset() does, and
  /// whatever else a rank that has been trained knows and a new one does not. What follows has the bits that it would
  /// have had.
  void start_over(const BucketLayout& layout);

  /// After an exception out of forward or backward: forgets the half-finished step. Every rank must have had its
  /// exception at the same place, and calls this. With gradient_as_bucket_view no parameter has a gradient afterwards.
  void reset();

  /// Training on uneven inputs: join(group(), {this}, train, options).
  template <class Train>
  void join(Train&& train, JoinOptions options = {});

 protected:
  /// Before and after the module's own forward; `outputs` come back passed through autograd where that is needed.
  void before_forward();
  void after_forward(std::vector<torch::Tensor*> outputs);
  /// Moves a tensor argument where `device_ids` says.
  torch::Tensor input(torch::Tensor argument) const;
  /// The message of an exception from forward, with what is known about `arguments` on other devices than the module.
  [[noreturn]] void explain_forward_error(const std::exception& error,
                                          const std::vector<std::optional<torch::Device>>& arguments) const;

 private:
  friend class JoinScope;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The part of join() that does not depend on the loop's type.
class JoinScope {
 public:
  JoinScope(ProcessGroup group, std::vector<DataParallelCore*> models, JoinOptions options);
  ~JoinScope();
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;

  /// This rank is through with its inputs: follows the others until they are too.
  void finish();

 private:
  ProcessGroup group_;
  std::vector<DataParallelCore*> models_;
  JoinOptions options_;
};

/// Training on uneven inputs: runs `train`, a loop of forward and backward passes; a rank that is through with it takes
/// part in the others' collectives with zeros until all are through. In the end all ranks have the models of the last
/// one.
///
///     torchup::join(group, {&ddp}, [&] { for (auto& batch : *loader) step(batch); });
///
/// All `models` are reduced over `group`. Of several, every iteration takes each one through forward and backward
/// before the next, in this order. Other collectives in the loop are not followed (SyncBatchNorm,
/// ZeroRedundancyOptimizer's step): use throw_on_early_termination there.
template <class Train>
void join(const ProcessGroup& group, std::vector<DataParallelCore*> models, Train&& train, JoinOptions options = {}) {
  JoinScope scope{group, std::move(models), options};
  std::forward<Train>(train)();
  scope.finish();
}

template <class Train>
void DataParallelCore::join(Train&& train, JoinOptions options) {
  torchup::join(group(), {this}, std::forward<Train>(train), options);
}

/// Data parallelism over the ranks of a group, for any torch::nn::Module: every rank feeds its own part of the batch,
/// and after backward() all ranks hold the same averaged gradients, with the bits that Python's DDP gives.
///
///   torchup::DistributedDataParallel ddp{net, group};
///   loss(ddp(input), target).backward();
///
/// `Module` is a module holder (TORCH_MODULE) or a std::shared_ptr of a module. Called with whatever its forward()
/// takes. The wrapper must outlive the backward passes of its outputs. Construct it on the CUDA stream that trains.
template <class Module>
class DistributedDataParallel : public DataParallelCore {
 public:
  DistributedDataParallel(Module module, ProcessGroup group, DistributedDataParallelOptions options = {})
      : DataParallelCore{module_pointer(module), std::move(group), std::move(options)}, module_{std::move(module)} {}

  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
    const std::vector<std::optional<torch::Device>> devices{device_of(arguments)...};
    before_forward();
    using Output = std::remove_cvref_t<decltype(module_->forward(moved(std::forward<Arguments>(arguments))...))>;
    static_assert(!std::is_void_v<Output>, "forward must return what backward starts from");
    auto output = [&]() -> Output {
      try {
        return module_->forward(moved(std::forward<Arguments>(arguments))...);
      } catch (const c10::Error& error) {
        explain_forward_error(error, devices);
      }
    }();
    std::vector<torch::Tensor*> tensors;
    visit_output_tensors(output, [&tensors](torch::Tensor& tensor) { tensors.push_back(&tensor); });
    after_forward(std::move(tensors));
    return output;
  }

  Module& module() { return module_; }
  const Module& module() const { return module_; }
  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }

 private:
  template <class T>
  static constexpr bool is_tensor = std::is_same_v<std::remove_cvref_t<T>, torch::Tensor>;

  static std::shared_ptr<torch::nn::Module> module_pointer(const Module& module) {
    if constexpr (requires { module.ptr(); })
      return module.ptr();
    else
      return module;
  }
  template <class T>
  static std::optional<torch::Device> device_of(const T& argument) {
    if constexpr (is_tensor<T>) {
      if (argument.defined()) return argument.device();
    }
    return std::nullopt;
  }
  template <class T>
  decltype(auto) moved(T&& argument) const {
    if constexpr (is_tensor<T>)
      return input(std::forward<T>(argument));
    else
      return std::forward<T>(argument);
  }

  Module module_;
};

}  // namespace torchup

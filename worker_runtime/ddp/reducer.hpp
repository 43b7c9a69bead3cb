#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torchup/comm_hook.hpp"
#include "torchup/process_group.hpp"
#include "worker_runtime/ddp/bucket_plan.hpp"
#include "worker_runtime/ddp/flat_buffer.hpp"

namespace torchup {

struct ReducerSettings {
  BucketLimits limits;
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool gradient_as_bucket_view = false;
};

/// Averages gradients over the ranks while backward() is still computing others.
///
/// A hook behind each parameter's gradient accumulator copies the gradient into a flat bucket; full buckets are reduced
/// in index order; at the end of backward() the results go back into `.grad`. Same bits as c10d::Reducer: the same
/// scaling before the sum, the same place of every element, the same backend.
///
/// Hooks run on autograd's threads, everything else on the thread that trains.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  Reducer(std::vector<NamedParameter> parameters, ProcessGroup group, ReducerSettings settings);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// A forward pass begins whose backward pass will be reduced.
  void count_iteration();
  /// Throws when the previous backward pass was not finished; then rebuilds the buckets if that is due. True: rebuilt.
  bool check_and_rebuild();
  /// The next backward pass is to be reduced. `outputs` are searched for unused parameters if that was asked for.
  void expect_backward(const std::vector<torch::Tensor>& outputs);

  /// Whether outputs must pass through `sink`: unused outputs shall still reach the hooks, and the first backward pass
  /// of a static graph ends with everything's reduction.
  bool needs_sink() const;
  /// The outputs again, with a node in between. All of them have a grad_fn.
  std::vector<torch::Tensor> sink(const std::vector<torch::Tensor>& outputs);

  void set_comm_hook(CommHook hook);
  /// Forgets a half-finished backward pass after an exception, so that the next forward can begin. Reductions under way
  /// keep the buffers that they write into; the next step gets fresh ones, and gradients that were views into the old
  /// ones are gone. The first iteration of a static graph begins anew if it was not finished.
  void reset();
  /// A forward pass has begun whose backward pass is or was to be reduced.
  bool iterated() const { return iterations_ > 0; }

  BucketPlan layout() const;
  bool rebuilt() const { return rebuilt_; }
  /// Parameters whose gradients are known to arrive in this order, by which the buckets are to be rebuilt; may be
  /// empty.
  std::vector<std::size_t> arrived() const;
  void restore(const BucketPlan& plan, bool rebuilt, std::vector<std::size_t> arrived);
  /// As reset(), and as if there had been no iteration, with that plan.
  void start_over(const BucketPlan& plan, bool rebuilt, std::vector<std::size_t> arrived);

  /// Gradients that came while none was expected although they should be reduced: a second backward pass of one
  /// forward.
  std::size_t take_unexpected_gradients() { return std::exchange(unexpected_gradients_, 0); }

  // Uneven inputs. `active_ranks` is being summed; the divisor is that count, or the group's size while it is empty.
  void set_active_ranks(torch::Tensor count, Work work);
  /// Takes part in the others' backward pass with zeros.
  void shadow_backward();

 private:
  struct Bucket;
  struct Place {
    std::size_t bucket;
    std::size_t slot;
  };
  class GradientHook;
  struct Sink;

  void build(const BucketPlan& plan);
  void forget_backward();
  void forget_first_iteration();
  BucketPlan current_plan() const;
  void point_gradients_at_views();
  void on_gradient(std::size_t index);
  void mark_ready(std::size_t index);
  void copy_into_bucket(std::size_t index);
  void launch_ready_buckets();
  void launch(std::size_t index);
  BucketReduction begin_reduction(std::size_t index, const torch::Tensor& buffer,
                                  const std::vector<torch::Tensor>& views);
  void wait_for_all(const std::function<void(Bucket&)>& done);
  void reduce_used_map();
  void reduce_all_at_end();
  void finish();
  void write_back(Bucket& bucket);
  bool used_anywhere(std::size_t index);
  void queue_finish();
  std::vector<std::size_t> find_unused(const std::vector<torch::Tensor>& outputs) const;
  BucketPlan plan_from_arrival_order() const;
  BucketPlan rank_zeros(const BucketPlan& plan) const;
  std::string names_of(const std::vector<std::size_t>& indices) const;
  int divisor();
  bool in_first_static_iteration() const { return settings_.static_graph && iterations_ == 1; }
  bool searches_unused() const { return settings_.find_unused_parameters && !settings_.static_graph; }
  bool wants_rebuild() const { return !searches_unused() && !rebuilt_; }

  std::vector<NamedParameter> parameters_;
  ProcessGroup group_;
  ReducerSettings settings_;
  CommHook hook_;

  mutable std::mutex mutex_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  ///< by parameter
  std::vector<
      std::pair<decltype(torch::autograd::impl::grad_accumulator(std::declval<torch::Tensor>())), std::uintptr_t>>
      accumulators_;  ///< kept alive, with the key of our hook

  // One backward pass.
  bool expecting_ = false;       ///< hooks count
  bool unfinished_ = false;      ///< something was marked ready, and finish() has not run
  std::size_t next_bucket_ = 0;  ///< the one to launch next
  bool marked_unused_ = false;
  std::vector<char> ready_;  ///< by parameter
  std::vector<std::size_t> unused_;
  int divisor_ = 0;  ///< 0: not yet known
  std::size_t unexpected_gradients_ = 0;

  // The order in which gradients arrived, for the rebuild.
  bool rebuilt_ = false;
  std::vector<std::size_t> arrival_;

  // Which parameters were used by any rank, int32 per parameter; needed where they may be unused.
  torch::Tensor used_;
  torch::Tensor used_reduced_;
  Work used_work_;
  bool used_is_global_ = false;

  // Static graph: how often each hook fires in a backward pass, counted in the first.
  long iterations_ = 0;
  std::vector<int> firings_;
  std::vector<int> firings_left_;
  bool end_queued_ = false;
  bool first_iteration_done_ = false;
  bool missed_first_iteration_ = false;  ///< followed it inside join(), without inputs

  torch::Tensor active_ranks_;
  Work active_work_;
};

}  // namespace torchup

// One class, longer than 400 lines: a cut would have to share every member, the states of one backward pass.
#include "worker_runtime/ddp/reducer.hpp"

#include <fmt/format.h>

#include <ATen/ScalarOps.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>
#include <torch/torch.h>

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "torchup/error.hpp"
#include "worker_runtime/ddp/flat_buffer.hpp"
#include "worker_runtime/place/worker_place.hpp"

namespace torchup {

/// Parameters whose gradients travel together, and the flat buffer they travel in.
struct Reducer::Bucket {
  std::vector<std::size_t> indices;  ///< of the parameters
  torch::Tensor buffer;              ///< flat, back to back, no padding
  std::vector<torch::Tensor> views;  ///< one per parameter, in its layout; detached, since optimizers call detach_()
  std::vector<std::int64_t> offsets;
  std::size_t pending = 0;           ///< gradients still to come in this backward pass
  std::vector<c10::Stream> streams;  ///< on which gradients were copied in, each once
  BucketReduction reduction;
};

/// Sits behind a parameter's gradient accumulator and is called after the gradient was accumulated, also when the
/// incoming one was undefined.
class Reducer::GradientHook : public torch::autograd::FunctionPostHook {
 public:
  GradientHook(Reducer& reducer, std::size_t index) : reducer_{reducer}, index_{index} {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    reducer_.on_gradient(index_);
    return outputs;
  }

 private:
  Reducer& reducer_;  // removes its hooks before it goes
  std::size_t index_;
};

/// Passes tensors through. Does not turn undefined gradients into zeros, so that an output that is not in the loss
/// gives hook calls with undefined gradients.
struct Reducer::Sink : torch::autograd::Function<Reducer::Sink> {
  struct Owner : torch::CustomClassHolder {
    explicit Owner(std::weak_ptr<Reducer> owner) : reducer{std::move(owner)} {}
    std::weak_ptr<Reducer> reducer;
  };

  // Tensors in a std::vector would be ignored by apply(), without a word.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, at::TensorList outputs,
                                                c10::intrusive_ptr<Owner> owner) {
    context->set_materialize_grads(false);
    context->saved_data["owner"] = c10::IValue::make_capsule(std::move(owner));
    torch::autograd::variable_list copies;
    for (const auto& output : outputs) copies.push_back(output.clone());
    return copies;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto owner = c10::static_intrusive_pointer_cast<Owner>(context->saved_data["owner"].toCapsule());
    if (const auto reducer = owner->reducer.lock();
        reducer && reducer->in_first_static_iteration() && !reducer->end_queued_) {
      reducer->end_queued_ = true;
      torch::autograd::Engine::get_default_engine().queue_callback([reducer] { reducer->reduce_all_at_end(); });
    }
    gradients.emplace_back();  // for `owner`
    return gradients;
  }
};

Reducer::Reducer(std::vector<NamedParameter> parameters, ProcessGroup group, ReducerSettings settings)
    : parameters_{std::move(parameters)}, group_{std::move(group)}, settings_{std::move(settings)} {
  const torch::NoGradGuard no_grad;
  const auto planned = planned_tensors(parameters_, {});
  auto plan = plan_buckets(planned, settings_.limits.first, LeftoverOrder::by_first_tensor);
  std::reverse(plan.begin(), plan.end());  // gradients come roughly from the last parameter to the first
  build(plan);

  used_ = torch::zeros({static_cast<std::int64_t>(parameters_.size())}, torch::kInt);
  firings_.assign(parameters_.size(), 0);
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters_[index].tensor);
    const auto key = accumulator->add_post_hook(std::make_unique<GradientHook>(*this, index));
    accumulators_.emplace_back(std::move(accumulator), key);
  }
}

Reducer::~Reducer() {
  for (const auto& [accumulator, key] : accumulators_) accumulator->del_post_hook(key);
}

void Reducer::build(const BucketPlan& plan) {
  const torch::NoGradGuard no_grad;
  buckets_.clear();
  places_.assign(parameters_.size(), {});
  for (const auto& indices : plan) {
    Bucket bucket;
    bucket.indices = indices;
    std::int64_t elements = 0;
    for (const auto index : indices) {
      places_[index] = {buckets_.size(), bucket.offsets.size()};
      bucket.offsets.push_back(elements);
      elements += parameters_[index].tensor.numel();
    }
    bucket.buffer = torch::empty(
        {elements}, parameters_[indices.front()].tensor.options().requires_grad(false).memory_format(std::nullopt));
    for (std::size_t slot = 0; slot < indices.size(); ++slot)
      bucket.views.push_back(
          view_like(bucket.buffer, parameters_[indices[slot]].tensor, bucket.offsets[slot]).detach());
    buckets_.push_back(std::move(bucket));
  }
  if (settings_.gradient_as_bucket_view) point_gradients_at_views();
}

void Reducer::point_gradients_at_views() {
  for (auto& bucket : buckets_)
    for (std::size_t slot = 0; slot < bucket.indices.size(); ++slot) {
      auto& gradient = parameters_[bucket.indices[slot]].tensor.mutable_grad();
      if (!gradient.defined()) continue;
      bucket.views[slot].copy_(gradient);
      gradient = bucket.views[slot];
    }
}

void Reducer::count_iteration() { ++iterations_; }

bool Reducer::check_and_rebuild() {
  const std::lock_guard lock{mutex_};
  if (unfinished_) {
    std::vector<std::size_t> missing;
    for (std::size_t index = 0; index < parameters_.size(); ++index)
      if (!ready_[index]) missing.push_back(index);
    throw Error{
        fmt::format("Expected to have finished reduction in the prior iteration before starting a new one. On rank {} "
                    "these parameters got no gradient: {}. They were not used in producing the loss, or not all "
                    "outputs of forward were: pass find_unused_parameters = true where that is meant",
                    group_.rank(), names_of(missing))};
  }
  if (!wants_rebuild() || arrival_.empty()) return false;
  const auto plan = rank_zeros(plan_from_arrival_order());
  rebuilt_ = true;
  arrival_.clear();
  build(plan);
  return true;
}

BucketPlan Reducer::plan_from_arrival_order() const {
  if (arrival_.size() != parameters_.size())
    throw Error{fmt::format("rebuilding the buckets: {} of {} parameters had a gradient in the first backward pass",
                            arrival_.size(), parameters_.size())};
  const bool small_bucket_last = environment_variable("DDP_SET_LAST_BUCKET_CAP") == "1";
  auto order = arrival_;
  if (small_bucket_last) std::reverse(order.begin(), order.end());
  auto plan = plan_buckets(planned_tensors(parameters_, order), settings_.limits.rebuilt, LeftoverOrder::hashed);
  for (auto& bucket : plan)
    for (auto& position : bucket) position = order[position];
  if (small_bucket_last) std::reverse(plan.begin(), plan.end());
  return plan;
}

/// Ranks may see their gradients in different orders: all of them take rank 0's plan.
BucketPlan Reducer::rank_zeros(const BucketPlan& plan) const {
  const auto count = parameters_.size();
  std::vector<int> indices, sizes(count, 0);
  for (std::size_t bucket = 0; bucket < plan.size(); ++bucket) {
    for (const auto index : plan[bucket]) indices.push_back(static_cast<int>(index));
    sizes[bucket] = static_cast<int>(plan[bucket].size());
  }
  indices.push_back(static_cast<int>(plan.size()));
  const auto device = parameters_.front().tensor.device();

  auto shared_indices = torch::tensor(indices, torch::kInt).to(device);
  broadcast(shared_indices, group_);
  shared_indices = shared_indices.cpu();
  const auto bucket_count = static_cast<std::size_t>(shared_indices[static_cast<std::int64_t>(count)].item<int>());
  sizes.resize(bucket_count);
  auto shared_sizes = torch::tensor(sizes, torch::kInt).to(device);
  broadcast(shared_sizes, group_);
  shared_sizes = shared_sizes.cpu();

  BucketPlan shared(bucket_count);
  const int* next = shared_indices.const_data_ptr<int>();
  for (std::size_t bucket = 0; bucket < bucket_count; ++bucket) {
    const int size = shared_sizes.const_data_ptr<int>()[bucket];
    shared[bucket].assign(next, next + size);
    next += size;
  }
  return shared;
}

void Reducer::expect_backward(const std::vector<torch::Tensor>& outputs) {
  const std::lock_guard lock{mutex_};
  if (missed_first_iteration_)
    throw Error{
        fmt::format("static_graph: rank {} had no input in the first iteration, inside join(), which finds out which "
                    "gradients come; give every rank at least one batch, or train without static_graph",
                    group_.rank())};
  expecting_ = true;
  next_bucket_ = 0;
  marked_unused_ = false;
  ready_.assign(parameters_.size(), 0);
  for (auto& bucket : buckets_) {
    bucket.pending = bucket.indices.size();
    bucket.streams.clear();
  }
  firings_left_ = firings_;
  if (searches_unused()) unused_ = find_unused(outputs);
}

std::vector<std::size_t> Reducer::find_unused(const std::vector<torch::Tensor>& outputs) const {
  std::unordered_set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> front;
  const auto visit = [&](torch::autograd::Node* node) {
    if (node && seen.insert(node).second) front.push_back(node);
  };
  for (const auto& output : outputs)
    if (const auto& function = output.grad_fn()) visit(&*function);
  while (!front.empty()) {
    auto* node = front.back();
    front.pop_back();
    for (const auto& edge : node->next_edges()) visit(edge.function ? &*edge.function : nullptr);
  }
  std::vector<std::size_t> unused;
  for (std::size_t index = 0; index < accumulators_.size(); ++index)
    if (!seen.contains(&*accumulators_[index].first)) unused.push_back(index);
  return unused;
}

bool Reducer::needs_sink() const { return searches_unused() || (settings_.static_graph && !end_queued_); }

std::vector<torch::Tensor> Reducer::sink(const std::vector<torch::Tensor>& outputs) {
  return Sink::apply(at::TensorList{outputs}, c10::make_intrusive<Sink::Owner>(weak_from_this()));
}

void Reducer::set_comm_hook(CommHook hook) {
  if (hook_) throw Error{"a communication hook can be registered only once"};
  if (iterations_ > 0) throw Error{"a communication hook must be registered before the first forward pass"};
  hook_ = std::move(hook);
}

void Reducer::on_gradient(std::size_t index) {
  const std::lock_guard lock{mutex_};
  const bool defined = parameters_[index].tensor.grad().defined();
  // Also within no_sync: a parameter that was used once before the reduction is used.
  if (defined && (searches_unused() || in_first_static_iteration())) used_.mutable_data_ptr<int>()[index] = 1;
  if (in_first_static_iteration()) {
    ++firings_[index];
    return;
  }
  if (!expecting_) {
    ++unexpected_gradients_;
    return;
  }
  if (!marked_unused_) {
    marked_unused_ = true;
    for (const auto unused : unused_) mark_ready(unused);
  }
  if (settings_.static_graph) {
    if (firings_left_[index] == 0)
      throw Error{
          fmt::format("static_graph: parameter {} got more gradients (more than {}) than in the first backward pass; "
                      "the graph has changed: train it without static_graph",
                      names_of({index}), firings_[index])};
    if (--firings_left_[index] > 0) return;
  }
  if (wants_rebuild()) arrival_.push_back(index);
  mark_ready(index);
}

void Reducer::mark_ready(std::size_t index) {
  if (ready_[index])
    throw Error{
        "Expected to mark a variable ready only once. Parameter " + names_of({index}) +
        " got a second gradient in one backward pass: it is used outside of forward, or in several re-entrant "
        "backward passes (activation checkpointing); static_graph = true allows that where the graph does not change"};
  ready_[index] = 1;
  unfinished_ = true;
  copy_into_bucket(index);
  if (--buckets_[places_[index].bucket].pending == 0) launch_ready_buckets();
}

void Reducer::copy_into_bucket(std::size_t index) {
  auto& bucket = buckets_[places_[index].bucket];
  auto& view = bucket.views[places_[index].slot];
  auto& gradient = parameters_[index].tensor.mutable_grad();
  if (bucket.buffer.is_cuda()) {
    const auto stream = c10::impl::VirtualGuardImpl{torch::kCUDA}.getStream(bucket.buffer.device());
    if (std::find(bucket.streams.begin(), bucket.streams.end(), stream) == bucket.streams.end())
      bucket.streams.push_back(stream);
  }
  const torch::NoGradGuard no_grad;
  if (!gradient.defined()) {
    view.zero_();
  } else if (gradient.is_alias_of(view)) {
    if (!hook_) view.div_(divisor());  // not the same bits as the multiplication below, and both as in PyTorch
  } else {
    if (gradient.layout() != torch::kStrided)
      throw Error{"parameter " + names_of({index}) +
                  " has a sparse gradient; only dense ones are reduced (Embedding: sparse = false)"};
    if (hook_)
      view.copy_(gradient);
    else
      at::mul_out(view, gradient.detach(), at::native::wrapped_scalar_tensor(1.0 / divisor()));
    if (settings_.gradient_as_bucket_view) gradient = view;
  }
}

int Reducer::divisor() {
  if (divisor_ == 0) {
    divisor_ = group_.size();
    if (active_ranks_.defined()) {
      active_work_.wait();
      divisor_ = active_ranks_.item<int>();
    }
  }
  return divisor_;
}

void Reducer::launch_ready_buckets() {
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0) launch(next_bucket_++);
  if (next_bucket_ < buckets_.size()) return;
  if (searches_unused()) reduce_used_map();
  queue_finish();
}

void Reducer::launch(std::size_t index) {
  auto& bucket = buckets_[index];
  if (!bucket.streams.empty()) {
    // The backend waits for the current stream only; gradients may have been copied on others.
    const c10::impl::VirtualGuardImpl streams{torch::kCUDA};
    const auto current = streams.getStream(bucket.buffer.device());
    for (const auto& stream : bucket.streams) {
      if (stream == current) continue;
      c10::Event copied{torch::kCUDA};
      copied.record(stream);
      copied.block(current);
    }
  }
  bucket.reduction = begin_reduction(index, bucket.buffer, bucket.views);
}

BucketReduction Reducer::begin_reduction(std::size_t index, const torch::Tensor& buffer,
                                         const std::vector<torch::Tensor>& views) {
  if (!hook_) return {.result = buffer, .work = all_reduce_async(real_view(buffer), group_), .stages = {}};
  std::vector<torch::Tensor> tensors;
  for (const auto parameter : buckets_[index].indices) tensors.push_back(parameters_[parameter].tensor);
  auto reduction = hook_(GradBucket{index, index + 1 == buckets_.size(), buffer, views, std::move(tensors)});
  if (!reduction.result.defined() || reduction.result.numel() != buffer.numel())
    throw Error{fmt::format("the communication hook returned {} elements for bucket {} of {}",
                            reduction.result.defined() ? fmt::format("{}", reduction.result.numel()) : "no", index,
                            buffer.numel())};
  return reduction;
}

void Reducer::reduce_used_map() {
  used_reduced_ =
      used_.to(parameters_.front().tensor.device(), used_.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  used_work_ = all_reduce_async(used_reduced_, group_);
}

void Reducer::queue_finish() {
  torch::autograd::Engine::get_default_engine().queue_callback([self = shared_from_this()] {
    const std::lock_guard lock{self->mutex_};
    if (self->settings_.static_graph && self->wants_rebuild())
      self->arrival_.insert(self->arrival_.end(), self->unused_.begin(), self->unused_.end());
    self->finish();
  });
}

/// End of the first backward pass of a static graph: only now it is known which gradients come.
void Reducer::reduce_all_at_end() {
  const std::lock_guard lock{mutex_};
  reduce_used_map();
  unused_.clear();
  unfinished_ = true;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    if (firings_[index] == 0) unused_.push_back(index);
    ready_[index] = 1;
    copy_into_bucket(index);
  }
  for (std::size_t index = 0; index < buckets_.size(); ++index) launch(index);
  finish();
  first_iteration_done_ = true;
}

void Reducer::finish() {
  const torch::NoGradGuard no_grad;
  expecting_ = false;
  unfinished_ = false;
  divisor_ = 0;
  wait_for_all([this](Bucket& bucket) { write_back(bucket); });
  // The next map must not overtake this one.
  if (searches_unused() || in_first_static_iteration()) used_work_.wait();
  if (searches_unused()) {
    used_.zero_();
    used_is_global_ = false;
  }
}

/// First stages of all buckets in order, then second ones: the order in which all ranks issue what the stages issue.
void Reducer::wait_for_all(const std::function<void(Bucket&)>& done) {
  std::size_t open = buckets_.size();
  for (std::size_t stage = 0; open > 0; ++stage) {
    for (auto& bucket : buckets_) {
      auto& [result, work, stages] = bucket.reduction;
      if (stage > stages.size()) continue;
      work.wait();
      if (stage < stages.size()) {
        work = stages[stage]();
      } else {
        done(bucket);
        --open;
      }
    }
  }
  for (auto& bucket : buckets_) bucket.reduction = {};
}

bool Reducer::used_anywhere(std::size_t index) {
  if (!settings_.find_unused_parameters && !settings_.static_graph) return true;
  const auto used = [&] { return used_.const_data_ptr<int>()[index] != 0; };
  if (used() || used_is_global_) return used();
  used_work_.wait();  // only now: a rank that uses everything never waits for it here
  used_.copy_(used_reduced_);
  used_is_global_ = true;
  return used();
}

void Reducer::write_back(Bucket& bucket) {
  auto& reduced = bucket.reduction.result;
  const bool in_place = is_flat_view(reduced, bucket.buffer);
  // A hook's may have any shape and memory order, and be a view of the buffer in another one, or its conjugate.
  if (!in_place) reduced = reduced.to(bucket.buffer.options()).resolve_conj().resolve_neg().contiguous().view({-1});
  for (std::size_t slot = 0; slot < bucket.indices.size(); ++slot) {
    const auto index = bucket.indices[slot];
    const auto& parameter = parameters_[index].tensor;
    const auto& view = bucket.views[slot];
    const auto result = in_place ? view : view_like(reduced, parameter, bucket.offsets[slot]);
    auto& gradient = parameter.mutable_grad();
    if (settings_.gradient_as_bucket_view) {
      if (!in_place) bucket.views[slot].copy_(result);
      if (!gradient.defined() && used_anywhere(index)) gradient = view;
      continue;
    }
    if (!used_anywhere(index)) continue;
    if (gradient.defined())
      gradient.copy_(result);
    else
      gradient = torch::autograd::utils::clone_obey_contract(result, parameter);
  }
}

void Reducer::reset() {
  const std::lock_guard lock{mutex_};
  forget_backward();
  if (settings_.static_graph && !first_iteration_done_) forget_first_iteration();
  build(current_plan());
}

void Reducer::start_over(const BucketPlan& plan, bool rebuilt, std::vector<std::size_t> arrived) {
  const std::lock_guard lock{mutex_};
  check_plan(plan, parameters_);
  forget_backward();
  forget_first_iteration();
  first_iteration_done_ = missed_first_iteration_ = false;
  unexpected_gradients_ = 0;
  active_ranks_ = torch::Tensor{};
  active_work_ = {};
  rebuilt_ = rebuilt;
  arrival_ = std::move(arrived);
  build(plan);
}

void Reducer::forget_first_iteration() {
  iterations_ = 0;
  firings_.assign(parameters_.size(), 0);
  end_queued_ = false;
  unused_.clear();
}

/// Gradients that are views into the buckets go with it.
void Reducer::forget_backward() {
  expecting_ = unfinished_ = false;
  divisor_ = 0;
  arrival_.clear();
  used_.zero_();
  used_is_global_ = false;
  used_work_ = {};
  for (const auto& bucket : buckets_)
    for (const auto index : bucket.indices)
      if (auto& gradient = parameters_[index].tensor.mutable_grad();
          gradient.defined() && gradient.is_alias_of(bucket.buffer))
        gradient = torch::Tensor{};
}

BucketPlan Reducer::layout() const {
  const std::lock_guard lock{mutex_};
  return current_plan();
}

BucketPlan Reducer::current_plan() const {
  BucketPlan plan;
  for (const auto& bucket : buckets_) plan.push_back(bucket.indices);
  return plan;
}

std::vector<std::size_t> Reducer::arrived() const {
  const std::lock_guard lock{mutex_};
  return arrival_;
}

void Reducer::restore(const BucketPlan& plan, bool rebuilt, std::vector<std::size_t> arrived) {
  const std::lock_guard lock{mutex_};
  check_plan(plan, parameters_);
  rebuilt_ = rebuilt;
  arrival_ = std::move(arrived);
  build(plan);
}

void Reducer::set_active_ranks(torch::Tensor count, Work work) {
  active_ranks_ = std::move(count);
  active_work_ = std::move(work);
}

void Reducer::shadow_backward() {
  const std::lock_guard lock{mutex_};
  const torch::NoGradGuard no_grad;
  const auto reduce_zeros_as_map = [&] {
    all_reduce(torch::zeros_like(used_, used_.options().device(parameters_.front().tensor.device())), group_);
  };
  // The first iteration of a static graph, where the map goes first and nothing arrives in an order.
  const bool first_static = settings_.static_graph && iterations_ == 0;
  ++iterations_;
  missed_first_iteration_ |= first_static;
  first_iteration_done_ |= first_static;
  if (first_static) reduce_zeros_as_map();
  for (std::size_t index = 0; index < buckets_.size(); ++index) {
    // Not the buffer itself, which may hold gradients that the user still wants.
    auto& bucket = buckets_[index];
    const auto zeros = torch::zeros_like(bucket.buffer);
    std::vector<torch::Tensor> views;
    for (std::size_t slot = 0; slot < bucket.indices.size(); ++slot)
      views.push_back(view_like(zeros, parameters_[bucket.indices[slot]].tensor, bucket.offsets[slot]));
    bucket.reduction = begin_reduction(index, zeros, views);
  }
  if (searches_unused()) reduce_zeros_as_map();
  wait_for_all([](Bucket&) {});
  if (wants_rebuild() && arrival_.empty() && !first_static) {
    arrival_.resize(parameters_.size());
    std::iota(arrival_.begin(), arrival_.end(), std::size_t{0});
  }
}

std::string Reducer::names_of(const std::vector<std::size_t>& indices) const {
  constexpr std::size_t named_max = 20;
  std::string text;
  for (std::size_t i = 0; i < std::min(indices.size(), named_max); ++i)
    text += (i ? ", " : "") + parameters_[indices[i]].name;
  if (indices.size() > named_max) text += fmt::format(" and {} more", indices.size() - named_max);
  return text;
}

}  // namespace torchup

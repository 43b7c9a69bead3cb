#include "torchup/distributed_data_parallel.hpp"

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/debug.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <unordered_set>

#include "torchup/error.hpp"
#include "worker_runtime/ddp/parameter_check.hpp"
#include "worker_runtime/ddp/reducer.hpp"
#include "worker_runtime/group/group_rounds.hpp"

namespace torchup {
namespace {

bool listed(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Those to reduce: in the module's order, shared ones once, by the first of their names.
std::vector<NamedParameter> reduced_parameters(const torch::nn::Module& module,
                                               const std::vector<std::string>& ignored) {
  std::vector<NamedParameter> parameters;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : module.named_parameters())
    if (item.value().requires_grad() && !listed(ignored, item.key()) &&
        seen.insert(item.value().unsafeGetTensorImpl()).second)
      parameters.push_back({item.key(), item.value()});
  return parameters;
}

std::vector<NamedParameter> named_buffers_of(const torch::nn::Module& module, const std::vector<std::string>& ignored) {
  std::vector<NamedParameter> buffers;
  for (const auto& item : module.named_buffers())
    if (item.value().defined() && !listed(ignored, item.key())) buffers.push_back({item.key(), item.value()});
  return buffers;
}

/// Parameters, frozen ones too, then buffers if asked for.
std::vector<NamedParameter> named_state_of(const torch::nn::Module& module, const std::vector<std::string>& ignored,
                                           bool buffers) {
  std::vector<NamedParameter> state;
  for (const auto& item : module.named_parameters())
    if (!listed(ignored, item.key())) state.push_back({item.key(), item.value()});
  if (buffers)
    for (auto& buffer : named_buffers_of(module, ignored)) state.push_back(std::move(buffer));
  return state;
}

std::vector<torch::Tensor> tensors_of(const std::vector<NamedParameter>& named) {
  std::vector<torch::Tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

/// The caps that the program gave, the same way whichever option it gave them by; empty: the defaults.
std::vector<double> given_caps(const DistributedDataParallelOptions& options) {
  if (!options.bucket_cap_mb_list.empty() || !options.bucket_cap_mb) return options.bucket_cap_mb_list;
  return {*options.bucket_cap_mb};
}

BucketPlan plan_of(const BucketLayout& layout) {
  BucketPlan plan;
  for (const auto& bucket : layout.buckets) plan.emplace_back(bucket.begin(), bucket.end());
  return plan;
}

std::string device_list(const std::vector<torch::Device>& devices) {
  std::string text;
  for (const auto& device : devices) text += (text.empty() ? "" : ", ") + device.str();
  return "[" + text + "]";
}

void refuse_sparse_gradients(const torch::nn::Module& module) {
  for (const auto& item : module.named_modules()) {
    const auto* embedding = item.value()->as<torch::nn::EmbeddingImpl>();
    const auto* bag = item.value()->as<torch::nn::EmbeddingBagImpl>();
    if ((embedding && embedding->options.sparse()) || (bag && bag->options.sparse()))
      throw Error{"DistributedDataParallel: module \"" + item.key() +
                  "\" makes sparse gradients, which are not reduced; construct it "
                  "with sparse(false)"};
  }
}

/// The one device of all parameters. `device_ids` must name it or be empty.
torch::Device check_devices(const std::vector<NamedParameter>& parameters,
                            const std::vector<torch::Device>& device_ids) {
  const auto device = parameters.front().tensor.device();
  for (const auto& [name, tensor] : parameters)
    if (tensor.device() != device)
      throw Error{"DistributedDataParallel: parameter " + parameters.front().name + " is on " + device.str() + " and " +
                  name + " on " + tensor.device().str() +
                  "; the module must lie on one device per process: move it with to(device)"};
  if (device_ids.size() > 1)
    throw Error{"DistributedDataParallel: device_ids is " + device_list(device_ids) +
                ", but one process drives one device; "
                "start a process per GPU"};
  if (device_ids.size() == 1 && (device.is_cpu() || device_ids[0] != device))
    throw Error{"DistributedDataParallel: device_ids is " + device_list(device_ids) +
                ", but the module's parameters are on " + device.str() +
                (device.is_cpu() ? "; leave device_ids out for a module on the CPU, or move it there with to(device)"
                                 : "; pass the module's device, or move the module there with to(device)")};
  return device;
}

ReducerSettings reducer_settings(const DistributedDataParallelOptions& options) {
  for (const double cap : options.bucket_cap_mb_list)
    if (!(cap > 0) || !std::isfinite(cap))
      throw Error{
          fmt::format("DistributedDataParallel: bucket_cap_mb_list holds {}, a cap must be positive and finite", cap)};
  if (options.bucket_cap_mb && !(*options.bucket_cap_mb >= 0 && std::isfinite(*options.bucket_cap_mb)))
    throw Error{fmt::format("DistributedDataParallel: bucket_cap_mb is {}, it must be finite and not negative",
                            *options.bucket_cap_mb)};
  BucketSettings buckets{.cap_given = options.bucket_cap_mb.has_value(),
                         .cap_mb_list = options.bucket_cap_mb_list,
                         .find_unused_parameters = options.find_unused_parameters,
                         .static_graph = options.static_graph};
  if (options.bucket_cap_mb) buckets.cap_mb = *options.bucket_cap_mb;
  return {.limits = bucket_limits(buckets),
          .find_unused_parameters = options.find_unused_parameters,
          .static_graph = options.static_graph,
          .gradient_as_bucket_view = options.gradient_as_bucket_view};
}

}  // namespace

struct DataParallelCore::Impl {
  std::shared_ptr<torch::nn::Module> module;
  ProcessGroup group;
  DistributedDataParallelOptions options;
  std::vector<NamedParameter> parameters;
  torch::Device device;
  std::shared_ptr<Reducer> reducer;
  bool sync = true;         ///< false inside no_sync
  bool buffers_due = true;  ///< the last forward was a synchronised one
  bool iterated = false;    ///< a synchronised forward has been
  std::optional<JoinOptions> joining = {};
  bool announces_join = true;  ///< the first model of a join tells that this rank has inputs

  std::vector<torch::Tensor> buffers() const {
    return tensors_of(named_buffers_of(*module, options.parameters_to_ignore));
  }
  bool will_sync_buffers() const { return buffers_due && options.forward_sync_buffers && !buffers().empty(); }
  void sync_buffers(int root) { broadcast_coalesced(buffers(), group, root); }

  /// The largest rank for which `candidate` holds.
  int common_rank(bool candidate) {
    auto largest = torch::full({1}, candidate ? group.rank() : -1, torch::TensorOptions{torch::kLong}.device(device));
    all_reduce(largest, group, ReduceOp::max);
    return static_cast<int>(largest.item<std::int64_t>());
  }
  torch::Tensor flag(bool up) const {
    return torch::full({1}, up ? 1.0F : 0.0F, torch::TensorOptions{torch::kFloat}.device(device));
  }

  /// What a rank without inputs does while the others take this model through one iteration.
  void follow_iteration() {
    reducer->check_and_rebuild();
    if (will_sync_buffers()) sync_buffers(common_rank(false));
    auto reduced = flag(false);
    all_reduce(reduced, group);
    buffers_due = reduced.item<float>() != 0;
    if (buffers_due) reducer->shadow_backward();
  }

  /// Tells ranks that are through with their inputs that this one is not.
  void notify_joined() {
    auto count = flag(true);
    auto work = all_reduce_async(count, group);
    if (joining->throw_on_early_termination) {
      auto ended = flag(false);
      all_reduce(ended, group);
      if (ended.item<float>() != 0)
        throw Error{"Detected at least one rank that exhausted inputs. Throwing across all ranks."};
    }
    if (joining->divide_by_initial_world_size)
      reducer->set_active_ranks({}, {});
    else
      reducer->set_active_ranks(count, work);
  }
};

DataParallelCore::DataParallelCore(std::shared_ptr<torch::nn::Module> module, ProcessGroup group,
                                   DistributedDataParallelOptions options) {
  if (!module) throw Error{"DistributedDataParallel: the module is empty"};
  if (group.has_python_ranks())
    throw Error{
        "DistributedDataParallel: some ranks of this job are Python processes; gradients can be averaged only among "
        "ranks "
        "of one language. Collectives work with them"};
  auto parameters = reduced_parameters(*module, options.parameters_to_ignore);
  if (parameters.empty())
    throw Error{
        "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient."};
  refuse_sparse_gradients(*module);
  const auto device = check_devices(parameters, options.device_ids);
  const auto settings = reducer_settings(options);
  if (options.init_sync && !sets_up_alone(group)) {
    const OwnCollectives own{group};
    const auto state = named_state_of(*module, options.parameters_to_ignore, /*buffers=*/true);
    check_same_parameters(parameters, state, group);
    broadcast_coalesced(tensors_of(state), group);
  }
  auto reducer = std::make_shared<Reducer>(parameters, group, settings);
  impl_ = std::make_unique<Impl>(Impl{.module = std::move(module),
                                      .group = std::move(group),
                                      .options = std::move(options),
                                      .parameters = std::move(parameters),
                                      .device = device,
                                      .reducer = std::move(reducer)});
}

DataParallelCore::~DataParallelCore() = default;
DataParallelCore::DataParallelCore(DataParallelCore&&) noexcept = default;
DataParallelCore& DataParallelCore::operator=(DataParallelCore&&) noexcept = default;

DataParallelCore::NoSync::NoSync(DataParallelCore& core, bool active) : core_{&core}, before_{core.impl_->sync} {
  if (active) core.impl_->sync = false;
}
DataParallelCore::NoSync::~NoSync() { core_->impl_->sync = before_; }

void DataParallelCore::register_comm_hook(CommHook hook) {
  if (!hook) throw Error{"register_comm_hook: the hook is empty"};
  impl_->reducer->set_comm_hook(std::move(hook));
}

const ProcessGroup& DataParallelCore::group() const { return impl_->group; }
std::vector<torch::Tensor> DataParallelCore::parameters() const { return tensors_of(impl_->parameters); }
std::vector<std::string> DataParallelCore::parameter_names() const {
  std::vector<std::string> names;
  for (const auto& parameter : impl_->parameters) names.push_back(parameter.name);
  return names;
}

BucketLayout DataParallelCore::bucket_layout() const {
  BucketLayout layout{.buckets = {}, .rebuilt = impl_->reducer->rebuilt(), .caps_mb = given_caps(impl_->options)};
  for (const auto& bucket : impl_->reducer->layout()) layout.buckets.emplace_back(bucket.begin(), bucket.end());
  const auto arrived = impl_->reducer->arrived();
  layout.arrived.assign(arrived.begin(), arrived.end());
  return layout;
}

bool DataParallelCore::restore_bucket_layout(const BucketLayout& layout) {
  if (layout.caps_mb != given_caps(impl_->options)) return false;
  impl_->reducer->restore(plan_of(layout), layout.rebuilt, {layout.arrived.begin(), layout.arrived.end()});
  return true;
}

void DataParallelCore::start_over(const BucketLayout& layout) {
  impl_->reducer->start_over(plan_of(layout), layout.rebuilt, {layout.arrived.begin(), layout.arrived.end()});
  impl_->iterated = false;
  impl_->buffers_due = true;
}

void DataParallelCore::reset() {
  impl_->reducer->reset();
  impl_->iterated = impl_->reducer->iterated();
}

void DataParallelCore::before_forward() {
  auto& [module, group, options, parameters, device, reducer, sync, buffers_due, iterated, joining, announces_join] =
      *impl_;
  const bool gradients = torch::GradMode::is_enabled();
  const auto unexpected = reducer->take_unexpected_gradients();
  if (unexpected > 0 && buffers_due && c10d::debug_level() != c10d::DebugLevel::Off)
    std::fprintf(stderr,
                 "torchup: rank %d: %zu gradients came after their step was reduced (a second backward pass of one "
                 "forward?); they "
                 "are not averaged and differ between the ranks\n",
                 group.rank(), unexpected);
  if (gradients && !sync && options.static_graph && !iterated)
    throw Error{
        "static_graph: the first iteration cannot be inside no_sync(), since it finds out which gradients come"};
  if (gradients && sync) {
    reducer->count_iteration();
    iterated = true;
  }
  if (joining && joining->enable && announces_join) impl_->notify_joined();
  if (gradients) reducer->check_and_rebuild();
  if (impl_->will_sync_buffers()) impl_->sync_buffers(joining && joining->enable ? impl_->common_rank(true) : 0);
  if (joining && joining->enable) all_reduce_async(impl_->flag(sync), group);
}

void DataParallelCore::after_forward(std::vector<torch::Tensor*> outputs) {
  auto& [module, group, options, parameters, device, reducer, sync, buffers_due, iterated, joining, announces_join] =
      *impl_;
  std::vector<torch::Tensor> differentiable;
  std::erase_if(outputs, [](const torch::Tensor* output) { return !output->defined() || !output->grad_fn(); });
  for (const auto* output : outputs) differentiable.push_back(*output);

  buffers_due = torch::GradMode::is_enabled() && sync;
  if (buffers_due) reducer->expect_backward(differentiable);
  if (differentiable.empty() || !reducer->needs_sink()) return;
  const auto passed = reducer->sink(differentiable);
  for (std::size_t index = 0; index < outputs.size(); ++index) *outputs[index] = passed[index];
}

torch::Tensor DataParallelCore::input(torch::Tensor argument) const {
  if (impl_->options.device_ids.empty() || !argument.defined()) return argument;
  return argument.to(impl_->options.device_ids[0], /*non_blocking=*/true);
}

void DataParallelCore::explain_forward_error(const std::exception& error,
                                             const std::vector<std::optional<torch::Device>>& arguments) const {
  std::string elsewhere;
  if (impl_->options.device_ids.empty())
    for (std::size_t index = 0; index < arguments.size(); ++index)
      if (arguments[index] && *arguments[index] != impl_->device)
        elsewhere += fmt::format("argument {} of forward is on {}, the module on {}; ", index, arguments[index]->str(),
                                 impl_->device.str());
  if (elsewhere.empty()) throw;  // the exception being handled
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  throw Error{elsewhere +
              "move it there, or pass device_ids: " + (c10_error ? c10_error->what_without_backtrace() : error.what())};
}

JoinScope::JoinScope(ProcessGroup group, std::vector<DataParallelCore*> models, JoinOptions options)
    : group_{std::move(group)}, models_{std::move(models)}, options_{options} {
  if (models_.empty()) throw Error{"join: there is no model to follow"};
  for (const auto* model : models_)
    if (model->impl_->joining) throw Error{"join: already inside join()"};
  for (auto* model : models_) {
    model->impl_->joining = options_;
    model->impl_->announces_join = model == models_.front();
  }
}

JoinScope::~JoinScope() {
  for (auto* model : models_) {
    model->impl_->joining.reset();
    model->impl_->reducer->set_active_ranks({}, {});
  }
}

void JoinScope::finish() {
  if (!options_.enable) return;
  auto& first = *models_.front()->impl_;
  bool last = true;  // to be through with the inputs
  for (;;) {
    auto active = first.flag(false);
    all_reduce(active, group_);
    if (active.item<float>() == 0) break;
    last = false;
    if (options_.throw_on_early_termination) {
      all_reduce(first.flag(true), group_);
      throw Error{fmt::format("Rank {} exhausted all inputs.", group_.rank())};
    }
    for (auto* model : models_) model->impl_->follow_iteration();
  }
  for (auto* model : models_) {
    auto& impl = *model->impl_;
    const int root = impl.common_rank(last);
    broadcast_coalesced(
        tensors_of(named_state_of(*impl.module, impl.options.parameters_to_ignore, impl.options.forward_sync_buffers)),
        impl.group, root);
  }
}

}  // namespace torchup

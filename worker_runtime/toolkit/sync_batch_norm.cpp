#include <fmt/format.h>

#include <torch/nn/functional/batchnorm.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <ostream>
#include <torchup/collectives.hpp>
#include <torchup/error.hpp>
#include <torchup/sync_batch_norm.hpp>

namespace torchup {
namespace {

using torch::Tensor;

bool is_channels_last(const Tensor& tensor) {
  return tensor.is_contiguous(torch::MemoryFormat::ChannelsLast) ||
         tensor.is_contiguous(torch::MemoryFormat::ChannelsLast3d);
}

Tensor dense(const Tensor& tensor) { return is_channels_last(tensor) ? tensor : tensor.contiguous(); }

/// The type of the statistics: float32 for half types, else the input's own.
torch::ScalarType statistics_type(const Tensor& input) {
  const auto type = input.scalar_type();
  return type == torch::kHalf || type == torch::kBFloat16 ? torch::kFloat : type;
}

/// All dimensions but the channels'.
std::vector<int64_t> other_dimensions(const Tensor& input) {
  std::vector<int64_t> dimensions{0};
  for (int64_t dimension = 2; dimension < input.dim(); ++dimension) dimensions.push_back(dimension);
  return dimensions;
}

/// A vector over channels in the shape that broadcasts against `input`.
Tensor per_channel(const Tensor& channels, const Tensor& input) {
  std::vector<int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = channels.numel();
  return channels.view(shape);
}

struct Statistics {
  Tensor mean, invstd;  // over all ranks' values; C numbers each
  Tensor counts;        // int32: values per channel of each rank that has any
};

/// Every rank's row of [mean, spread, count], 2C + 1 numbers, without the ranks that have no values.
Tensor gather_rows(const Tensor& row, const ProcessGroup& group) {
  const Tensor all = torch::empty({group.size(), row.numel()}, row.options());
  all_gather_into(all.view(-1), row, group);
  return all.index({all.select(1, row.numel() - 1) >= 1});
}

/// ATen's kernels, in the order of Python's SyncBatchNorm. The spread of a row is 1 / sqrt(variance + eps).
Statistics statistics_on_device(const Tensor& input, const Tensor& running_mean, const Tensor& running_var, double eps,
                                double momentum, const ProcessGroup& group) {
  const int64_t channels = input.size(1);
  const auto options = input.options().dtype(statistics_type(input));
  Tensor row = torch::zeros({2 * channels + 1}, options);
  if (input.numel() > 0) {
    const auto [mean, invstd] = at::batch_norm_stats(input, eps);
    row = torch::cat({mean, invstd, torch::full({1}, input.numel() / channels, mean.options())});
  }
  const auto columns = gather_rows(row, group).split_with_sizes({channels, channels, 1}, 1);
  const Tensor counts = columns[2].reshape({-1});
  const auto [mean, invstd] = at::batch_norm_gather_stats_with_counts(
      input, columns[0].contiguous(), columns[1].contiguous(), running_mean, running_var, momentum, eps,
      running_mean.defined() ? counts.to(running_mean.scalar_type()) : counts);
  return {mean, invstd, columns[2].to(torch::kInt)};
}

/// The same by formula: the variances of the ranks are combined in rank order, in float64, since they are few. The
/// spread of a row is the biased variance itself.
Statistics statistics_on_cpu(const Tensor& input, const Tensor& running_mean, const Tensor& running_var, double eps,
                             double momentum, const ProcessGroup& group) {
  const int64_t channels = input.size(1);
  Tensor row = torch::zeros({2 * channels + 1}, torch::kDouble);
  if (input.numel() > 0) {
    const auto [variance, mean] =
        at::var_mean(input.to(statistics_type(input)), other_dimensions(input), /*correction=*/c10::Scalar{0}, false);
    row = torch::cat({mean.to(torch::kDouble), variance.to(torch::kDouble),
                      torch::full({1}, static_cast<double>(input.numel() / channels), torch::kDouble)});
  }
  const Tensor rows = gather_rows(row, group);
  Tensor mean = torch::zeros({channels}, torch::kDouble), squares = torch::zeros({channels}, torch::kDouble);
  double total = 0;
  for (int64_t i = 0; i < rows.size(0); ++i) {
    const Tensor mean_here = rows[i].narrow(0, 0, channels), variance_here = rows[i].narrow(0, channels, channels);
    const double count = rows[i][2 * channels].item<double>();
    squares = squares + variance_here * count + (mean - mean_here).square() * (total * count / (total + count));
    mean = (total * mean + count * mean_here) / (total + count);
    total += count;
  }
  if (running_mean.defined()) {
    running_mean.mul_(1 - momentum).add_(mean.to(running_mean.scalar_type()), momentum);
    running_var.mul_(1 - momentum).add_((squares / (total - 1)).to(running_var.scalar_type()), momentum);
  }
  const auto type = statistics_type(input);
  return {mean.to(type), (squares / total + eps).rsqrt().to(type), rows.select(1, 2 * channels).to(torch::kInt)};
}

Tensor normalize_on_cpu(const Tensor& input, const Tensor& weight, const Tensor& bias, const Statistics& statistics) {
  const auto type = statistics.mean.scalar_type();
  Tensor scale = statistics.invstd;
  if (weight.defined()) scale = scale * weight.to(type);
  Tensor output = (input.to(type) - per_channel(statistics.mean, input)) * per_channel(scale, input);
  if (bias.defined()) output = output + per_channel(bias.to(type), input);
  return output.to(input.scalar_type());
}

/// A group in the keeping of autograd.
struct GroupHolder : torch::CustomClassHolder {
  explicit GroupHolder(ProcessGroup held) : group{std::move(held)} {}
  ProcessGroup group;
};

/// Sums over this rank's values, and the gradients that are local: DDP averages weight's and bias's later.
struct Reduced {
  Tensor sum_dy, sum_dy_xmu, grad_weight, grad_bias;
};

Reduced reduce_on_cpu(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& invstd,
                      const Tensor& weight) {
  const auto dimensions = other_dimensions(input);
  const Tensor dy = grad.to(mean.scalar_type());
  const Tensor sum_dy = dy.sum(dimensions);
  const Tensor sum_dy_xmu = (dy * (input.to(mean.scalar_type()) - per_channel(mean, input))).sum(dimensions);
  if (!weight.defined()) return {sum_dy, sum_dy_xmu, {}, {}};
  return {sum_dy, sum_dy_xmu, (sum_dy_xmu * invstd).to(weight.scalar_type()), sum_dy.to(weight.scalar_type())};
}

Tensor grad_input_on_cpu(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& invstd,
                         const Tensor& weight, const Tensor& sum_dy, const Tensor& sum_dy_xmu, const Tensor& counts) {
  const auto type = mean.scalar_type();
  const auto total = static_cast<double>(counts.sum().item<int64_t>());
  Tensor scale = invstd;
  if (weight.defined()) scale = scale * weight.to(type);
  const Tensor slope = invstd.square() * sum_dy_xmu / total;
  const Tensor centred = input.to(type) - per_channel(mean, input);
  return ((grad.to(type) - per_channel(sum_dy / total, input) - centred * per_channel(slope, input)) *
          per_channel(scale, input))
      .to(input.scalar_type());
}

/// What changes in place and has no gradient: kept out of autograd's sight, which knows no undefined tensors.
struct RunningStatistics {
  Tensor mean, variance;
};

class SyncBatchNormFunction : public torch::autograd::Function<SyncBatchNormFunction> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& given,
                        const std::optional<Tensor>& given_weight, const std::optional<Tensor>& given_bias,
                        const RunningStatistics& running, double eps, double momentum, const ProcessGroup& group) {
    const Tensor input = dense(given);
    const Tensor weight = given_weight ? given_weight->contiguous() : Tensor{};
    const Tensor bias = given_bias.value_or(Tensor{});
    const auto statistics = input.is_cuda()
                                ? statistics_on_device(input, running.mean, running.variance, eps, momentum, group)
                                : statistics_on_cpu(input, running.mean, running.variance, eps, momentum, group);
    context->save_for_backward({input, weight, statistics.mean, statistics.invstd, statistics.counts});
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(group));
    if (input.numel() == 0) return torch::empty_like(input);
    return input.is_cuda() ? at::batch_norm_elemt(input, weight, bias, statistics.mean, statistics.invstd, eps)
                           : normalize_on_cpu(input, weight, bias, statistics);
  }

  static std::vector<Tensor> backward(torch::autograd::AutogradContext* context, const std::vector<Tensor>& gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &invstd = saved[3], &counts = saved[4];
    const auto& group = static_cast<const GroupHolder&>(*context->saved_data["group"].toCapsule()).group;
    // Autograd numbers the tensors that are there: without weight and bias there is no second and third.
    const bool wants_input = context->needs_input_grad(0);
    const bool wants_weight = weight.defined() && context->needs_input_grad(1);
    const bool wants_bias = weight.defined() && context->needs_input_grad(2);
    std::vector<Tensor> result(7);  // one per argument of forward
    const int64_t channels = input.size(1);
    const Tensor grad = dense(gradients[0]);
    const bool empty = input.numel() == 0;

    Reduced sums;
    if (!empty && input.is_cuda()) {
      std::tie(sums.sum_dy, sums.sum_dy_xmu, sums.grad_weight, sums.grad_bias) =
          at::batch_norm_backward_reduce(grad, input, mean, invstd, weight, wants_input, wants_weight, wants_bias);
    } else if (!empty) {
      sums = reduce_on_cpu(grad, input, mean, invstd, weight);
    }
    if (wants_input) {
      // A rank without values takes part with zeros, in the type of the statistics like all others.
      const Tensor combined =
          empty ? torch::zeros({2 * channels}, mean.options()) : torch::cat({sums.sum_dy, sums.sum_dy_xmu});
      all_reduce(combined, group);
      const Tensor sum_dy = combined.narrow(0, 0, channels), sum_dy_xmu = combined.narrow(0, channels, channels);
      if (empty)
        result[0] = torch::empty_like(input);
      else if (input.is_cuda())
        result[0] = at::batch_norm_backward_elemt(grad, input, mean, invstd,
                                                  weight.defined() ? weight.to(mean.scalar_type()) : weight, sum_dy,
                                                  sum_dy_xmu, counts);
      else
        result[0] = grad_input_on_cpu(grad, input, mean, invstd, weight, sum_dy, sum_dy_xmu, counts);
    }
    if (wants_weight) result[1] = empty ? torch::zeros_like(weight) : sums.grad_weight;
    if (wants_bias) result[2] = empty ? torch::zeros_like(weight) : sums.grad_bias;
    return result;
  }
};

/// Replaces BatchNorms in containers, by name; a module that is in two places is replaced by one.
class Converter {
 public:
  Converter(const ProcessGroup& group, SyncBatchNormConversion& report) : group_{group}, report_{report} {}

  void convert_children(torch::nn::Module& module, const std::string& prefix) {
    for (const auto& child : module.named_children()) {
      const std::string name = prefix.empty() ? child.key() : prefix + "." + child.key();
      if (auto* synced = child.value()->as<SyncBatchNormImpl>()) {
        if (!synced->group()) {
          synced->set_group(group_);
          report_.converted.push_back(name);
        }
      } else if (const auto replacement = replacement_for(*child.value())) {
        const bool done = replace(module, child.key(), child.value(), replacement);
        (done ? report_.converted : report_.left_alone).push_back(name);
      } else {
        convert_children(*child.value(), name);
      }
    }
  }

 private:
  std::shared_ptr<SyncBatchNormImpl> replacement_for(torch::nn::Module& module) {
    if (const auto known = made_.find(&module); known != made_.end()) return known->second;
    std::shared_ptr<SyncBatchNormImpl> made;
    const auto make = [&](auto* batch_norm) {
      if (batch_norm) made = std::make_shared<SyncBatchNormImpl>(*batch_norm, group_);
    };
    make(module.as<torch::nn::BatchNorm1dImpl>());
    make(module.as<torch::nn::BatchNorm2dImpl>());
    make(module.as<torch::nn::BatchNorm3dImpl>());
    if (made) made_.emplace(&module, made);
    return made;
  }

  static bool replace(torch::nn::Module& parent, const std::string& name, const std::shared_ptr<torch::nn::Module>& old,
                      const std::shared_ptr<SyncBatchNormImpl>& replacement) {
    bool found = false;
    if (auto* sequential = parent.as<torch::nn::SequentialImpl>()) {
      for (auto& any : *sequential)
        if (any.ptr() == old) any = torch::nn::AnyModule{replacement}, found = true;
    } else if (auto* list = parent.as<torch::nn::ModuleListImpl>()) {
      for (auto& module : *list)
        if (module == old) module = replacement, found = true;
    } else if (auto* dictionary = parent.as<torch::nn::ModuleDictImpl>()) {
      for (auto& item : *dictionary)
        if (item.value() == old) item.value() = replacement, found = true;
    }
    if (found) parent.replace_module(name, replacement);
    return found;
  }

  const ProcessGroup& group_;
  SyncBatchNormConversion& report_;
  std::map<const torch::nn::Module*, std::shared_ptr<SyncBatchNormImpl>> made_;
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_, std::optional<ProcessGroup> group)
    : options{options_}, group_{std::move(group)} {
  SyncBatchNormImpl::reset();
}

void SyncBatchNormImpl::reset() {
  const int64_t features = options.num_features();
  Tensors fresh;
  if (options.affine()) {
    fresh.weight = torch::ones({features}, torch::requires_grad());
    fresh.bias = torch::zeros({features}, torch::requires_grad());
  }
  if (options.track_running_stats()) {
    fresh.running_mean = torch::zeros({features});
    fresh.running_var = torch::ones({features});
    fresh.num_batches_tracked = torch::tensor(0, torch::kLong);
  }
  adopt(std::move(fresh));
}

void SyncBatchNormImpl::adopt(Tensors tensors) {
  const auto parameter = [&](const char* name, Tensor tensor) {
    const bool trained = tensor.defined() && tensor.requires_grad();
    return register_parameter(name, std::move(tensor), trained);
  };
  weight = parameter("weight", std::move(tensors.weight));
  bias = parameter("bias", std::move(tensors.bias));
  running_mean = register_buffer("running_mean", std::move(tensors.running_mean));
  running_var = register_buffer("running_var", std::move(tensors.running_var));
  num_batches_tracked = register_buffer("num_batches_tracked", std::move(tensors.num_batches_tracked));
}

Tensor SyncBatchNormImpl::forward(const Tensor& input) {
  if (input.dim() < 2)
    throw Error{fmt::format("SyncBatchNorm: expected input (N, C, ...), got {} dimension(s)", input.dim())};
  if (input.size(1) == 0) throw Error{"SyncBatchNorm: the input has no channels"};
  double momentum = options.momentum().value_or(0.0);
  if (is_training() && options.track_running_stats()) {
    num_batches_tracked += 1;
    if (!options.momentum()) momentum = 1.0 / num_batches_tracked.item<double>();
  }
  if (!is_training() || !group_ || group_->size() < 2)
    return torch::nn::functional::detail::batch_norm(input, running_mean, running_var, weight, bias,
                                                     is_training() || !options.track_running_stats(), momentum,
                                                     options.eps());
  const auto if_defined = [](const Tensor& tensor) { return tensor.defined() ? std::optional{tensor} : std::nullopt; };
  RunningStatistics running;
  if (options.track_running_stats()) running = {running_mean, running_var};
  return SyncBatchNormFunction::apply(input, if_defined(weight), if_defined(bias), running, options.eps(), momentum,
                                      *group_);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "torchup::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", ranks=" << (group_ ? group_->size() : 1) << ')';
}

SyncBatchNormConversion convert_sync_batchnorm(torch::nn::Module& model, const ProcessGroup& group) {
  SyncBatchNormConversion report;
  Converter{group, report}.convert_children(model, "");
  for (const std::string& name : report.left_alone)
    TORCH_WARN(
        "convert_sync_batchnorm: ", name,
        " stays an ordinary BatchNorm: it is a member that C++ cannot replace. Declare it as torchup::SyncBatchNorm.");
  return report;
}

}  // namespace torchup

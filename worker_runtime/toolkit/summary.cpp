#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/version.h>

#include <algorithm>
#include <iomanip>
#include <ostream>
#include <sstream>
#include <torchup/process_group.hpp>
#include <torchup/summary.hpp>
#include <unordered_set>

#include "build_config.hpp"

#ifdef TORCHUP_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/csrc/cuda/nccl.h>
#endif

namespace torchup {
namespace {

/// Adds the tensors that nobody has counted yet.
class Counter {
 public:
  explicit Counter(ModelSummary& total) : total_{total} {}

  ModelSummary::Part part(std::string name, const torch::nn::Module& module, bool recurse) {
    ModelSummary::Part part{std::move(name), module.name()};
    for (const torch::Tensor& parameter : module.parameters(recurse)) {
      if (!is_new(parameter)) continue;
      part.parameters += parameter.numel();
      part.bytes += static_cast<int64_t>(parameter.nbytes());
      if (parameter.requires_grad()) total_.trainable_parameters += parameter.numel();
    }
    for (const torch::Tensor& buffer : module.buffers(recurse)) {
      if (!is_new(buffer)) continue;
      part.buffers += buffer.numel();
      part.bytes += static_cast<int64_t>(buffer.nbytes());
    }
    total_.parameters += part.parameters;
    total_.buffers += part.buffers;
    total_.bytes += part.bytes;
    return part;
  }

 private:
  bool is_new(const torch::Tensor& tensor) {
    return tensor.defined() && seen_.insert(tensor.unsafeGetTensorImpl()).second;
  }

  ModelSummary& total_;
  std::unordered_set<const void*> seen_;
};

std::string in_bytes(int64_t bytes) {
  const auto mebibytes = static_cast<double>(bytes) / (1 << 20);
  std::ostringstream text;
  text << std::fixed << std::setprecision(mebibytes < 10 ? 2 : 1) << mebibytes << " MiB";
  return text.str();
}

#ifdef TORCHUP_CUDA
std::string cuda_and_nccl() {
  std::ostringstream text;
  if (const auto& hooks = at::detail::getCUDAHooks(); hooks.hasCUDART()) {
    const long cuda = hooks.versionCUDART();
    text << ", CUDA " << cuda / 1000 << '.' << cuda % 1000 / 10;
  }
  const std::uint64_t nccl = torch::cuda::nccl::version();  // 16 bits each: patch lowest
  text << ", NCCL " << (nccl >> 32) << '.' << (nccl >> 16 & 0xffff) << '.' << (nccl & 0xffff);
  return text.str();
}

std::string device_name(const torch::Device& device) {
  return device.is_cuda() ? std::string{" ("} + at::cuda::getDeviceProperties(device.index())->name + ')' : "";
}
#else
std::string cuda_and_nccl() { return ""; }
std::string device_name(const torch::Device&) { return ""; }
#endif

}  // namespace

ModelSummary summary(const torch::nn::Module& model) {
  ModelSummary total;
  Counter counter{total};
  ModelSummary::Part own = counter.part("", model, /*recurse=*/false);
  if (own.parameters + own.buffers > 0) total.parts.push_back(std::move(own));
  for (const auto& child : model.named_children())
    total.parts.push_back(counter.part(child.key(), *child.value(), /*recurse=*/true));
  return total;
}

std::ostream& operator<<(std::ostream& out, const ModelSummary& summary) {
  std::size_t name_width = 6, type_width = 0;
  for (const auto& part : summary.parts) {
    name_width = std::max(name_width, part.name.size());
    type_width = std::max(type_width, part.type.size());
  }
  const auto line = [&](const std::string& name, const std::string& type, int64_t parameters, int64_t buffers,
                        int64_t bytes) {
    std::ostringstream text;  // leaves the caller's flags alone
    text << std::left << std::setw(static_cast<int>(name_width)) << name << "  "
         << std::setw(static_cast<int>(type_width)) << type << std::right << "  " << std::setw(12) << parameters
         << " parameters  " << std::setw(8) << buffers << " buffers  " << std::setw(12) << in_bytes(bytes) << '\n';
    out << text.str();
  };
  for (const auto& part : summary.parts) line(part.name, part.type, part.parameters, part.buffers, part.bytes);
  line("total", "", summary.parameters, summary.buffers, summary.bytes);
  if (summary.trainable_parameters != summary.parameters)
    out << summary.trainable_parameters << " parameters are trained\n";
  return out;
}

std::string banner(const ProcessGroup& group) {
  std::ostringstream text;
  text << "torch " << TORCH_VERSION << cuda_and_nccl() << "; " << group.backend() << ", world size " << group.size()
       << ", " << group.local_size() << " on this node; " << group.device() << device_name(group.device()) << ", "
       << at::get_num_threads() << " threads";
  return text.str();
}

void print_banner(const ProcessGroup& group, std::ostream& out) {
  if (group.rank() == 0) out << banner(group) << std::endl;
}

}  // namespace torchup

#include "worker_runtime/ddp/flat_buffer.hpp"

#include <fmt/format.h>

#include <c10/util/hash.h>

#include "torchup/error.hpp"

namespace torchup {
namespace {

BucketKey key_of(const torch::Tensor& tensor) {
  const auto device = tensor.device();
  return {.dtype = static_cast<int>(tensor.scalar_type()),
          .device = static_cast<int>(device.type()) * 256 + device.index(),
          .hash = c10::get_hash(tensor.scalar_type(), device)};
}

}  // namespace

std::vector<PlannedTensor> planned_tensors(const std::vector<NamedParameter>& parameters,
                                           std::span<const std::size_t> order) {
  std::vector<PlannedTensor> planned;
  planned.reserve(parameters.size());
  for (std::size_t position = 0; position < parameters.size(); ++position) {
    const auto& tensor = parameters[order.empty() ? position : order[position]].tensor;
    planned.push_back(
        {.key = key_of(tensor), .bytes = tensor.numel() * static_cast<std::int64_t>(tensor.element_size())});
  }
  return planned;
}

void check_plan(const BucketPlan& plan, const std::vector<NamedParameter>& parameters) {
  std::vector<int> seen(parameters.size(), 0);
  for (std::size_t bucket = 0; bucket < plan.size(); ++bucket) {
    if (plan[bucket].empty()) throw Error{fmt::format("bucket layout: bucket {} is empty", bucket)};
    for (const auto index : plan[bucket]) {
      if (index >= parameters.size() || seen[index]++)
        throw Error{fmt::format("bucket layout: it is for another model: parameter {}{}", index,
                                index >= parameters.size()
                                    ? fmt::format(" does not exist (there are {})", parameters.size())
                                    : " is in two places")};
      if (!(key_of(parameters[index].tensor) == key_of(parameters[plan[bucket].front()].tensor)))
        throw Error{"bucket layout: parameters " + parameters[index].name + " and " +
                    parameters[plan[bucket].front()].name + " share a bucket, but not dtype and device"};
    }
  }
  for (std::size_t index = 0; index < seen.size(); ++index)
    if (!seen[index])
      throw Error{"bucket layout: it is for another model: parameter " + parameters[index].name + " is in no bucket"};
}

torch::Tensor view_like(const torch::Tensor& buffer, const torch::Tensor& parameter, std::int64_t offset) {
  if (parameter.is_non_overlapping_and_dense())
    return buffer.as_strided(parameter.sizes(), parameter.strides(), buffer.storage_offset() + offset);
  return buffer.narrow(0, offset, parameter.numel()).view(parameter.sizes());
}

bool is_flat_view(const torch::Tensor& tensor, const torch::Tensor& buffer) {
  return tensor.is_alias_of(buffer) && tensor.scalar_type() == buffer.scalar_type() && tensor.is_contiguous() &&
         tensor.storage_offset() == buffer.storage_offset() && tensor.numel() == buffer.numel() &&
         tensor.is_conj() == buffer.is_conj() && tensor.is_neg() == buffer.is_neg();
}

torch::Tensor real_view(const torch::Tensor& tensor) {
  return tensor.is_complex() ? torch::view_as_real(tensor) : tensor;
}

void refuse_complex(const torch::Tensor& gradients, const char* hook) {
  if (!gradients.is_complex()) return;
  throw Error{
      fmt::format("{} takes no complex gradients, and this bucket's are {}: train without this hook, or hold "
                  "the parameters as real and imaginary parts",
                  hook, c10::toString(gradients.scalar_type()))};
}

}  // namespace torchup

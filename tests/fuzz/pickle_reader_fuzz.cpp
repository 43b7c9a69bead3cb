// The pickle of a torch.save archive, from whomever: refused with our Error, or each tensor lies within its storage and
// all together within the reader's limits.
#include <algorithm>
#include <torchup/error.hpp>

#include "tests/fuzz/fuzz.hpp"
#include "worker_runtime/format/pickle_reader.hpp"

using namespace torchup;

namespace {

__extension__ using Wide = __int128;  // no product of two 64-bit numbers leaves it

/// The place of the tensor's last element among the storage's; none of a tensor without elements.
bool lies_within(const PickledTensor& tensor, std::uint64_t element_bytes) {
  if (std::ranges::any_of(tensor.sizes, [](std::int64_t size) { return size < 0; })) return false;
  if (std::ranges::count(tensor.sizes, 0) > 0) return true;
  Wide last = tensor.offset;
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    if (tensor.sizes[i] > 1 && tensor.strides[i] < 0) return false;
    last += Wide{tensor.sizes[i] - 1} * tensor.strides[i];
    if (last > Wide{1} << 62) return false;  // so that the sum stays in range too
  }
  return tensor.offset >= 0 && (last + 1) * static_cast<Wide>(element_bytes) <= static_cast<Wide>(tensor.storage_bytes);
}

std::uint64_t element_bytes(std::string_view dtype) {
  if (dtype == "complex64" || dtype.ends_with("64")) return 8;
  if (dtype.ends_with("32")) return 4;
  if (dtype.ends_with("16")) return 2;
  return 1;
}

void check(const std::map<std::string, PickledTensor>& tensors) {
  std::size_t name_bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    name_bytes += name.size();
    fuzz::require(tensor.sizes.size() == tensor.strides.size() && tensor.sizes.size() <= pickle_dimensions_max);
    fuzz::require(tensor.storage.size() <= pickle_key_bytes_max && !tensor.dtype.empty());
    fuzz::require(lies_within(tensor, element_bytes(tensor.dtype)));
  }
  fuzz::require(tensors.size() <= pickle_visits_max + 1 && name_bytes <= pickle_names_bytes_max);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    check(tensors_in_pickle({reinterpret_cast<const char*>(data), size}));
  } catch (const Error&) {  // refused
  }
  return 0;
}

// What the child says that asks NVML.
#include "launcher/core/machine/gpu_text.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static_cast<void>(lost_gpu_xid({reinterpret_cast<const char*>(data), size}, {}));
  const auto gpus = from_gpu_text({reinterpret_cast<const char*>(data), size});
  if (!gpus) return 0;
  fuzz::require(gpus->list.size() <= gpus_max);
  fuzz::require(from_gpu_text(to_gpu_text(*gpus)) == gpus);
  return 0;
}

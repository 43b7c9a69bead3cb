#include "build_config.hpp"
#include "torchup/error.hpp"
#include "worker_runtime/group/backend_factory.hpp"

#ifdef TORCHUP_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#if __has_include(<torch/csrc/distributed/c10d/nccl2/ProcessGroupNCCL.hpp>)
#include <torch/csrc/distributed/c10d/nccl2/ProcessGroupNCCL.hpp>
#define TORCHUP_HAS_NCCL2
#endif
#endif

namespace torchup {

#ifdef TORCHUP_CUDA

namespace {

/// In this thread CUDA may be asked what it refuses, and ends a capture for, while another captures a graph.
class RelaxedCapture {
 public:
  RelaxedCapture() { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void exchange() {
    // As with NCCL below: the runtime that libtorch_cuda has loaded.
    using Exchange = cudaError_t (*)(cudaStreamCaptureMode*);
    const auto function = reinterpret_cast<Exchange>(dlsym(RTLD_DEFAULT, "cudaThreadExchangeStreamCaptureMode"));
    if (function) static_cast<void>(function(&mode_));
  }

  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  ///< the other one: this thread's and ours change places
};

/// c10d's options embed ncclConfig_t, whose size follows nccl.h: another library than the header's corrupts memory.
void check_nccl_version() {
  // libtorch_cuda has loaded the library; linking it ourselves would bring in the system's instead.
  using GetVersion = ncclResult_t (*)(int*);
  const auto get_version = reinterpret_cast<GetVersion>(dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  int version = 0;
  if (!get_version || get_version(&version) != ncclSuccess)
    throw Error{
        "backend nccl: the NCCL library was not found in this process; reinstall the torch wheel with its packages"};
  if (version != NCCL_VERSION_CODE)
    throw Error{
        fmt::format("backend nccl: built with the header of NCCL {}, but library {} is loaded; is another libnccl.so.2 "
                    "on LD_LIBRARY_PATH?",
                    NCCL_VERSION_CODE, version)};
}

void set_where_unset(const char* name, const char* value) { setenv(name, value, 0); }

}  // namespace

VisibleGpus visible_gpus() {
  return {.count = c10::cuda::device_count(), .chosen = environment_variable("CUDA_VISIBLE_DEVICES")};
}

std::string gpu_identity(const torch::Device& device) {
  if (environment_variable("NCCL_MULTI_RANK_GPU_ENABLE") == "1" || environment_variable("NCCL_HOSTID")) return "";
  const auto& bytes = at::cuda::getDeviceProperties(device.index())->uuid.bytes;
  std::string text = "GPU-";
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

void bind_gpu(const torch::Device& device) { c10::cuda::set_device(device.index()); }

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendPlan& plan) {
  check_nccl_version();
  // An asynchronous NCCL error ends the process, so that the launcher sees it; said here since C++ users rarely set it.
  set_where_unset("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3");
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = plan.timeout;
  options->group_name = plan.group_name;
  options->global_ranks_in_group.assign(plan.global_ranks.begin(), plan.global_ranks.end());
  c10::intrusive_ptr<c10d::Backend> backend;
#ifdef TORCHUP_HAS_NCCL2
  const char* use_nccl2 = std::getenv("TORCH_DIST_USE_NCCL2");
  if (!use_nccl2 || std::string_view{use_nccl2} != "0")
    backend = c10::make_intrusive<c10d::nccl2::ProcessGroupNCCL>(plan.store, plan.rank, plan.size, options);
#endif
  if (!backend) backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(plan.store, plan.rank, plan.size, options);
  backend->setBoundDeviceId(plan.device);
  backend->eagerConnectSingleDevice(plan.device);  // a missing peer shows here and not in the first backward
  return backend;
}

/// It asks CUDA of collectives that run, which must not end the capture of a graph in another thread.
std::string nccl_recorder_text() {
  const RelaxedCapture while_asked;
  return c10d::dump_nccl_trace_json(true, false);
}

#else

VisibleGpus visible_gpus() { return {}; }
void bind_gpu(const torch::Device&) {}
std::string gpu_identity(const torch::Device&) { return ""; }
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendPlan&) {
  throw Error{"backend nccl: this library was built without CUDA; build it with a CUDA wheel of torch, or use gloo"};
}
std::string nccl_recorder_text() { return ""; }

#endif

}  // namespace torchup

#include "launcher/os/machine/nvml.hpp"

#include <fmt/format.h>

#include <dlfcn.h>

#include <array>
#include <cstdio>

namespace torchup {
namespace {

// The part of NVML's binary interface that is used here, stable since driver 450. Written down so that the build needs
// no CUDA toolkit. Source: NVIDIA, NVML API Reference.
using Status = int;
constexpr Status success = 0;
using DeviceHandle = struct NvmlDevice*;
struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned device_id;
  unsigned subsystem_id;
  char bus_id[32];
};

class Library {
 public:
  explicit Library(const std::string& name) : handle_{dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)} {
    if (!handle_) problem_ = dlerror();
  }

  /// Looks a function up; the first that is missing is the problem.
  template <class Function>
  void find(Function*& function, const char* name) {
    function = handle_ ? reinterpret_cast<Function*>(dlsym(handle_, name)) : nullptr;
    if (!function && problem_.empty()) problem_ = std::string{"NVML has no function "} + name;
  }
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  void* handle_;  // never closed: the process ends soon
  std::string problem_;
};

struct Nvml {
  explicit Nvml(Library& library) {
    library.find(init, "nvmlInit_v2");
    library.find(error_string, "nvmlErrorString");
    library.find(get_count, "nvmlDeviceGetCount_v2");
    library.find(get_handle, "nvmlDeviceGetHandleByIndex_v2");
    library.find(get_uuid, "nvmlDeviceGetUUID");
    library.find(get_name, "nvmlDeviceGetName");
    library.find(get_pci, "nvmlDeviceGetPciInfo_v3");
    library.find(get_mig_mode, "nvmlDeviceGetMigMode");
    library.find(get_mig_max, "nvmlDeviceGetMaxMigDeviceCount");
    library.find(get_mig_handle, "nvmlDeviceGetMigDeviceHandleByIndex");
  }

  Status (*init)();
  const char* (*error_string)(Status);
  Status (*get_count)(unsigned*);
  Status (*get_handle)(unsigned, DeviceHandle*);
  Status (*get_uuid)(DeviceHandle, char*, unsigned);
  Status (*get_name)(DeviceHandle, char*, unsigned);
  Status (*get_pci)(DeviceHandle, PciInfo*);
  Status (*get_mig_mode)(DeviceHandle, unsigned* current, unsigned* pending);
  Status (*get_mig_max)(DeviceHandle, unsigned*);
  Status (*get_mig_handle)(DeviceHandle, unsigned, DeviceHandle*);
};

using Text = std::array<char, 128>;

std::vector<std::string> mig_instances(const Nvml& nvml, DeviceHandle gpu) {
  std::vector<std::string> instances;
  unsigned most = 0;
  if (nvml.get_mig_max(gpu, &most) != success) return instances;
  for (unsigned index = 0; index < most; ++index) {
    DeviceHandle instance{};
    Text uuid{};
    if (nvml.get_mig_handle(gpu, index, &instance) != success) continue;  // an empty slot
    if (nvml.get_uuid(instance, uuid.data(), uuid.size()) == success) instances.emplace_back(uuid.data());
  }
  return instances;
}

}  // namespace

Gpus ask_nvml(const std::string& library_name) {
  Library library{library_name};
  const Nvml nvml{library};
  if (!library.problem().empty()) return {{}, library.problem()};

  const auto failed = [&nvml](const char* what, Status status) {
    return Gpus{{}, std::string{what} + ": " + nvml.error_string(status)};
  };
  unsigned count = 0;
  if (const Status status = nvml.init(); status != success) return failed("NVML does not start", status);
  if (const Status status = nvml.get_count(&count); status != success) return failed("NVML cannot count GPUs", status);

  Gpus gpus;
  for (unsigned index = 0; index < count; ++index) {
    DeviceHandle handle{};
    Text uuid{};
    Text name{};
    PciInfo pci{};
    Status status = nvml.get_handle(index, &handle);
    if (status == success) status = nvml.get_uuid(handle, uuid.data(), uuid.size());
    if (status == success) status = nvml.get_name(handle, name.data(), name.size());
    if (status == success) status = nvml.get_pci(handle, &pci);
    // A GPU that has fallen off the bus shifts the numbers of those behind it: better no answer than a wrong one.
    if (status != success) return failed(fmt::format("NVML does not know GPU {}", index).c_str(), status);

    Gpu gpu;
    gpu.uuid = uuid.data();
    gpu.name = name.data();
    Text folder{};
    std::snprintf(folder.data(), folder.size(), "%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
    gpu.pci = folder.data();
    unsigned current = 0;
    unsigned pending = 0;
    gpu.mig_enabled = nvml.get_mig_mode(handle, &current, &pending) == success && current == 1;
    if (gpu.mig_enabled) gpu.mig_instances = mig_instances(nvml, handle);
    gpus.list.push_back(std::move(gpu));
  }
  return gpus;
}

}  // namespace torchup

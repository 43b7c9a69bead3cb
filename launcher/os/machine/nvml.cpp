#include "launcher/os/machine/nvml.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "launcher/core/machine/gpu_text.hpp"
#include "launcher/os/io/read_text.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {
namespace {

// The part of NVML's binary interface that is used here, stable since driver 450. Written down so that the build needs
// no CUDA toolkit. Source: NVIDIA, NVML API Reference.
using Status = int;
constexpr Status success = 0;
constexpr Status gpu_is_lost = 15;
constexpr int uncorrected = 1;   // NVML_MEMORY_ERROR_TYPE_UNCORRECTED
constexpr int since_driver = 0;  // NVML_VOLATILE_ECC
// NVML_CLOCKS_EVENT_REASON_…
constexpr unsigned long long hardware_slowdown = 0x8, power_brake = 0x80;
constexpr unsigned long long software_thermal = 0x20, hardware_thermal = 0x40;
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

struct MemoryInfo {
  unsigned long long total, free, used;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
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
  /// Likewise, of one that some drivers lack.
  template <class Function>
  void try_to_find(Function*& function, const char* name) {
    function = handle_ ? reinterpret_cast<Function*>(dlsym(handle_, name)) : nullptr;
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
    library.try_to_find(get_driver, "nvmlSystemGetDriverVersion");
    library.try_to_find(get_memory, "nvmlDeviceGetMemoryInfo");
    library.try_to_find(get_remapped, "nvmlDeviceGetRemappedRows");
    library.try_to_find(get_retired, "nvmlDeviceGetRetiredPagesPendingStatus");
    library.try_to_find(get_ecc, "nvmlDeviceGetTotalEccErrors");
    library.try_to_find(get_slowdown, "nvmlDeviceGetCurrentClocksThrottleReasons");
    library.try_to_find(get_processes, "nvmlDeviceGetComputeRunningProcesses_v3");
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
  // May be null.
  Status (*get_driver)(char*, unsigned);
  Status (*get_memory)(DeviceHandle, MemoryInfo*);
  Status (*get_remapped)(DeviceHandle, unsigned* corrected, unsigned* not_corrected, unsigned* pending,
                         unsigned* failed);
  Status (*get_retired)(DeviceHandle, int* pending);
  Status (*get_ecc)(DeviceHandle, int type, int counter, unsigned long long*);
  Status (*get_slowdown)(DeviceHandle, unsigned long long*);
  Status (*get_processes)(DeviceHandle, unsigned* count, ProcessInfo*);
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

std::int64_t as_signed(unsigned long long number) {
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  return number > static_cast<unsigned long long>(most) ? most : static_cast<std::int64_t>(number);
}

std::vector<GpuHolder> holders_of(const Nvml& nvml, DeviceHandle gpu) {
  std::vector<GpuHolder> holders;
  std::array<ProcessInfo, 128> list{};
  auto count = static_cast<unsigned>(list.size());
  if (!nvml.get_processes || nvml.get_processes(gpu, &count, list.data()) != success) return holders;
  constexpr unsigned long long not_available = ~0ULL;
  for (const ProcessInfo& each : std::span{list}.first(std::min<std::size_t>(count, list.size()))) {
    const std::string name = read_text(fmt::format("/proc/{}/comm", each.pid), 64);
    holders.push_back(
        {each.pid, name.substr(0, name.find('\n')), each.bytes == not_available ? 0 : as_signed(each.bytes)});
  }
  return holders;
}

/// What is not told stays as it is.
void look_at(const Nvml& nvml, DeviceHandle gpu, GpuFacts& facts) {
  if (MemoryInfo memory{}; nvml.get_memory && nvml.get_memory(gpu, &memory) == success) {
    facts.memory_bytes = as_signed(memory.total);
    facts.free_bytes = as_signed(memory.free);
  }
  facts.holders = holders_of(nvml, gpu);
  unsigned corrected = 0, not_corrected = 0, pending = 0, failed = 0;
  if (nvml.get_remapped && nvml.get_remapped(gpu, &corrected, &not_corrected, &pending, &failed) == success)
    facts.remap_pending = pending != 0;
  if (int retires = 0; nvml.get_retired && nvml.get_retired(gpu, &retires) == success)
    facts.retirement_pending = retires != 0;
  if (unsigned long long errors = 0; nvml.get_ecc && nvml.get_ecc(gpu, uncorrected, since_driver, &errors) == success)
    facts.uncorrected_ecc = as_signed(errors);
  if (unsigned long long why = 0; nvml.get_slowdown && nvml.get_slowdown(gpu, &why) == success) {
    facts.thermal_slowdown = (why & (software_thermal | hardware_thermal)) != 0;
    facts.hardware_slowdown = (why & (hardware_slowdown | power_brake)) != 0;
  }
}

/// The kernel's log, or its last part; empty where we may not read it.
std::string kernel_log() {
  constexpr std::size_t bytes_max = std::size_t{1} << 20;
  const UniqueFd file{::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  std::string text;
  std::array<char, 8192> record{};  // one at a time
  while (file) {
    const ssize_t size = ::read(file.get(), record.data(), record.size());
    if (size < 0 && errno == EPIPE) continue;  // overwritten before we came
    if (size <= 0) break;
    text.append(record.data(), static_cast<std::size_t>(size));
    if (text.size() > bytes_max) text.erase(0, text.size() - bytes_max / 2);
  }
  return text;
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
  if (Text version{}; nvml.get_driver && nvml.get_driver(version.data(), version.size()) == success)
    gpus.driver = version.data();
  for (unsigned index = 0; index < count; ++index) {
    DeviceHandle handle{};
    Text uuid{};
    Text name{};
    PciInfo pci{};
    Status status = nvml.get_handle(index, &handle);
    if (status == success) status = nvml.get_uuid(handle, uuid.data(), uuid.size());
    if (status == success) status = nvml.get_name(handle, name.data(), name.size());
    if (status == success) status = nvml.get_pci(handle, &pci);
    GpuFacts& facts = gpus.facts.emplace_back();
    facts.index = static_cast<int>(index);
    // A GPU that has fallen off the bus shifts the numbers of those behind it: better no answer than a wrong one.
    if (status != success) {
      Gpus none = failed(fmt::format("NVML does not know GPU {}", index).c_str(), status);
      if (status != gpu_is_lost) return none;
      facts.lost = true;
      if (gpus.problem.empty()) gpus.problem = std::move(none.problem);
      continue;
    }
    facts.name = name.data();
    look_at(nvml, handle, facts);

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
  if (gpus.problem.empty()) return gpus;
  const std::optional<int> xid = lost_gpu_xid(kernel_log(), gpus.list);
  for (GpuFacts& facts : gpus.facts) {
    if (facts.lost) facts.xid = xid;
  }
  gpus.list.clear();
  return gpus;
}

}  // namespace torchup

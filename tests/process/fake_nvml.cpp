// A stand-in for libnvidia-ml.so.1 with the functions that the launcher uses. FAKE_NVML chooses what it plays:
// two (GPUs, the second one split), whole (neither is), init_fails, lost, hangs, dies, ill (the first one: memory is
// held by pid 1, errors, slow). FAKE_NVML_FILE: a file that has the word instead, and may get another one.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Pci {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

bool plays(const char* scene) {
  const char* chosen = std::getenv("FAKE_NVML");
  static char written[64];
  if (const char* const path = std::getenv("FAKE_NVML_FILE")) {
    std::FILE* const file = std::fopen(path, "r");
    if (file) {
      if (std::fscanf(file, "%63s", written) == 1) chosen = written;
      std::fclose(file);
    }
  }
  return chosen && std::strcmp(chosen, scene) == 0;
}

// Handles: 1 and 2 are GPUs, 10 + slot the instances of the second.
long number(void* handle) { return reinterpret_cast<long>(handle); }

}  // namespace

extern "C" {

int nvmlInit_v2() {
  std::puts("a library that talks on stdout");
  if (plays("init_fails")) return 18;
  if (plays("dies")) std::abort();
  while (plays("hangs")) pause();
  return 0;
}

const char* nvmlErrorString(int status) { return status == 18 ? "Driver/library version mismatch" : "GPU is lost"; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  if (index == 1 && plays("lost")) return 15;
  *handle = reinterpret_cast<void*>(static_cast<long>(index) + 1);
  return 0;
}

int nvmlDeviceGetUUID(void* handle, char* text, unsigned size) {
  if (number(handle) >= 10)
    std::snprintf(text, size, "MIG-%ld", number(handle) - 10);
  else
    std::snprintf(text, size, number(handle) == 1 ? "GPU-00000000-aaaa" : "GPU-00000000-bbbb");
  return 0;
}

int nvmlDeviceGetName(void* handle, char* text, unsigned size) {
  std::snprintf(text, size, "Fake GPU %ld", number(handle) - 1);
  return 0;
}

int nvmlDeviceGetPciInfo_v3(void* handle, Pci* pci) {
  *pci = {};
  pci->bus = 0x19 + static_cast<unsigned>(number(handle));
  pci->device = 2;
  return 0;
}

int nvmlDeviceGetMigMode(void* handle, unsigned* current, unsigned* pending) {
  if (number(handle) == 1 || plays("whole") || plays("ill")) return 3;  // not supported
  *current = *pending = 1;
  return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(void*, unsigned* count) {
  *count = 7;
  return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void*, unsigned slot, void** handle) {
  if (slot != 1 && slot != 3) return 6;  // empty
  *handle = reinterpret_cast<void*>(10L + slot);
  return 0;
}

int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  std::snprintf(text, size, "570.86.15");
  return 0;
}

int nvmlDeviceGetMemoryInfo(void* handle, unsigned long long* total_free_used) {
  const bool held = number(handle) == 1 && plays("ill");
  total_free_used[0] = 80ull << 30;
  total_free_used[1] = (held ? 20ull : 79ull) << 30;
  total_free_used[2] = total_free_used[0] - total_free_used[1];
  return 0;
}

struct Process {
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, Process* list) {
  *count = 1;
  list[0] = {1, 60ull << 30, 0, 0};
  return 0;
}

int nvmlDeviceGetRemappedRows(void* handle, unsigned*, unsigned*, unsigned* pending, unsigned*) {
  *pending = number(handle) == 1 && plays("ill") ? 1 : 0;
  return 0;
}

int nvmlDeviceGetTotalEccErrors(void* handle, int type, int counter, unsigned long long* errors) {
  *errors = number(handle) == 1 && plays("ill") && type == 1 && counter == 0 ? 3 : 0;
  return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void* handle, unsigned long long* reasons) {
  *reasons = number(handle) == 1 && plays("ill") ? 0x40 : 0x1;  // heat; idle
  return 0;
}
}

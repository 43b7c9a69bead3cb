// A stand-in for libnvidia-ml.so.1 with the functions that the launcher uses. FAKE_NVML chooses what it plays:
// two (GPUs, the second one split), whole (neither is), init_fails, lost, hangs, dies.

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
  if (number(handle) == 1 || plays("whole")) return 3;  // not supported
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
}

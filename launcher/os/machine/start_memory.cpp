#include "launcher/os/machine/start_memory.hpp"

#include <link.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace torchup {
namespace {

/// Of one program or library: those of its pages into which nobody writes. The kernel refuses its own (the vDSO).
int give_back_pages(dl_phdr_info* object, std::size_t, void*) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (int at = 0; at < object->dlpi_phnum; ++at) {
    const ElfW(Phdr)& part = object->dlpi_phdr[at];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_W) != 0) continue;
    const std::uintptr_t begin = (object->dlpi_addr + part.p_vaddr) & ~(page - 1);
    const std::uintptr_t end = object->dlpi_addr + part.p_vaddr + part.p_memsz;
    ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
  return 0;
}

}  // namespace

void give_back_start_memory() {
  ::malloc_trim(0);
  ::dl_iterate_phdr(give_back_pages, nullptr);
}

void StartMemory::workers_started() {
  if (waits_) return;
  waits_ = true;
  timer_.expires_after(start_memory_kept);
  timer_.async_wait([](boost::system::error_code error) {
    if (!error) give_back_start_memory();
  });
}

}  // namespace torchup

// The page that a worker shares with its agent: whatever is there, what is read of it stays within its limits.
#include "rendezvous/base/worker_page.hpp"

#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  (void)parse_worker_page_address({reinterpret_cast<const char*>(data), size});
  const std::span bytes{reinterpret_cast<const std::byte*>(data), size};
  if (const auto progress = read_worker_page(bytes, 77)) {
    fuzz::require(progress->beats > 0 && progress->first_ns >= 0 && progress->total_waited_ns >= 0);
  }
  const auto hook = read_hook_page(bytes);
  if (!hook) return 0;
  fuzz::require(hook->process > 0 && hook->process <= 0x7fff'ffff);
  fuzz::require(hook->python != 0 || hook->helper != 0 || hook->ending_at_ns != 0);
  fuzz::require(hook->python != 0 || is_worker_page_open(bytes, hook->process));
  fuzz::require(hook->signal >= 0 && hook->signal <= 64 && hook->helper >= 0 && hook->helper <= 0x7fff'ffff);
  for (const auto time : {hook->raised_at_ns, hook->collectives_at_ns, hook->thread_raised_at_ns, hook->ending_at_ns}) {
    fuzz::require(time >= 0);
  }
  fuzz::require(hook->thread_raised.size() <= worker_page::thread_raised_bytes);
  fuzz::require(hook->thread_raised.find('\0') == std::string::npos);
  return 0;
}

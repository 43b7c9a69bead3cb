#include "worker_runtime/place/worker_page.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <ctime>

#include "rendezvous/base/worker_page.hpp"

namespace torchup {

namespace {

namespace wp = worker_page;

std::int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

template <class T>
void put(std::byte* memory, T value) {
  // Release: what was written before is seen before. The page is aligned, and so is every number in it.
  std::atomic_ref<T>{*reinterpret_cast<T*>(memory)}.store(value, std::memory_order_release);
}

// Waiting is counted for the process; the page takes part once it is open.
std::atomic<std::int64_t> waited_ns{0};
std::atomic<int> waiters{0};
std::atomic<std::int64_t> waiting_since_ns{0};  // of the first of them
std::atomic<int> savers{0};
std::atomic<std::byte*> open_page{nullptr};

bool is_our_page(const WorkerPageAddress& address) {
  constexpr int seals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW;  // an unsealed page could be cut under us: SIGBUS
  struct stat status {};
  return address.pid == ::getpid() && ::fstat(address.fd, &status) == 0 && status.st_dev == address.device &&
         status.st_ino == address.inode && status.st_size >= static_cast<off_t>(worker_page_bytes) &&
         (::fcntl(address.fd, F_GET_SEALS) & seals) == seals;
}

}  // namespace

std::unique_ptr<WorkerPage> WorkerPage::open() {
  const char* const text = std::getenv(worker_page_variable);
  if (text == nullptr) return nullptr;
  const auto address = parse_worker_page_address(text);
  ::unsetenv(worker_page_variable);
  if (!address || !is_our_page(*address)) return nullptr;
  void* const memory = ::mmap(nullptr, worker_page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, address->fd, 0);
  ::close(address->fd);  // the mapping stays; nothing is left that a child could inherit
  if (memory == MAP_FAILED) return nullptr;
  return std::unique_ptr<WorkerPage>{new WorkerPage{static_cast<std::byte*>(memory)}};
}

WorkerPage::WorkerPage(std::byte* memory) : memory_{memory} {
  put(memory_ + wp::pid, std::int64_t{::getpid()});
  put(memory_ + wp::magic, wp::magic_value);
  open_page = memory_;
}

WorkerPage::~WorkerPage() {
  open_page = nullptr;
  ::munmap(memory_, worker_page_bytes);
}

void WorkerPage::beat(std::int64_t step) {
  const std::int64_t now = monotonic_ns();
  const std::uint64_t number = ++beats_;
  std::byte* const slot = memory_ + wp::beats + (number % 2) * wp::beat_bytes;
  put(slot + wp::beat_number, std::uint64_t{0});
  put(slot + wp::beat_step, step);
  put(slot + wp::beat_time, now);
  put(slot + wp::beat_took, last_beat_ns_ == 0 ? std::int64_t{0} : now - last_beat_ns_);
  put(slot + wp::beat_waited, waited_ns.exchange(0, std::memory_order_relaxed));
  put(slot + wp::beat_number, number);
  put(memory_ + wp::newest, number);
  last_beat_ns_ = now;
}

bool WorkerPage::drain_requested() const {
  return std::atomic_ref<std::uint64_t>{*reinterpret_cast<std::uint64_t*>(memory_ + wp::drain)}.load(
             std::memory_order_acquire) != 0;
}

WaitingForOthers::WaitingForOthers() {
  if (waiters.fetch_add(1, std::memory_order_relaxed) > 0) return;
  const std::int64_t now = monotonic_ns();
  waiting_since_ns.store(now, std::memory_order_relaxed);
  if (std::byte* const page = open_page) put(page + wp::waiting_since, now);
}

WaitingForOthers::~WaitingForOthers() {
  // Whoever is the last ends it, whichever was the first.
  const std::int64_t since = waiting_since_ns.load(std::memory_order_relaxed);
  if (waiters.fetch_sub(1, std::memory_order_relaxed) > 1) return;
  waited_ns.fetch_add(monotonic_ns() - since, std::memory_order_relaxed);
  if (std::byte* const page = open_page) put(page + wp::waiting_since, std::int64_t{0});
}

SavingState::SavingState() {
  if (savers.fetch_add(1, std::memory_order_relaxed) > 0) return;
  if (std::byte* const page = open_page) put(page + wp::saving_since, monotonic_ns());
}

SavingState::~SavingState() {
  // Whoever is the last ends it, whichever was the first.
  if (savers.fetch_sub(1, std::memory_order_relaxed) > 1) return;
  if (std::byte* const page = open_page) put(page + wp::saving_since, std::int64_t{0});
}

}  // namespace torchup

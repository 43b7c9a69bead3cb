#include "worker_runtime/place/worker_page.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
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

template <class T>
T get(std::byte* memory) {
  return std::atomic_ref<T>{*reinterpret_cast<T*>(memory)}.load(std::memory_order_acquire);
}

// Waiting is counted for the process; the page takes part once it is open.
std::atomic<std::int64_t> waited_ns{0};
std::atomic<int> waiters{0};
std::atomic<std::int64_t> waiting_since_ns{0};  // of the first of them
std::atomic<int> savers{0};
std::atomic<std::byte*> open_page{nullptr};

/// How much of it there is for us: the page, and what follows it; of an older agent's the page alone. 0: it is not
/// ours.
std::size_t bytes_of_page(const WorkerPageAddress& address) {
  constexpr int seals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW;  // an unsealed page could be cut under us: SIGBUS
  struct stat status {};
  const bool ours = address.pid == ::getpid() && ::fstat(address.fd, &status) == 0 && status.st_dev == address.device &&
                    status.st_ino == address.inode && status.st_size >= static_cast<off_t>(worker_page_bytes) &&
                    (::fcntl(address.fd, F_GET_SEALS) & seals) == seals;
  if (!ours) return 0;
  return status.st_size >= static_cast<off_t>(worker_memory_bytes) ? worker_memory_bytes : worker_page_bytes;
}

}  // namespace

std::unique_ptr<WorkerPage> WorkerPage::open() {
  const char* const text = std::getenv(worker_page_variable);
  if (text == nullptr) return nullptr;
  const auto address = parse_worker_page_address(text);
  ::unsetenv(worker_page_variable);
  const std::size_t bytes = address ? bytes_of_page(*address) : 0;
  if (bytes == 0) return nullptr;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, address->fd, 0);
  ::close(address->fd);  // the mapping stays; nothing is left that a child could inherit
  if (memory == MAP_FAILED) return nullptr;
  return std::unique_ptr<WorkerPage>{new WorkerPage{static_cast<std::byte*>(memory), bytes}};
}

WorkerPage::WorkerPage(std::byte* memory, std::size_t bytes) : memory_{memory}, bytes_{bytes} {
  put(memory_ + wp::pid, std::int64_t{::getpid()});
  put(memory_ + wp::magic, wp::magic_value);
  open_page = memory_;
}

WorkerPage::~WorkerPage() {
  open_page = nullptr;
  ::munmap(memory_, bytes_);
}

void WorkerPage::beat(std::int64_t step) {
  const std::int64_t now = monotonic_ns();
  const std::uint64_t number = ++beats_;
  std::byte* const slot = memory_ + wp::beats + (number % 2) * wp::beat_bytes;
  put(slot + wp::beat_number, std::uint64_t{0});
  put(slot + wp::beat_step, step);
  put(slot + wp::beat_time, now);
  put(slot + wp::beat_took, last_beat_ns_ == 0 ? std::int64_t{0} : now - last_beat_ns_);
  const std::int64_t waited = waited_ns.exchange(0, std::memory_order_relaxed);
  put(slot + wp::beat_waited, waited);
  if (number == 1) {
    put(memory_ + wp::first_step, step);
    put(memory_ + wp::first_time, now);
  } else {
    put(memory_ + wp::total_waited, get<std::int64_t>(memory_ + wp::total_waited) + waited);
  }
  put(slot + wp::beat_number, number);
  put(memory_ + wp::newest, number);
  last_beat_ns_ = now;
}

bool WorkerPage::drain_requested() const { return get<std::uint64_t>(memory_ + wp::drain) != 0; }

void WorkerPage::begin_answering(pid_t thread) { put(memory_ + wp::helper, static_cast<std::uint64_t>(thread)); }

void WorkerPage::count_collectives(std::uint64_t sum) {
  if (get<std::uint64_t>(memory_ + wp::collectives) == sum) return;
  put(memory_ + wp::collectives, sum);
  put(memory_ + wp::collectives_at, monotonic_ns());
}

bool WorkerPage::put_answer(std::string_view answer) {
  if (bytes_ < worker_memory_bytes || answer.size() > worker_answer_bytes) return false;
  std::memcpy(memory_ + worker_answer_at, answer.data(), answer.size());
  return true;
}

void WorkerPage::end_answering() {
  put(memory_ + wp::ending_at, monotonic_ns());
  put(memory_ + wp::helper, std::uint64_t{0});
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

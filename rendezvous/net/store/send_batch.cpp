#include "rendezvous/net/store/send_batch.hpp"

#include <fmt/format.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <string>

namespace torchup {
namespace {

constexpr unsigned ring_size = SendBatch::size_max;
static_assert((ring_size & (ring_size - 1)) == 0, "the kernel rounds up, and counts round and round");
/// Of one message: the kernel tells in an int how many bytes it took.
constexpr std::size_t bytes_taken_max = std::size_t{1} << 30;

unsigned* counter(char* queues, unsigned offset) { return reinterpret_cast<unsigned*>(queues + offset); }

}  // namespace

void SendBatch::Unmap::operator()(char* begin) const { ::munmap(begin, bytes); }

Result<SendBatch::Mapping> SendBatch::map(std::size_t offset, std::size_t bytes) const {
  void* const begin =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring_.get(), static_cast<off_t>(offset));
  if (begin == MAP_FAILED) return system_error("mmap of an io_uring");
  ::madvise(begin, bytes, MADV_DONTFORK);  // a child would write into what its parent sends
  return Mapping{static_cast<char*>(begin), Unmap{bytes}};
}

Result<SendBatch> SendBatch::make() {
  io_uring_params setup{};
  // One thread's own, whose work is never done behind its back; a message that fails does not hold up the others.
  setup.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SUBMIT_ALL;
  SendBatch batch{UniqueFd{static_cast<int>(::syscall(__NR_io_uring_setup, ring_size, &setup))}};
  if (!batch.ring_) return system_error("io_uring_setup");
  if (!(setup.features & IORING_FEAT_SINGLE_MMAP)) return system_error(ENOTSUP, "an io_uring with two queues");
  auto queues = batch.map(IORING_OFF_SQ_RING, std::max(setup.sq_off.array + setup.sq_entries * sizeof(unsigned),
                                                       setup.cq_off.cqes + setup.cq_entries * sizeof(io_uring_cqe)));
  if (!queues) return queues.error();
  auto messages = batch.map(IORING_OFF_SQES, setup.sq_entries * sizeof(io_uring_sqe));
  if (!messages) return messages.error();
  char* const begin = queues->get();
  batch.queues_ = std::move(*queues);
  batch.message_memory_ = std::move(*messages);
  batch.messages_ = reinterpret_cast<io_uring_sqe*>(batch.message_memory_.get());
  batch.told_ = reinterpret_cast<const io_uring_cqe*>(begin + setup.cq_off.cqes);
  batch.taken_ = counter(begin, setup.sq_off.head);
  batch.end_ = counter(begin, setup.sq_off.tail);
  batch.told_begin_ = counter(begin, setup.cq_off.head);
  batch.told_end_ = counter(begin, setup.cq_off.tail);
  batch.told_mask_ = setup.cq_entries - 1;
  for (unsigned i = 0; i < ring_size; ++i) counter(begin, setup.sq_off.array)[i] = i;
  batch.results_.reserve(size_max);
  if (const auto tried = batch.try_out(); !tried) return tried.error();
  return batch;
}

/// Kernels before 6.1 lose count of a message that was taken in part; what else calls itself Linux may wait for room.
Result<> SendBatch::try_out() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return system_error("socketpair");
  const UniqueFd one{ends[0]}, other{ends[1]};
  const int little = 1;  // the kernel makes a few KiB of it
  ::setsockopt(one.get(), SOL_SOCKET, SO_SNDBUF, &little, sizeof little);
  const std::string much(std::size_t{256} << 10, 'x');
  add(one.get(), much);
  add(one.get(), "no room");
  add(other.get(), "room");
  const std::span<const int> results = send();
  std::array<char, 8> came{};
  const auto arrived = ::recv(one.get(), came.data(), came.size(), MSG_DONTWAIT);
  const bool in_part = results[0] > 0 && results[0] < static_cast<int>(much.size());
  if (in_part && results[1] == -EAGAIN && results[2] == 4 && arrived == 4) return {};
  return system_error(ENOTSUP, fmt::format("messages of {}, 7 and 4 bytes by io_uring, the first two without room: {}, "
                                           "{}, {}; {} arrived",
                                           much.size(), results[0], results[1], results[2], arrived));
}

void SendBatch::add(int socket, std::string_view bytes) {
  if (std::exchange(sent_, false)) results_.clear();
  bytes = bytes.substr(0, bytes_taken_max);
  io_uring_sqe& message = messages_[next_++ % ring_size];
  message = {};
  message.opcode = IORING_OP_SEND;
  message.flags = IOSQE_CQE_SKIP_SUCCESS;
  message.fd = socket;
  message.addr = reinterpret_cast<std::uint64_t>(bytes.data());
  message.len = static_cast<std::uint32_t>(bytes.size());
  message.msg_flags = MSG_NOSIGNAL | MSG_DONTWAIT | MSG_WAITALL;  // not whole is no success, and so not passed over
  message.user_data = results_.size();
  results_.push_back(static_cast<int>(bytes.size()));
}

std::span<const int> SendBatch::send() {
  if (std::exchange(sent_, true)) return {};
  const unsigned count = static_cast<unsigned>(results_.size());
  std::atomic_ref{*end_}.store(next_, std::memory_order_release);
  for (unsigned left = count; left > 0;) {
    const long taken = ::syscall(__NR_io_uring_enter, ring_.get(), left, 0, 0, nullptr, 0);
    if (taken <= 0) break;
    left -= std::min(left, static_cast<unsigned>(taken));
  }
  // What the kernel has not taken now it never gets to see.
  const unsigned begin = next_ - count, end = std::atomic_ref{*taken_}.load(std::memory_order_acquire);
  next_ = end;
  std::atomic_ref{*end_}.store(end, std::memory_order_release);
  std::fill(results_.begin() + (end - begin), results_.end(), -EINTR);
  unsigned at = *told_begin_;
  for (const unsigned last = std::atomic_ref{*told_end_}.load(std::memory_order_acquire); at != last; ++at) {
    const io_uring_cqe& told = told_[at & told_mask_];
    results_[told.user_data] = told.res;
  }
  std::atomic_ref{*told_begin_}.store(at, std::memory_order_release);
  return results_;
}

Result<std::size_t> send_batch_min(std::size_t otherwise) {
  constexpr const char* name = "TORCHUP_SEND_BATCH_MIN";
  const char* const value = std::getenv(name);
  if (!value) return otherwise;
  const std::string_view text{value};
  std::size_t min = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), min);
  if (error != std::errc{} || end != text.data() + text.size())
    return fail(errc::bad_value,
                fmt::format("{} is \"{}\": a number of clients is wanted, 0 for no batches", name, text));
  return min;
}

}  // namespace torchup

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>
#include <torchup/to_device.hpp>

namespace torchup::detail {

struct Transfer::Streams {
  c10::impl::VirtualGuardImpl device;
  c10::Stream side;
  c10::Event copied;
};

namespace {

/// One stream per device for the whole program, and not a new one per epoch: the allocator keeps memory by stream.
c10::Stream side_stream(const c10::impl::VirtualGuardImpl& guard, torch::Device device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::Stream> streams;
  const std::lock_guard lock{mutex};
  const auto known = streams.find(device.index());
  if (known != streams.end()) return known->second;
  return streams.emplace(device.index(), guard.getStreamFromGlobalPool(device)).first->second;
}

}  // namespace

Transfer::Transfer(torch::Device device) : device_{device} {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard{device.type()};
  if (!device_.has_index()) device_ = guard.getDevice();
  streams_ = std::make_unique<Streams>(Streams{guard, side_stream(guard, device_), c10::Event{device.type()}});
}

Transfer::~Transfer() = default;
Transfer::Transfer(Transfer&&) noexcept = default;
Transfer& Transfer::operator=(Transfer&&) noexcept = default;

void Transfer::start(torch::Tensor& tensor) {
  if (!streams_ || tensor.device() == device_) return;
  const c10::StreamGuard on_side{streams_->side};
  // The host's copy may go at once: PyTorch's allocator of page-locked memory remembers the stream.
  tensor = (tensor.is_pinned() ? tensor : tensor.pin_memory()).to(device_, /*non_blocking=*/true);
}

void Transfer::mark() {
  if (streams_) streams_->copied.record(streams_->side);
}

void Transfer::await() {
  if (streams_) streams_->copied.block(streams_->device.getStream(device_));
}

void Transfer::hand_over(torch::Tensor& tensor) {
  if (streams_ && !tensor.is_cpu()) tensor.record_stream(streams_->device.getStream(device_));
}

}  // namespace torchup::detail

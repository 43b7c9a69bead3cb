#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <torchup/to_device.hpp>

namespace torchup::detail {

struct Transfer::Streams {
  c10::impl::VirtualGuardImpl device;
  c10::Stream side;
  c10::Event copied;
};

Transfer::Transfer(torch::Device device) : device_{device} {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard{device.type()};
  if (!device_.has_index()) device_ = guard.getDevice();
  streams_ =
      std::make_unique<Streams>(Streams{guard, guard.getStreamFromGlobalPool(device_), c10::Event{device.type()}});
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

#include "worker_runtime/elastic/tensor_wire.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <torchup/collectives.hpp>
#include <utility>

namespace torchup {
namespace {

using torch::Tensor;

constexpr std::int64_t chunk_bytes = 64 << 20;
constexpr std::size_t direct_bytes = 1 << 20;  // larger ones go without a copy, smaller ones together
constexpr std::size_t under_way_max = 4;       // chunks, that may have memory of their own

Tensor bytes_of(const Tensor& contiguous) { return contiguous.reshape({-1}).view(torch::kUInt8); }

class Wire {
 public:
  Wire(const ProcessGroup& group, int root, bool keep)
      : group_{group}, root_{root}, sends_{group.rank() == root}, takes_{keep && group.rank() != root} {}

  void send_large(const Tensor& tensor) {
    const auto on_group = torch::TensorOptions{}.device(group_.device());
    if (!sends_ && !takes_) {
      const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
      for (std::int64_t at = 0; at < bytes; at += chunk_bytes)
        start(torch::empty({std::min(chunk_bytes, bytes - at)}, on_group.dtype(torch::kUInt8)));
      return;
    }
    const bool in_place = tensor.is_contiguous() && tensor.device() == group_.device();
    Tensor whole = tensor;
    if (!in_place)
      whole = sends_ ? tensor.contiguous().to(group_.device())
                     : torch::empty(tensor.sizes(), on_group.dtype(tensor.dtype()));
    for (const Tensor& piece : bytes_of(whole).split(chunk_bytes)) start(piece);
    if (takes_ && !in_place) after([tensor, whole] { tensor.copy_(whole); });
  }

  /// Of one dtype, each on the group's device or on the CPU.
  void send_together(std::span<const Tensor> tensors) {
    std::int64_t elements = 0;
    for (const Tensor& tensor : tensors) elements += tensor.numel();
    const auto options = tensors.front().options().device(group_.device());
    Tensor flat;
    if (sends_) {
      std::vector<Tensor> parts;
      for (const Tensor& tensor : tensors) parts.push_back(tensor.reshape({-1}).to(group_.device()));
      flat = torch::cat(parts);
    } else {
      flat = torch::empty({elements}, options);
    }
    start(bytes_of(flat));
    if (!takes_) return;
    after([flat, own = std::vector<Tensor>(tensors.begin(), tensors.end())] {
      std::int64_t at = 0;
      for (const Tensor& tensor : own) {
        tensor.copy_(flat.narrow(0, at, tensor.numel()).view(tensor.sizes()));
        at += tensor.numel();
      }
    });
  }

  void wait_for_all_but(std::size_t count) {
    while (under_way_.size() > count) {
      under_way_.front().work.wait();
      if (under_way_.front().then) under_way_.front().then();
      under_way_.pop_front();
    }
  }

 private:
  struct UnderWay {
    Tensor bytes;  // alive until it has gone
    Work work;
    std::function<void()> then;
  };

  /// A few at a time: while one is on its way the next one is made ready.
  void start(const Tensor& bytes) {
    under_way_.push_back({bytes, broadcast_async(bytes, group_, root_), {}});
    wait_for_all_but(under_way_max - 1);
  }
  /// Of what was started last, and so of all before.
  void after(std::function<void()> then) {
    if (under_way_.empty()) return then();
    under_way_.back().then = std::move(then);
  }

  const ProcessGroup& group_;
  const int root_;
  const bool sends_;
  const bool takes_;
  std::deque<UnderWay> under_way_;
};

}  // namespace

void broadcast_state(std::span<const Tensor> tensors, const ProcessGroup& group, int root, bool keep) {
  const torch::NoGradGuard no_grad;
  Wire wire{group, root, keep};
  std::map<torch::ScalarType, std::vector<Tensor>> small;
  for (const Tensor& tensor : tensors) {
    if (tensor.nbytes() >= direct_bytes)
      wire.send_large(tensor.detach());
    else if (tensor.numel() > 0)
      small[tensor.scalar_type()].push_back(tensor.detach());
  }
  for (const auto& [dtype, alike] : small) {
    std::size_t bytes = 0, begin = 0;
    for (std::size_t end = 0; end < alike.size(); ++end) {
      if (bytes + alike[end].nbytes() > static_cast<std::size_t>(chunk_bytes)) {
        wire.send_together(std::span{alike}.subspan(begin, end - begin));
        bytes = 0;
        begin = end;
      }
      bytes += alike[end].nbytes();
    }
    wire.send_together(std::span{alike}.subspan(begin));
  }
  wire.wait_for_all_but(0);
}

std::int64_t checksum(std::span<const Tensor> tensors) {
  const torch::NoGradGuard no_grad;
  constexpr std::int64_t words_at_once = 1 << 24;
  std::map<std::string, std::vector<Tensor>> sums;  // by device, in the order of the tensors
  for (const Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    Tensor flat = bytes_of(tensor.detach().contiguous());
    if (flat.storage_offset() % 8 != 0) flat = flat.clone();
    const std::int64_t whole = flat.numel() / 8 * 8;
    // Of whole words, and of the rest; each chunk weighs by its number, so that what changed places is seen.
    Tensor sum = flat.narrow(0, whole, flat.numel() - whole).sum(torch::kInt64);
    std::int64_t weight = 1;
    if (whole > 0) {
      for (const Tensor& words : flat.narrow(0, 0, whole).view(torch::kInt64).split(words_at_once)) {
        sum += words.sum() * weight;
        weight += 2;
      }
    }
    sums[tensor.device().str()].push_back(std::move(sum));
  }
  std::uint64_t result = tensors.size();
  for (const auto& [device, parts] : sums) {
    const Tensor all = torch::stack(parts).cpu();
    for (std::int64_t i = 0; i < all.numel(); ++i)
      result = result * 1'000'003 + static_cast<std::uint64_t>(all.const_data_ptr<std::int64_t>()[i]);
  }
  return static_cast<std::int64_t>(result);
}

}  // namespace torchup

#include <deque>

#include "torchup/collectives.hpp"
#include "worker_runtime/ddp/flat_buffer.hpp"

namespace torchup {
namespace {

constexpr std::int64_t piece_bytes = std::int64_t{250} << 20;  // Python's
constexpr std::size_t under_way_max = 2;                       // bounds the memory for the flat copies

/// Several tensors on their way as one.
class Piece {
 public:
  Piece(std::vector<torch::Tensor> tensors, const ProcessGroup& group, int root) : tensors_{std::move(tensors)} {
    std::vector<torch::Tensor> flat;
    for (const auto& tensor : tensors_) flat.push_back(tensor.reshape({-1}));
    in_place_ = flat.size() == 1 && flat[0].is_alias_of(tensors_[0]);
    flat_ = flat.size() == 1 ? flat[0] : torch::cat(flat);
    work_ = broadcast_async(real_view(flat_), group, root);
  }
  void finish() {
    work_.wait();
    if (in_place_) return;
    std::int64_t offset = 0;
    for (auto& tensor : tensors_) {
      if (tensor.numel() > 0)
        tensor.copy_(flat_.narrow(0, offset, tensor.numel()).view(tensor.sizes()), /*non_blocking=*/true);
      offset += tensor.numel();
    }
  }

 private:
  std::vector<torch::Tensor> tensors_;
  torch::Tensor flat_;
  bool in_place_ = false;
  Work work_;
};

}  // namespace

void broadcast_coalesced(const std::vector<torch::Tensor>& tensors, const ProcessGroup& group, int root) {
  const torch::NoGradGuard no_grad;
  std::vector<NamedParameter> listed;
  for (const auto& tensor : tensors)
    // data() shares the storage under a version of its own: a broadcast is no in-place change for a pending backward.
    if (tensor.defined() && tensor.numel() > 0) listed.push_back({.name = "", .tensor = tensor.data()});
  const std::vector<std::int64_t> limits{piece_bytes};
  std::deque<Piece> under_way;
  for (const auto& bucket : plan_buckets(planned_tensors(listed, {}), limits, LeftoverOrder::by_first_tensor)) {
    std::vector<torch::Tensor> piece;
    for (const auto index : bucket) piece.push_back(listed[index].tensor);
    if (under_way.size() == under_way_max) {
      under_way.front().finish();
      under_way.pop_front();
    }
    under_way.emplace_back(std::move(piece), group, root);
  }
  for (auto& piece : under_way) piece.finish();
}

}  // namespace torchup

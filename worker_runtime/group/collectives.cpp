#include "torchup/collectives.hpp"

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "torchup/error.hpp"
#include "worker_runtime/place/worker_page.hpp"

namespace torchup {
namespace {

c10d::ReduceOp c10d_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::average:
      return c10d::ReduceOp::AVG;
    case ReduceOp::product:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
  }
  throw Error{"all_reduce: not a ReduceOp"};
}

/// `parts` equal parts must make up `whole`: the backends check this late or not at all.
void check_parts(const char* function, const torch::Tensor& whole, const torch::Tensor& part, int parts) {
  if (whole.numel() == part.numel() * parts && whole.scalar_type() == part.scalar_type()) return;
  throw Error{fmt::format("{}: {} elements of {} are not {} times {} elements of {}", function, whole.numel(),
                          whole.toString(), parts, part.numel(), part.toString())};
}

}  // namespace

void Work::wait() {
  if (!work_) return;
  const WaitingForOthers waiting;
  work_->wait();
  work_.reset();
}

Work all_reduce_async(torch::Tensor tensor, const ProcessGroup& group, ReduceOp op) {
  std::vector<torch::Tensor> tensors{std::move(tensor)};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d_op(op);
  return Work{group.c10d_backend().allreduce(tensors, options)};
}

void all_reduce(torch::Tensor tensor, const ProcessGroup& group, ReduceOp op) {
  all_reduce_async(std::move(tensor), group, op).wait();
}

Work broadcast_async(torch::Tensor tensor, const ProcessGroup& group, int root) {
  std::vector<torch::Tensor> tensors{std::move(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  return Work{group.c10d_backend().broadcast(tensors, options)};
}

void broadcast(torch::Tensor tensor, const ProcessGroup& group, int root) {
  broadcast_async(std::move(tensor), group, root).wait();
}

void reduce(torch::Tensor tensor, const ProcessGroup& group, int root, ReduceOp op) {
  std::vector<torch::Tensor> tensors{std::move(tensor)};
  c10d::ReduceOptions options;
  options.rootRank = root;
  options.reduceOp = c10d_op(op);
  Work{group.c10d_backend().reduce(tensors, options)}.wait();
}

std::vector<torch::Tensor> all_gather(torch::Tensor tensor, const ProcessGroup& group) {
  std::vector<std::vector<torch::Tensor>> outputs(1);
  for (int rank = 0; rank < group.size(); ++rank) outputs[0].push_back(torch::empty_like(tensor));
  std::vector<torch::Tensor> inputs{std::move(tensor)};
  Work{group.c10d_backend().allgather(outputs, inputs)}.wait();
  return outputs[0];
}

Work all_gather_into_async(torch::Tensor output, torch::Tensor input, const ProcessGroup& group) {
  check_parts("all_gather_into", output, input, group.size());
  return Work{group.c10d_backend()._allgather_base(output, input)};
}

void all_gather_into(torch::Tensor output, torch::Tensor input, const ProcessGroup& group) {
  all_gather_into_async(std::move(output), std::move(input), group).wait();
}

std::vector<torch::Tensor> gather(torch::Tensor tensor, const ProcessGroup& group, int root) {
  std::vector<std::vector<torch::Tensor>> outputs;
  if (group.rank() == root) {
    outputs.resize(1);
    for (int rank = 0; rank < group.size(); ++rank) outputs[0].push_back(torch::empty_like(tensor));
  }
  std::vector<torch::Tensor> inputs{std::move(tensor)};
  c10d::GatherOptions options;
  options.rootRank = root;
  Work{group.c10d_backend().gather(outputs, inputs, options)}.wait();
  return outputs.empty() ? std::vector<torch::Tensor>{} : outputs[0];
}

void scatter(torch::Tensor output, std::vector<torch::Tensor> inputs, const ProcessGroup& group, int root) {
  std::vector<torch::Tensor> outputs{std::move(output)};
  std::vector<std::vector<torch::Tensor>> all_inputs;
  if (group.rank() == root) all_inputs.push_back(std::move(inputs));
  c10d::ScatterOptions options;
  options.rootRank = root;
  Work{group.c10d_backend().scatter(outputs, all_inputs, options)}.wait();
}

Work reduce_scatter_into_async(torch::Tensor output, torch::Tensor input, const ProcessGroup& group, ReduceOp op) {
  check_parts("reduce_scatter_into", input, output, group.size());
  c10d::ReduceScatterOptions options;
  options.reduceOp = c10d_op(op);
  return Work{group.c10d_backend()._reduce_scatter_base(output, input, options)};
}

void reduce_scatter_into(torch::Tensor output, torch::Tensor input, const ProcessGroup& group, ReduceOp op) {
  reduce_scatter_into_async(std::move(output), std::move(input), group, op).wait();
}

Work all_to_all_async(torch::Tensor output, torch::Tensor input, const ProcessGroup& group) {
  check_parts("all_to_all", output, input, 1);
  std::vector<int64_t> equal_splits;
  return Work{group.c10d_backend().alltoall_base(output, input, equal_splits, equal_splits)};
}

void all_to_all(torch::Tensor output, torch::Tensor input, const ProcessGroup& group) {
  all_to_all_async(std::move(output), std::move(input), group).wait();
}

void send(torch::Tensor tensor, const ProcessGroup& group, int to, int tag) {
  std::vector<torch::Tensor> tensors{std::move(tensor)};
  Work{group.c10d_backend().send(tensors, to, tag)}.wait();
}

void receive(torch::Tensor tensor, const ProcessGroup& group, int from, int tag) {
  std::vector<torch::Tensor> tensors{std::move(tensor)};
  Work{group.c10d_backend().recv(tensors, from, tag)}.wait();
}

void barrier(const ProcessGroup& group) {
  c10d::BarrierOptions options;
  if (group.device().is_cuda()) options.device_ids = {group.device().index()};
  Work{group.c10d_backend().barrier(options)}.wait();
}

}  // namespace torchup

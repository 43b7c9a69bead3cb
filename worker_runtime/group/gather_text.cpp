#include "worker_runtime/group/gather_text.hpp"

#include <algorithm>
#include <cstring>
#include <torchup/collectives.hpp>

namespace torchup {

namespace {

torch::Tensor bytes_of(const std::string& text, std::int64_t length) {
  torch::Tensor bytes = torch::zeros({length}, torch::kUInt8);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

std::string text_of(const torch::Tensor& tensor, std::int64_t length) {
  const torch::Tensor bytes = tensor.cpu();
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(length)};
}

}  // namespace

std::vector<std::string> all_gather_text(const std::string& text, const ProcessGroup& group) {
  const torch::Tensor mine = torch::tensor({static_cast<std::int64_t>(text.size())}, torch::kInt64).to(group.device());
  std::vector<std::int64_t> lengths;
  for (const torch::Tensor& length : all_gather(mine, group)) lengths.push_back(length.item<std::int64_t>());
  const std::int64_t longest = std::max<std::int64_t>(1, *std::ranges::max_element(lengths));
  std::vector<std::string> texts;
  for (const torch::Tensor& bytes : all_gather(bytes_of(text, longest).to(group.device()), group)) {
    texts.push_back(text_of(bytes, lengths[texts.size()]));
  }
  return texts;
}

std::string broadcast_text(const std::string& text, const ProcessGroup& group, int root) {
  torch::Tensor length = torch::tensor({static_cast<std::int64_t>(text.size())}, torch::kInt64).to(group.device());
  broadcast(length, group, root);
  const auto count = length.item<std::int64_t>();
  if (count == 0) return {};
  torch::Tensor bytes =
      (group.rank() == root ? bytes_of(text, count) : torch::zeros({count}, torch::kUInt8)).to(group.device());
  broadcast(bytes, group, root);
  return text_of(bytes, count);
}

}  // namespace torchup

#include "worker_runtime/state/checkpoint_exchange.hpp"

#include <fmt/format.h>

#include <torchup/collectives.hpp>
#include <torchup/error.hpp>

#include "worker_runtime/group/gather_text.hpp"

namespace torchup {

using nlohmann::json;

std::vector<json> gather_facts(const ProcessGroup& group, const std::function<json()>& find) {
  json mine;
  try {
    mine["found"] = find();
  } catch (const std::exception& error) {
    mine["failure"] = error.what();
  }
  std::vector<json> all;
  for (const std::string& text : all_gather_text(mine.dump(-1, ' ', false, json::error_handler_t::replace), group)) {
    json theirs = json::parse(text);
    if (theirs.contains("failure"))
      throw Error{fmt::format("rank {}: {}", all.size(), theirs.at("failure").get<std::string>())};
    all.push_back(std::move(theirs.at("found")));
  }
  return all;
}

torch::Tensor gather_rows(const torch::Tensor& row, const ProcessGroup& group) {
  std::vector<torch::Tensor> rows = all_gather(row.to(group.device()), group);
  return torch::stack(rows).cpu();
}

std::vector<StateDict> gather_states(const StateDict& mine, const ProcessGroup& group) {
  const auto as_bytes = [&](const torch::Tensor& tensor) {
    return tensor.to(group.device()).contiguous().reshape(-1).view(torch::kUInt8);
  };
  json names = json::array();
  for (const auto& [name, tensor] : mine)
    names.push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
  const std::vector<std::string> lists = all_gather_text(names.dump(), group);
  if (group.rank() != 0) {
    for (const auto& [name, tensor] : mine)
      if (tensor.numel() > 0) send(as_bytes(tensor), group, 0);
    return {};
  }
  std::vector<StateDict> states{mine};
  for (int rank = 1; rank < group.size(); ++rank) {
    StateDict& state = states.emplace_back();
    for (const json& entry : json::parse(lists[static_cast<std::size_t>(rank)])) {
      torch::Tensor tensor =
          torch::empty(entry[2].get<std::vector<std::int64_t>>(),
                       torch::dtype(static_cast<torch::ScalarType>(entry[1].get<int>())).device(group.device()));
      if (tensor.numel() > 0) receive(tensor.reshape(-1).view(torch::kUInt8), group, rank);
      state.emplace(entry[0], tensor.cpu());
    }
  }
  return states;
}

void send_tensors(Tensors& tensors, const ProcessGroup& group, int root) {
  json names = json::array();
  for (const auto& [name, tensor] : tensors) {
    names.push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
  }
  names = json::parse(broadcast_text(names.dump(), group, root));
  if (group.rank() != root) {
    for (const json& entry : names) {
      tensors[entry[0]] =
          torch::empty(entry[2].get<std::vector<std::int64_t>>(), static_cast<torch::ScalarType>(entry[1].get<int>()));
    }
  }
  for (auto& [name, tensor] : tensors) {
    torch::Tensor travelling = tensor.to(group.device());
    if (travelling.numel() > 0) broadcast(travelling.reshape(-1).view(torch::kUInt8), group, root);
    if (group.rank() != root) tensor.copy_(travelling);
  }
}

}  // namespace torchup

#include <fmt/format.h>
#include <torch/serialize/archive.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <sstream>
#include <string>
#include <torchup/collectives.hpp>
#include <torchup/error.hpp>
#include <torchup/zero_redundancy_optimizer.hpp>

#include "worker_runtime/group/peer_memory.hpp"

namespace torchup {
namespace {

using torch::Tensor;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

std::string to_bytes(const Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return std::move(stream).str();
}

/// On the CPU, wherever the tensors came from.
void from_bytes(const std::string& bytes, Optimizer& optimizer) {
  std::istringstream stream{bytes};
  torch::serialize::InputArchive archive;
  archive.load_from(stream, torch::kCPU);
  optimizer.load(archive);
}

void send_bytes(const std::string& bytes, const ProcessGroup& group, int to) {
  const auto on_group = torch::TensorOptions{}.device(group.device());
  send(torch::tensor({static_cast<int64_t>(bytes.size())}, on_group.dtype(torch::kLong)), group, to);
  const Tensor content =
      torch::from_blob(const_cast<char*>(bytes.data()), {static_cast<int64_t>(bytes.size())}, torch::kByte);
  send(content.to(group.device()), group, to);
}

std::string receive_bytes(const ProcessGroup& group, int from) {
  const auto on_group = torch::TensorOptions{}.device(group.device());
  const Tensor size = torch::empty({1}, on_group.dtype(torch::kLong));
  receive(size, group, from);
  Tensor content = torch::empty({size.item<int64_t>()}, on_group.dtype(torch::kByte));
  receive(content, group, from);
  content = content.cpu();
  return {reinterpret_cast<const char*>(content.data_ptr<std::uint8_t>()), static_cast<std::size_t>(content.numel())};
}

/// Below this, two small collectives more cost as much as is saved.
constexpr std::size_t worth_reading_bytes = 256 << 10;

bool is_dense(const Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

}  // namespace

std::vector<std::vector<int>> zero_owners(const std::vector<std::vector<int64_t>>& elements, int ranks) {
  std::vector<int64_t> load(static_cast<std::size_t>(ranks), 0);
  std::vector<std::vector<int>> owners;
  for (const auto& group : elements) {
    std::vector<std::size_t> order(group.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return group[a] > group[b]; });
    std::vector<int>& of_group = owners.emplace_back(group.size());
    for (const std::size_t parameter : order) {
      const auto least = std::min_element(load.begin(), load.end());
      *least += group[parameter];
      of_group[parameter] = static_cast<int>(least - load.begin());
    }
  }
  return owners;
}

ZeroRedundancyOptimizerBase::ZeroRedundancyOptimizerBase(const Groups& groups, ProcessGroup group, Make make,
                                                         ZeroOptions options)
    : Optimizer{Groups{}, nullptr}, group_{std::move(group)}, make_{std::move(make)} {
  // The inner type decides what a group's options and the defaults mean. States come with the first step, so this one
  // is free; it also finds parameters that are listed twice.
  const auto all = make_(groups);
  param_groups_ = std::move(all->param_groups());
  defaults_ = all->defaults().clone();

  std::vector<std::vector<int64_t>> elements;
  for (const auto& of : param_groups_) {
    auto& sizes = elements.emplace_back();
    for (const Tensor& parameter : of.params()) sizes.push_back(parameter.numel());
  }
  owners_ = zero_owners(elements, group_.size());

  Groups mine;
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    const auto& parameters = param_groups_[g].params();
    std::vector<Tensor> kept;
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (owners_[g][i] == group_.rank()) kept.push_back(parameters[i]);
    mine.emplace_back(std::move(kept), param_groups_[g].options().clone());
  }
  local_ = make_(mine);

  if (group_.size() == 1) return;
  if (options.parameters_as_bucket_view) {
    flatten_parameters();
  } else {
    // Python's order: rank by rank, in each group's own order.
    for (int owner = 0; owner < group_.size(); ++owner)
      for (std::size_t g = 0; g < param_groups_.size(); ++g)
        for (std::size_t i = 0; i < owners_[g].size(); ++i)
          if (owners_[g][i] == owner) pieces_.push_back({param_groups_[g].params()[i], owner});
  }
}

ZeroRedundancyOptimizerBase::~ZeroRedundancyOptimizerBase() = default;

void ZeroRedundancyOptimizerBase::flatten_parameters() {
  const torch::NoGradGuard no_gradients;
  using Key = std::tuple<torch::Device, torch::ScalarType>;
  for (int owner = 0; owner < group_.size(); ++owner) {
    std::vector<std::pair<Key, std::vector<Tensor>>> kinds;  // in order of first appearance
    for (std::size_t g = 0; g < param_groups_.size(); ++g)
      for (std::size_t i = 0; i < owners_[g].size(); ++i) {
        if (owners_[g][i] != owner) continue;
        const Tensor& parameter = param_groups_[g].params()[i];
        const Key key{parameter.device(), parameter.scalar_type()};
        const auto known =
            std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) { return kind.first == key; });
        (known == kinds.end() ? kinds.emplace_back(key, std::vector<Tensor>{}) : *known).second.push_back(parameter);
      }
    for (auto& [key, parameters] : kinds) {
      int64_t total = 0;
      for (const Tensor& parameter : parameters) total += parameter.numel();
      const Tensor flat = torch::empty({total}, parameters.front().options().requires_grad(false));
      int64_t at = 0;
      for (Tensor& parameter : parameters) {
        const auto strides = is_dense(parameter) ? parameter.strides().vec() : parameter.contiguous().strides().vec();
        const Tensor view = flat.as_strided(parameter.sizes(), strides, at);
        view.copy_(parameter);
        parameter.set_data(view);
        at += parameter.numel();
      }
      pieces_.push_back({flat, owner});
    }
  }
}

void ZeroRedundancyOptimizerBase::copy_options_to_local() {
  if (param_groups_.size() != local_->param_groups().size())  // by the base's own add_param_group, which is not virtual
    throw Error{
        fmt::format("ZeroRedundancyOptimizer was made for {} parameter groups and now has {}: make a new one with "
                    "all groups",
                    local_->param_groups().size(), param_groups_.size())};
  for (std::size_t g = 0; g < param_groups_.size(); ++g)
    local_->param_groups()[g].set_options(param_groups_[g].options().clone());
}

Tensor ZeroRedundancyOptimizerBase::step(LossClosure closure) {
  copy_options_to_local();
  const Tensor loss = local_->step(std::move(closure));
  if (pieces_.empty()) return loss;
  if (!way_chosen_) choose_way();
  owners_memory_ ? read_parameters() : send_parameters();
  return loss;
}

void ZeroRedundancyOptimizerBase::choose_way() {
  way_chosen_ = true;
  std::size_t bytes = 0;
  for (const Piece& piece : pieces_) {
    bytes += piece.tensor.nbytes();
    if (!piece.tensor.is_cpu() || !is_dense(piece.tensor)) return;
  }
  if (group_.device().is_cpu() && bytes >= worth_reading_bytes) owners_memory_ = PeerMemory::of(group_);
}

void ZeroRedundancyOptimizerBase::send_parameters() {
  // All are under way before the first is waited for.
  std::vector<Work> sending;
  for (const Piece& piece : pieces_) sending.push_back(broadcast_async(piece.tensor.detach(), group_, piece.owner));
  for (Work& work : sending) work.wait();
}

void ZeroRedundancyOptimizerBase::read_parameters() {
  // Each owner says where its parameters are; when the sum is there, all owners have made their step.
  Tensor addresses = torch::zeros({std::ssize(pieces_)}, torch::kLong);
  auto address = addresses.accessor<int64_t, 1>();
  for (int64_t i = 0; const Piece& piece : pieces_) {
    if (piece.owner == group_.rank())
      address[i] = static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(piece.tensor.data_ptr()));
    ++i;
  }
  all_reduce(addresses, group_);
  for (int64_t i = 0; const Piece& piece : pieces_) {
    if (piece.owner != group_.rank())
      owners_memory_->read(piece.owner, static_cast<std::uintptr_t>(address[i]), piece.tensor.data_ptr(),
                           piece.tensor.nbytes());
    ++i;
  }
  barrier(group_);  // nobody changes its parameters before all have read them
}

std::unique_ptr<Optimizer> ZeroRedundancyOptimizerBase::with_all_parameters() const {
  auto all = make_(param_groups_);
  for (std::size_t g = 0; g < param_groups_.size(); ++g)
    all->param_groups()[g].set_options(param_groups_[g].options().clone());
  return all;
}

void ZeroRedundancyOptimizerBase::save(torch::serialize::OutputArchive& archive) const {
  const auto all = with_all_parameters();
  for (const auto& [parameter, state] : local_->state()) all->state()[parameter] = state->clone();
  all->save(archive);
}

void ZeroRedundancyOptimizerBase::load(torch::serialize::InputArchive& archive) {
  const auto all = with_all_parameters();
  all->load(archive);
  copy_options_to_local();
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    param_groups_[g].set_options(all->param_groups()[g].options().clone());
    for (const Tensor& parameter : local_->param_groups()[g].params()) {
      const auto found = all->state().find(parameter.unsafeGetTensorImpl());
      if (found != all->state().end()) local_->state()[parameter.unsafeGetTensorImpl()] = std::move(found->second);
    }
  }
  copy_options_to_local();
}

std::unique_ptr<Optimizer> ZeroRedundancyOptimizerBase::consolidate(int to) const {
  if (to < 0 || to >= group_.size())
    throw Error{fmt::format("ZeroRedundancyOptimizer: consolidate to rank {} of {}", to, group_.size())};
  if (group_.rank() != to) {
    send_bytes(to_bytes(*this), group_, to);
    return nullptr;
  }
  auto all = with_all_parameters();
  for (int rank = 0; rank < group_.size(); ++rank) {
    // Loading replaces the states that are in the archive and leaves the others.
    from_bytes(rank == to ? to_bytes(*this) : receive_bytes(group_, rank), *all);
  }
  return all;
}

/// The group's tensors may live elsewhere: gloo on the CPU averages a GPU's gradients too.
torch::Device ZeroRedundancyOptimizerBase::parameters_device() const {
  for (const auto& of : param_groups_)
    if (!of.params().empty()) return of.params().front().device();
  return torch::kCPU;
}

StateDict ZeroRedundancyOptimizerBase::state_dict() const {
  const auto all = consolidate(0);
  if (!all) return {};
  const std::string bytes = to_bytes(*all);
  Tensor content = torch::empty({static_cast<int64_t>(bytes.size())}, torch::kByte);
  std::memcpy(content.data_ptr(), bytes.data(), bytes.size());
  return {{"optimizer", std::move(content)}};
}

void ZeroRedundancyOptimizerBase::load_state_dict(const StateDict& state) {
  const auto found = state.find("optimizer");
  if (found == state.end()) throw Error{"ZeroRedundancyOptimizer: the state to load has no optimizer"};
  local_->state().clear();  // a parameter that has no state there has none
  const Tensor content = found->second.to(torch::kCPU).contiguous();
  std::istringstream stream{
      std::string{static_cast<const char*>(content.const_data_ptr()), static_cast<std::size_t>(content.numel())}};
  torch::serialize::InputArchive archive;
  archive.load_from(stream, parameters_device());
  load(archive);
}

}  // namespace torchup

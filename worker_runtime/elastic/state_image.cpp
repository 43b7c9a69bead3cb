#include "worker_runtime/elastic/state_image.hpp"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <torchup/error.hpp>
#include <torchup/safetensors.hpp>

#include "worker_runtime/elastic/tensor_wire.hpp"
#include "worker_runtime/group/gather_text.hpp"
#include "worker_runtime/state/optimizer_state.hpp"
#include "worker_runtime/state/part_facts.hpp"

namespace torchup {
namespace {

using nlohmann::json;
using torch::Tensor;
using Tensors = std::map<std::string, Tensor>;

constexpr std::string_view model_prefix = "model/";
std::string optimizer_name(std::size_t number) { return fmt::format("optimizer-{}", number); }
std::string part_name(std::size_t number) { return fmt::format("part-{}/", number); }

/// The tensors are the state itself, no copies.
struct Image {
  json facts;
  NamedTensors tensors;
};

NamedTensors parameters_of(const CheckpointParts& parts) {
  NamedTensors tensors;
  if (!parts.module) return tensors;
  for (const auto& parameter : parts.module->named_parameters())
    tensors.emplace_back(fmt::format("{}{}", model_prefix, parameter.key()), parameter.value().detach());
  return tensors;
}

json add_optimizers(const CheckpointParts& parts, NamedTensors& tensors) {
  json facts = json::array();
  const ParameterNames names = parameter_names(parts.module.get());
  for (std::size_t i = 0; i < parts.optimizers.size(); ++i)
    facts.push_back(store_optimizer(*parts.optimizers[i], names, optimizer_name(i), tensors));
  return facts;
}

Image image_of(const TrainingState& state) {
  const CheckpointParts& parts = state.parts();
  Image image{.facts = {}, .tensors = parameters_of(parts)};
  if (parts.module) {
    for (const auto& buffer : parts.module->named_buffers())
      if (buffer.value().defined())
        image.tensors.emplace_back(fmt::format("{}{}", model_prefix, buffer.key()), buffer.value());
  }
  image.facts["optimizers"] = add_optimizers(parts, image.tensors);
  for (std::size_t i = 0; i < parts.others.size(); ++i)
    for (const auto& [name, tensor] : parts.others[i].get())
      image.tensors.emplace_back(part_name(i) + name, tensor.detach());
  image.facts["position"] = {state.position().epoch, state.position().step};
  image.facts["commits"] = state.commits();
  if (parts.sampler) image.facts["sampler"] = to_facts(parts.sampler->position());
  if (parts.ddp != nullptr) image.facts["layout"] = to_facts(parts.ddp->bucket_layout());
  json& list = image.facts["tensors"] = json::array();
  for (const auto& [name, tensor] : image.tensors)
    list.push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
  return image;
}

/// A part that differs by rank stays this rank's, where it has one.
bool keeps_own(const CheckpointParts::Stateful& part, const TrainingState& state) {
  return part.differs_by_rank && !state.is_fresh();
}

/// Where a tensor of the source's comes to lie.
class Room {
 public:
  Room(const TrainingState& state, const Image& mine) : mine_{mine.tensors.begin(), mine.tensors.end()} {
    const auto& others = state.parts().others;
    for (std::size_t i = 0; i < others.size(); ++i)
      if (keeps_own(others[i], state))
        std::erase_if(mine_, [&](const auto& tensor) { return tensor.first.starts_with(part_name(i)); });
    for (const auto& [name, parameter] : parameters_of(state.parts()))
      parameters_.emplace(name.substr(model_prefix.size()), parameter);
  }

  /// This rank's own where it fits, else a new one. Throws Error for a parameter that is another one than the source's.
  [[nodiscard]] Tensor for_tensor(const json& entry) const {
    const std::string name = entry[0];
    const auto dtype = static_cast<torch::ScalarType>(entry[1].get<int>());
    const auto sizes = entry[2].get<std::vector<std::int64_t>>();
    const auto own = mine_.find(name);
    const bool fits = own != mine_.end() && own->second.scalar_type() == dtype && own->second.sizes() == sizes;
    if (fits) return own->second;
    if (name.starts_with(model_prefix) &&
        (own == mine_.end() || parameters_.contains(name.substr(model_prefix.size()))))
      throw Error{fmt::format("the model is not the same on all ranks: {} differs", name.substr(model_prefix.size()))};
    // Beside the parameter that it belongs to, as an optimizer would lay it out.
    const auto begin = name.find('/'), end = name.rfind('/');
    const auto parameter = parameters_.find(begin < end ? name.substr(begin + 1, end - begin - 1) : "");
    if (parameter != parameters_.end() && parameter->second.sizes() == sizes)
      return torch::empty_like(parameter->second, dtype);
    return torch::empty(sizes, own != mine_.end() ? own->second.options().dtype(dtype) : torch::TensorOptions{dtype});
  }

 private:
  Tensors mine_;
  std::map<std::string, Tensor> parameters_;
};

void take(TrainingState& state, const json& facts, const Tensors& tensors) {
  const CheckpointParts& parts = state.parts();
  const torch::NoGradGuard no_grad;
  if (parts.module) {  // parameters were filled where they are, and so were buffers of the same shape
    for (auto& buffer : parts.module->named_buffers()) {
      const auto found = tensors.find(fmt::format("{}{}", model_prefix, buffer.key()));
      if (found != tensors.end() && !found->second.is_alias_of(buffer.value())) buffer.value().set_data(found->second);
    }
  }
  const ParameterNames names = parameter_names(parts.module.get());
  for (std::size_t i = 0; i < parts.optimizers.size(); ++i)
    restore_optimizer(*parts.optimizers[i], names, optimizer_name(i), facts.at("optimizers").at(i), tensors,
                      /*adopt=*/true);
  for (std::size_t i = 0; i < parts.others.size(); ++i) {
    if (keeps_own(parts.others[i], state)) continue;
    StateDict part;
    const std::string prefix = part_name(i);
    for (auto entry = tensors.lower_bound(prefix); entry != tensors.end() && entry->first.starts_with(prefix); ++entry)
      part.emplace(entry->first.substr(prefix.size()), entry->second);
    parts.others[i].set(part);
  }
  if (parts.sampler && facts.contains("sampler"))
    DistributedSampler{*parts.sampler}.resume(sampler_position_from(facts.at("sampler")));
  if (parts.ddp != nullptr && facts.contains("layout")) parts.ddp->start_over(bucket_layout_from(facts.at("layout")));
  state.became({facts.at("position").at(0), facts.at("position").at(1)}, facts.at("commits"));
}

}  // namespace

std::int64_t checksum(const TrainingState& state) {
  NamedTensors named = parameters_of(state.parts());
  add_optimizers(state.parts(), named);
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : named)
    if (!name.ends_with(own_archive)) tensors.push_back(tensor);
  return checksum(tensors);
}

void exchange_state(TrainingState& state, const ProcessGroup& group, int source, bool takes) {
  const Image mine = image_of(state);
  const json theirs = json::parse(broadcast_text(mine.facts.dump(), group, source));
  const bool sends = group.rank() == source;
  const Room room{state, mine};
  std::vector<Tensor> tensors;
  Tensors by_name;
  for (const json& entry : theirs.at("tensors")) {
    tensors.push_back(sends ? mine.tensors[tensors.size()].second : room.for_tensor(entry));
    by_name.emplace(entry[0], tensors.back());
  }
  const auto is_model = [](const auto& tensor) { return tensor.first.starts_with(model_prefix); };
  if (std::ranges::count_if(by_name, is_model) != std::ranges::count_if(mine.tensors, is_model))
    throw Error{"the model is not the same on all ranks: some have more parameters or buffers"};
  if (theirs.at("optimizers").size() != state.parts().optimizers.size())
    throw Error{"the number of optimizers is not the same on all ranks"};
  if (takes) state.becomes();
  broadcast_state(tensors, group, source, takes);
  if (takes) take(state, theirs, by_name);
}

}  // namespace torchup

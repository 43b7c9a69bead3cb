#include "worker_runtime/state/checkpoint_parts.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <set>
#include <torchup/error.hpp>

#include "worker_runtime/state/checkpoint_exchange.hpp"
#include "worker_runtime/state/generators.hpp"
#include "worker_runtime/state/optimizer_state.hpp"
#include "worker_runtime/state/part_facts.hpp"

namespace torchup {

using nlohmann::json;

std::string optimizer_prefix(std::size_t number) { return "optimizer-" + std::to_string(number); }
std::string other_prefix(std::size_t number) { return fmt::format("part-{}/", number); }
std::string rank_prefix(std::size_t number, int rank) { return fmt::format("part-{}/rank-{}/", number, rank); }

NamedTensors tensors_of(const torch::nn::Module& module) {
  NamedTensors result;
  for (const auto& parameter : module.named_parameters()) result.emplace_back(parameter.key(), parameter.value());
  for (const auto& buffer : module.named_buffers()) {
    if (buffer.value().defined()) result.emplace_back(buffer.key(), buffer.value());
  }
  return result;
}

namespace {

void restore_module(const torch::nn::Module& module, const Tensors& stored) {
  const NamedTensors wanted = tensors_of(module);
  std::set<std::string> names;
  for (const auto& [name, tensor] : wanted) {
    names.insert(name);
    const auto found = stored.find(name);
    if (found == stored.end()) throw Error{"the checkpoint lacks the module's " + name};
    if (found->second.sizes() != tensor.sizes() || found->second.scalar_type() != tensor.scalar_type()) {
      throw Error{name + " is " + c10::str(found->second.scalar_type(), found->second.sizes()) +
                  " in the checkpoint and " + c10::str(tensor.scalar_type(), tensor.sizes()) + " in the module"};
    }
    tensor.data().copy_(found->second);
  }
  for (const auto& [name, tensor] : stored) {
    if (!names.contains(name)) throw Error{"the module lacks " + name + ", which is in the checkpoint"};
  }
}

void restore_generators(const CheckpointParts& parts, const LoadedCheckpoint& loaded, const ProcessGroup& group) {
  const torch::Tensor& cpu = loaded.training.at(rng_cpu);
  const auto gpu = gpu_generator(parts.module.get());
  if (cpu.size(0) == group.size()) {
    set_state(cpu_generator(), cpu[group.rank()]);
    const auto stored = loaded.training.find(rng_gpu);
    if (gpu && stored != loaded.training.end()) set_state(*gpu, stored->second[group.rank()]);
    return;
  }
  // Another world size: streams that differ by rank and from those before, and are the same when this is done again.
  std::size_t seed = 0;
  const torch::Tensor first = cpu[0].contiguous();
  for (std::int64_t i = 0; i < first.numel(); ++i)
    seed = c10::hash_combine(seed, first.const_data_ptr<std::uint8_t>()[i]);
  seed = c10::hash_combine(c10::hash_combine(seed, static_cast<std::size_t>(group.size())),
                           static_cast<std::size_t>(group.rank()));
  set_seed(cpu_generator(), seed);
  if (gpu) set_seed(*gpu, seed);
}

}  // namespace

Gathered gather(const CheckpointParts& parts, const ProcessGroup& group) {
  Gathered all;
  all.cpu_states = gather_rows(state_of(cpu_generator()), group);
  if (const auto gpu = gpu_generator(parts.module.get())) all.gpu_states = gather_rows(state_of(*gpu), group);
  // Parts may do collectives to know their state, so every rank asks them.
  for (std::size_t i = 0; i < parts.others.size(); ++i) {
    const StateDict mine = parts.others[i].get();
    if (!parts.others[i].differs_by_rank) {
      for (const auto& [name, tensor] : mine) all.others.emplace_back(other_prefix(i) + name, tensor);
      continue;
    }
    int rank = 0;
    for (const StateDict& state : gather_states(mine, group)) {
      for (const auto& [name, tensor] : state) all.others.emplace_back(rank_prefix(i, rank) + name, tensor);
      ++rank;
    }
  }
  return all;
}

void restore_parts(const CheckpointParts& parts, const LoadedCheckpoint& loaded, const ProcessGroup& group) {
  if (parts.module) restore_module(*parts.module, loaded.model);
  const json optimizers = loaded.facts.value("optimizers", json::array());
  if (optimizers.size() != parts.optimizers.size()) {
    throw Error{fmt::format("the checkpoint holds {} optimizers, the program has {}", optimizers.size(),
                            parts.optimizers.size())};
  }
  const ParameterNames names = parameter_names(parts.module.get());
  for (std::size_t i = 0; i < parts.optimizers.size(); ++i) {
    restore_optimizer(*parts.optimizers[i], names, optimizer_prefix(i), optimizers[i], loaded.training);
  }
  if (loaded.facts.value("parts", std::size_t{0}) != parts.others.size()) {
    throw Error{fmt::format("the checkpoint holds {} parts with a state_dict, the program has {}",
                            loaded.facts.value("parts", json{0}).dump(), parts.others.size())};
  }
  for (std::size_t i = 0; i < parts.others.size(); ++i) {
    StateDict state;
    const int stored_ranks = loaded.facts.at("world_size");
    const std::string prefix =
        parts.others[i].differs_by_rank ? rank_prefix(i, group.rank() % stored_ranks) : other_prefix(i);
    for (auto entry = loaded.training.lower_bound(prefix);
         entry != loaded.training.end() && entry->first.starts_with(prefix); ++entry) {
      state.emplace(entry->first.substr(prefix.size()), entry->second);
    }
    parts.others[i].set(state);
  }
  if (parts.sampler && loaded.facts.contains("sampler")) {
    DistributedSampler{*parts.sampler}.resume(sampler_position_from(loaded.facts.at("sampler")));
  }
  if (parts.ddp != nullptr && loaded.facts.contains("bucket_layout")) {
    const bool taken = parts.ddp->restore_bucket_layout(bucket_layout_from(loaded.facts.at("bucket_layout")));
    if (!taken && parts.ddp->group().rank() == 0)
      std::fprintf(stderr,
                   "torchup: bucket_cap_mb is another one than when the checkpoint was taken: the buckets are laid out "
                   "anew, and averages over three and more ranks may differ in their last bits\n");
  }
  restore_generators(parts, loaded, group);
}

}  // namespace torchup

#include <fmt/format.h>

#include <torch/serialize/archive.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <numeric>
#include <torchup/distributed_sampler.hpp>
#include <torchup/error.hpp>

#include "worker_runtime/data/sampler_plan.hpp"

namespace torchup {

// A data loader with worker threads calls next() from the thread that iterates, but to_device() and user code may run
// elsewhere: one mutex over a few numbers.
struct DistributedSampler::State {
  mutable std::mutex mutex;
  std::size_t size;
  std::optional<ProcessGroup> group;  // whose rank and size may be others in its next round; else the next two
  int given_rank;
  int given_world_size;
  DistributedSamplerOptions options;
  std::int64_t epoch = 0;

  bool resumed = false;           // the position was resumed, and no set_epoch has said since which epoch is meant
  bool in_pass = false;           // a pass has begun, and no set_epoch or resume has chosen another beginning since
  std::uint64_t begin = 0;        // where the pass under way began: samples consumed by all ranks
  std::uint64_t next_begin = 0;   // where the next pass begins
  int pass_ranks = 1;             // of the pass under way: among so many its samples were dealt
  std::vector<std::size_t> pass;  // this rank's indices of the pass under way
  std::size_t drawn = 0;          // of them, given out by next()
  bool counts_delivered = false;
  std::size_t delivered = 0;           // of them, arrived in the training loop
  std::deque<std::size_t> on_the_way;  // sizes of batches drawn and not yet delivered

  int rank() const { return group ? group->rank() : given_rank; }
  int world_size() const { return group ? group->size() : given_world_size; }

  std::vector<std::size_t> deal_from(std::uint64_t consumed) const {
    std::vector<std::int64_t> order(size);
    if (options.shuffle) {
      const auto seed = options.seed + static_cast<std::uint64_t>(epoch);
      const auto permutation = torch::randperm(static_cast<std::int64_t>(size),
                                               at::make_generator<at::CPUGeneratorImpl>(seed), torch::kInt64);
      std::copy_n(permutation.const_data_ptr<std::int64_t>(), size, order.begin());
    } else {
      std::iota(order.begin(), order.end(), std::int64_t{0});
    }
    return deal(order, consumed, rank(), world_size(), options.drop_last);
  }
};

DistributedSampler::DistributedSampler(std::size_t size, const ProcessGroup& group,
                                       const DistributedSamplerOptions& options)
    : DistributedSampler{size, group.rank(), group.size(), options} {
  state_->group = group;
}

DistributedSampler::DistributedSampler(std::size_t size, int rank, int world_size,
                                       const DistributedSamplerOptions& options)
    : state_{std::make_shared<State>()} {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw Error{fmt::format("DistributedSampler: rank {} is not in 0 .. {}", rank, world_size - 1)};
  }
  state_->size = size;
  state_->given_rank = rank;
  state_->given_world_size = world_size;
  state_->options = options;
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  const std::lock_guard lock{state_->mutex};
  state_->resumed = false;
  if (epoch == state_->epoch) return;
  state_->epoch = epoch;
  state_->next_begin = 0;
  state_->in_pass = false;
}

std::int64_t DistributedSampler::epoch() const {
  const std::lock_guard lock{state_->mutex};
  return state_->epoch;
}

std::size_t DistributedSampler::size() const {
  const std::lock_guard lock{state_->mutex};
  return samples_per_rank(state_->size, state_->world_size(), state_->options.drop_last);
}

std::vector<std::size_t> DistributedSampler::indices() const {
  const std::lock_guard lock{state_->mutex};
  return state_->deal_from(state_->next_begin);
}

void DistributedSampler::delivered(std::size_t batches) {
  const std::lock_guard lock{state_->mutex};
  state_->counts_delivered = true;
  for (; batches > 0 && !state_->on_the_way.empty(); --batches) {
    state_->delivered += state_->on_the_way.front();
    state_->on_the_way.pop_front();
  }
}

SamplerPosition DistributedSampler::position() const {
  const std::lock_guard lock{state_->mutex};
  if (!state_->in_pass) return {state_->epoch, state_->next_begin, state_->options.seed};
  const std::size_t mine = state_->counts_delivered ? state_->delivered : state_->drawn;
  const std::uint64_t consumed = state_->begin + mine * static_cast<std::uint64_t>(state_->pass_ranks);
  return {state_->epoch, std::min<std::uint64_t>(consumed, state_->size), state_->options.seed};
}

void DistributedSampler::resume(const SamplerPosition& position) {
  const std::lock_guard lock{state_->mutex};
  if (state_->options.shuffle && position.seed != state_->options.seed) {
    throw Error{
        fmt::format("DistributedSampler: the stored position belongs to seed {}, this sampler has seed {}: it would "
                    "give other samples. Use the stored seed, or start the epoch anew",
                    position.seed, state_->options.seed)};
  }
  state_->epoch = position.epoch;
  state_->next_begin = position.consumed;
  state_->resumed = true;
  state_->in_pass = false;
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  const std::lock_guard lock{state_->mutex};
  if (new_size) state_->size = *new_size;
  state_->begin = std::exchange(state_->next_begin, 0);
  state_->in_pass = true;
  state_->pass_ranks = state_->world_size();
  state_->pass = state_->deal_from(state_->begin);
  // A program that never calls set_epoch has no name for the epoch that is over: it wants the next one.
  if (std::exchange(state_->resumed, false) && state_->pass.empty()) {
    state_->begin = 0;
    state_->pass = state_->deal_from(0);
  }
  state_->drawn = state_->delivered = 0;
  state_->on_the_way.clear();
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  const std::lock_guard lock{state_->mutex};
  const std::size_t count = std::min(batch_size, state_->pass.size() - state_->drawn);
  if (count == 0) return std::nullopt;
  const auto first = state_->pass.begin() + static_cast<std::ptrdiff_t>(state_->drawn);
  state_->drawn += count;
  state_->on_the_way.push_back(count);
  return std::vector<std::size_t>(first, first + static_cast<std::ptrdiff_t>(count));
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  const SamplerPosition at = position();
  archive.write("epoch", torch::IValue{at.epoch});
  archive.write("consumed", torch::IValue{static_cast<std::int64_t>(at.consumed)});
  archive.write("seed", torch::IValue{static_cast<std::int64_t>(at.seed)});
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  const auto number = [&](const char* name) {
    torch::IValue value;
    archive.read(name, value);
    return value.toInt();
  };
  resume({number("epoch"), static_cast<std::uint64_t>(number("consumed")), static_cast<std::uint64_t>(number("seed"))});
}

}  // namespace torchup

#pragma once

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <torchup/process_group.hpp>
#include <vector>

namespace torchup {

struct DistributedSamplerOptions {
  bool shuffle = true;
  std::uint64_t seed = 0;  ///< of the order, together with the epoch; the same on all ranks
  bool drop_last = false;  ///< drop the tail that does not divide by the world size, instead of repeating samples
};

/// Where a sampler stands: enough to go on with any number of ranks.
struct SamplerPosition {
  std::int64_t epoch = 0;
  std::uint64_t consumed = 0;  ///< samples of this epoch that all ranks together have had
  std::uint64_t seed = 0;

  friend bool operator==(const SamplerPosition&, const SamplerPosition&) = default;
};

/// Gives each rank its share of `0 .. size - 1`: the very lists of Python's DistributedSampler, for every size, world
/// size, drop_last, shuffle, seed and epoch. A sampler for torch::data::make_data_loader.
///
/// It is a handle: the copy that a data loader takes follows `set_epoch` and `resume`. Call `set_epoch` before each
/// epoch, or the order repeats.
///
/// Position. A checkpoint stores how many samples all ranks have had. Without further ado that is what `next` gave out,
/// right for a loader without worker threads. A loader with workers fetches ahead of the training loop: give the
/// sampler to `to_device` too, or call `delivered()` for each batch that the loop got, and only those count.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// For this process's rank in the group, in each round of Elastic::run the one that it has then.
  DistributedSampler(std::size_t size, const ProcessGroup& group, const DistributedSamplerOptions& options = {});
  /// For a rank and world size of one's own choice. Throws Error unless 0 <= rank < world_size.
  DistributedSampler(std::size_t size, int rank, int world_size, const DistributedSamplerOptions& options = {});

  /// Chooses the order of the next pass. A position that `resume` set for this very epoch is kept, else the pass begins
  /// at 0.
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const;

  /// Samples of this rank in a whole epoch, as Python's len().
  std::size_t size() const;
  /// All of this rank's indices from the current position of the epoch on, in order.
  std::vector<std::size_t> indices() const;

  /// One more batch has reached the training loop. From the first call on, only these count for `position`.
  void delivered(std::size_t batches = 1);
  SamplerPosition position() const;
  /// The next pass begins there, also with another world size than that of the run that stored it: the samples of the
  /// epoch that nobody has had are dealt anew. Throws Error when the seed is another one, for the order would be.
  void resume(const SamplerPosition& position);

  // torch::data::samplers::Sampler

  /// Begins a pass: at the position that `resume` set, once, else at 0. A new size is the size of the data set from now
  /// on.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace torchup

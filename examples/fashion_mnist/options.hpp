#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

namespace fashion_mnist {

struct Options {
  std::filesystem::path data = "/usr/share/datasets/fashion-mnist";  ///< where Debian's dataset-fashion-mnist puts it
  std::int64_t epochs = 1;                                           ///< >= 1
  std::uint64_t samples = 12'000;                                    ///< training images used; 0: all 60,000
  std::int64_t batch_size = 128;                                     ///< images per step over all workers
  double lr = 0.05;
  double momentum = 0.9;
  std::string scheduler = "linear";  ///< linear: lr falls to 0 at the end; cosine, onecycle; none
  double clip = 0;                   ///< largest norm of the gradients; 0: as they are
  bool amp = false;                  ///< forward in bfloat16 (CPU) or float16 (CUDA)
  bool sync_bn = false;              ///< BatchNorm over the batch of all workers
  bool zero = false;                 ///< every worker keeps its share of the optimizer's state only
  std::uint64_t seed = 42;
  std::int64_t steps = 0;  ///< end after so many steps; 0: after the epochs
  std::string backend = "auto";
  std::string device = "auto";       ///< auto, cpu, cuda:N
  std::filesystem::path weights;     ///< begin with these weights: safetensors, or Python's torch.save(state_dict)
  std::filesystem::path checkpoint;  ///< folder; empty: none is written
  bool resume = false;
  bool elastic = false;                ///< a worker that survives a fault goes on
  std::filesystem::path save_weights;  ///< rank 0 writes the trained ones here, as safetensors
  std::filesystem::path history;       ///< rank 0 writes each step's loss here
};

/// The options of a command line without the launcher's own flags, or the exit status where the program ends at once:
/// 0 after --help, which only who `talks` prints; 2 after a complaint on stderr, which every worker writes: who ends
/// first takes the others along, before they may have spoken.
[[nodiscard]] std::optional<Options> parse_options(std::span<char*> arguments, bool talks, int& exit_status);

}  // namespace fashion_mnist

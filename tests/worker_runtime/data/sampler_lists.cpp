// Reads lines "size world_size drop_last shuffle seed epoch" and prints each rank's indices on a line of their own;
// sampler_test.py compares them with Python's.
#include <iostream>
#include <torchup/distributed_sampler.hpp>

#include "tests/worker_runtime/test_program.hpp"

namespace sampler_lists {

int run_as_program(int, char**) {
  std::size_t size = 0;
  int world_size = 0;
  bool drop_last = false, shuffle = false;
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  while (std::cin >> size >> world_size >> drop_last >> shuffle >> seed >> epoch) {
    for (int rank = 0; rank < world_size; ++rank) {
      torchup::DistributedSampler sampler{
          size, rank, world_size, {.shuffle = shuffle, .seed = seed, .drop_last = drop_last}};
      sampler.set_epoch(epoch);
      sampler.reset();
      const char* separator = "";
      while (const auto batch = sampler.next(7)) {
        for (const std::size_t index : *batch) {
          std::cout << separator << index;
          separator = " ";
        }
      }
      std::cout << '\n';
    }
  }
  return 0;
}

const TestProgram program{"sampler_lists", run_as_program};

}  // namespace sampler_lists

// The front of a fan-out, its coordinator and the far ends of its links under simulated time, hosts and links. Nothing
// here sleeps or opens anything.
//
//   fan_out_simulation --histories COUNT [--seed FIRST] [--mutation NAME] [-v]
//                      random histories, each checked against the promises (truth.hpp); 1,000,000 by hand.
//                      A history that breaks one is named by its seed: --histories 1 --seed N -v shows it in full.
//                      With a mutation a rule is switched off, and the histories must find out: exit code 0 then means
//                      that they did not.

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/fan_out/history.hpp"

namespace torchup::simulation {
namespace {

int run_histories(std::uint64_t count, std::uint64_t seed, FanOutMutation mutation, bool verbose) {
  std::printf("histories %llu from seed %llu, mutation %s\n", static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(seed),
              std::string{fan_out_mutation_names[static_cast<std::size_t>(mutation)]}.c_str());
  FanOutHistory::Deeds all;
  for (std::uint64_t i = 0; i < count; ++i) {
    FanOutHistory history{seed + i, mutation, verbose};
    history.run();
    const FanOutHistory::Deeds deeds = history.deeds();
    all.starts += deeds.starts;
    all.rounds += deeds.rounds;
    all.faults += deeds.faults;
    all.successes += deeds.successes;
  }
  std::printf("all hold: %llu hosts started, %llu rounds, %llu faults, %llu jobs ended well\n",
              static_cast<unsigned long long>(all.starts), static_cast<unsigned long long>(all.rounds),
              static_cast<unsigned long long>(all.faults), static_cast<unsigned long long>(all.successes));
  if (count < 100 ||
      (all.starts >= 2 * count && all.rounds >= count && all.faults >= count && all.successes >= count / 10))
    return 0;
  std::fprintf(stderr, "too little happened: the run shows nothing\n");
  return 1;
}

int usage(const char* program) {
  std::fprintf(stderr, "usage: %s --histories COUNT [--seed FIRST] [--mutation NAME] [-v]\n", program);
  return 2;
}

}  // namespace
}  // namespace torchup::simulation

int main(int argc, char** argv) {
  using namespace torchup::simulation;
  const std::vector<std::string> words(argv + 1, argv + argc);
  std::optional<std::uint64_t> histories;
  std::uint64_t seed = 1;
  FanOutMutation mutation = FanOutMutation::none;
  bool verbose = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const bool last = i + 1 == words.size();
    if (word == "-v") {
      verbose = true;
    } else if (word == "--histories" && !last) {
      histories = std::stoull(words[++i]);
    } else if (word == "--seed" && !last) {
      seed = std::stoull(words[++i]);
    } else if (word == "--mutation" && !last) {
      const auto found = std::find(std::begin(fan_out_mutation_names), std::end(fan_out_mutation_names), words[++i]);
      if (found == std::end(fan_out_mutation_names)) return usage(argv[0]);
      mutation = static_cast<FanOutMutation>(found - std::begin(fan_out_mutation_names));
    } else {
      return usage(argv[0]);
    }
  }
  return histories ? run_histories(*histories, seed, mutation, verbose) : usage(argv[0]);
}

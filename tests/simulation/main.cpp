// The round machine and the agents' link machine under simulated time, clocks and networks. Nothing here sleeps or
// opens anything.
//
//   rendezvous_simulation --histories COUNT [--seed FIRST] [--forgetful] [--mutation NAME] [-v]
//                         random histories, each checked against the promises (promises.hpp); 1,000,000 by hand.
//                         A history that breaks one is named by its seed: --histories 1 --seed N -v shows it in full.
//                         --forgetful: one coordinator in three starts again without its memory.
//                         With a mutation a rule is switched off, and the histories must find out: exit code 0 then
//                         means that they did not.
//   rendezvous_simulation --keep-alives AGENTS MINUTES
//                         keep-alives once a second, 1 % of the agents leave and return each minute

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "history.hpp"
#include "keep_alives.hpp"

namespace torchup::simulation {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec) + static_cast<double>(usage.ru_utime.tv_usec) / 1e6;
}

namespace {

int run_histories(std::uint64_t count, std::uint64_t seed, Mutation mutation, bool forgetful, bool verbose) {
  std::printf("histories %llu from seed %llu, mutation %s\n", static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(seed),
              std::string{mutation_names[static_cast<std::size_t>(mutation)]}.c_str());
  History::Deeds all;
  for (std::uint64_t i = 0; i < count; ++i) {
    History history{seed + i, mutation, forgetful, verbose};
    history.run();
    const History::Deeds deeds = history.deeds();
    all.rounds += deeds.rounds;
    all.restarts += deeds.restarts;
    all.node_faults += deeds.node_faults;
    all.coordinator_faults += deeds.coordinator_faults;
    all.orders += deeds.orders;
  }
  std::printf(
      "all hold: %llu rounds, %llu restarts, %llu faults of nodes, %llu of coordinators, %llu orders; %.1f s CPU\n",
      static_cast<unsigned long long>(all.rounds), static_cast<unsigned long long>(all.restarts),
      static_cast<unsigned long long>(all.node_faults), static_cast<unsigned long long>(all.coordinator_faults),
      static_cast<unsigned long long>(all.orders), cpu_seconds());
  const bool much = all.node_faults >= count && all.coordinator_faults >= count / 4 && all.orders >= count / 4;
  if (all.rounds >= count && (count < 100 || much)) return 0;
  std::fprintf(stderr, "too little happened: the run shows nothing\n");
  return 1;
}

int usage(const char* program) {
  std::fprintf(stderr,
               "usage: %s --histories COUNT [--seed FIRST] [--forgetful] [--mutation NAME] [-v] | --keep-alives AGENTS "
               "MINUTES\n",
               program);
  return 2;
}

}  // namespace
}  // namespace torchup::simulation

int main(int argc, char** argv) {
  using namespace torchup::simulation;
  const std::vector<std::string> words(argv + 1, argv + argc);
  std::optional<std::uint64_t> histories;
  std::uint64_t seed = 1;
  Mutation mutation = Mutation::none;
  bool verbose = false, forgetful = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const bool last = i + 1 == words.size();
    if (word == "-v") {
      verbose = true;
    } else if (word == "--forgetful") {
      forgetful = true;
    } else if (word == "--histories" && !last) {
      histories = std::stoull(words[++i]);
    } else if (word == "--seed" && !last) {
      seed = std::stoull(words[++i]);
    } else if (word == "--mutation" && !last) {
      const auto found = std::find(std::begin(mutation_names), std::end(mutation_names), words[++i]);
      if (found == std::end(mutation_names)) return usage(argv[0]);
      mutation = static_cast<Mutation>(found - std::begin(mutation_names));
    } else if (word == "--keep-alives" && words.size() == 3 && i == 0) {
      return run_keep_alives(std::stoi(words[1]), std::stoi(words[2]));
    } else {
      return usage(argv[0]);
    }
  }
  return histories ? run_histories(*histories, seed, mutation, forgetful, verbose) : usage(argv[0]);
}

// Stands in for libFuzzer where there is none: runs a fuzz target on every file of a corpus, and on simple mutations of
// them.
//
// usage: <target>_replay CORPUS_FOLDER MUTATIONS_PER_FILE
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

void mutate(std::vector<std::uint8_t>& bytes, std::minstd_rand& chance) {
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(chance()) % limit; };
  for (std::size_t changes = 1 + below(4); changes > 0; --changes) {
    const auto at = static_cast<std::ptrdiff_t>(below(bytes.size()));
    switch (below(4)) {
      case 0:
        bytes[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(chance());
        break;
      case 1:
        bytes[static_cast<std::size_t>(at)] ^= static_cast<std::uint8_t>(1u << below(8));
        break;
      case 2:
        bytes.insert(bytes.begin() + at, static_cast<std::uint8_t>(chance()));
        break;
      default:
        if (bytes.size() > 2) bytes.erase(bytes.begin() + at);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: %s CORPUS_FOLDER MUTATIONS_PER_FILE\n", argv[0]), 2;
  std::size_t runs = 0;
  for (const auto& entry : std::filesystem::directory_iterator{argv[1]}) {
    std::ifstream file{entry.path(), std::ios::binary};
    const std::vector<std::uint8_t> original{std::istreambuf_iterator<char>{file}, {}};
    if (original.empty()) continue;
    std::printf("%s\n", entry.path().filename().c_str()), std::fflush(stdout);  // names the culprit of an abort
    LLVMFuzzerTestOneInput(original.data(), original.size());
    std::minstd_rand chance{static_cast<unsigned>(original.size())};
    auto bytes = original;
    for (int i = std::atoi(argv[2]); i > 0; --i, ++runs) {
      if (i % 50 == 0) bytes = original;
      mutate(bytes, chance);
      LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    }
  }
  std::printf("%zu runs\n", runs);
  return runs > 0 ? 0 : 1;
}

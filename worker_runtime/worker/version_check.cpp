// Compares the LibTorch that was loaded with the one whose headers this library was compiled with, before anything else
// of LibTorch is called. Struct layouts and inlined code differ between releases: a mixed program fails far from the
// cause.
//
// This file names no type of LibTorch and needs one symbol of it, which all releases have: with lazy binding a program
// whose other symbols are missing still gets here.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "build_config.hpp"

namespace at {
std::string show_config();  // prints "TORCH_VERSION=2.15.0" among its build settings
}

namespace torchup {
namespace {

std::string found_version() {
  const std::string settings = at::show_config();
  const std::string_view name = "TORCH_VERSION=";
  const auto start = settings.find(name);
  if (start == settings.npos) return "";
  const auto from = start + name.size();
  return settings.substr(from, settings.find_first_of(", \n", from) - from);
}

/// "2.15.0" of "2.15.0+cu132": the settings leave the local part out.
std::string release_of(const std::string& version) { return version.substr(0, version.find('+')); }

[[gnu::constructor(101)]] void refuse_another_torch() {
  const std::string built = TORCHUP_BUILT_WITH_TORCH, found = found_version();
  if (release_of(found) == release_of(built)) return;
  std::fprintf(
      stderr,
      "torchup: this program was built with torch %s and found torch %s at its start. Build it again with the torch "
      "that is installed (cmake --fresh), or run it with the one it was built with.\n",
      built.c_str(), found.empty() ? "of an unknown version" : found.c_str());
  _exit(EXIT_FAILURE);
}

}  // namespace

}  // namespace torchup

// The link line of every user asks for this name (CMakeLists.txt), so that the linker takes this file out of the
// archive.
extern "C" const char* const torchup_built_with_torch = TORCHUP_BUILT_WITH_TORCH;

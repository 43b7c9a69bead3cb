#include <cstdio>

#include "launcher/core/options/manual.hpp"

/// Writes torchup(1) to stdout; run by the build.
int main() { return std::fputs(torchup::manual_page(TORCHUP_VERSION).c_str(), stdout) < 0 ? 1 : 0; }

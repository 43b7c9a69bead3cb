#include <cstdio>

#include "launcher/ctl/ctl_manual.hpp"

/// Writes torchupctl(1) to stdout; run by the build.
int main() { return std::fputs(torchup::ctl_manual_page(TORCHUP_VERSION).c_str(), stdout) < 0 ? 1 : 0; }

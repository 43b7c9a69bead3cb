#include <cstdio>

#include "rendezvous/cli.hpp"

/// Writes torchupd(8) to stdout; run by the build.
int main() { return std::fputs(torchup::daemon_manual(TORCHUP_VERSION).c_str(), stdout) < 0 ? 1 : 0; }

#include <cstdio>
#include <thread>

#include "launcher/os/worker/child_process.hpp"

/// A race of two threads, one of which has started a child: ThreadSanitizer must see it.
int main() {
  torchup::ChildRequest request;
  request.executable = "/bin/true";
  request.arguments = {"true"};
  int raced = 0;
  std::thread other{[&] { ++raced; }};
  if (const auto child = torchup::start_child(request); !child) {
    std::fprintf(stderr, "%s\n", child.error().context.c_str());
    return 1;
  }
  ++raced;
  other.join();
}

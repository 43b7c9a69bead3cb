#include "launcher/os/machine/own_environment.hpp"

#include <unistd.h>

extern char** environ;

namespace torchup {

std::vector<std::string> own_environment() {
  std::vector<std::string> list;
  for (char** entry = environ; *entry; ++entry) list.emplace_back(*entry);
  return list;
}

}  // namespace torchup

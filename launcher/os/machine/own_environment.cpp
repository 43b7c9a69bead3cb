#include "launcher/os/machine/own_environment.hpp"

#include <unistd.h>

#include <filesystem>
#include <system_error>

extern char** environ;

namespace torchup {

std::vector<std::string> own_environment() {
  std::vector<std::string> list;
  for (char** entry = environ; *entry; ++entry) list.emplace_back(*entry);
  return list;
}

std::string own_directory() {
  std::error_code none;
  return std::filesystem::current_path(none).string();
}

std::string own_program() {
  std::error_code none;
  return std::filesystem::read_symlink("/proc/self/exe", none).string();
}

}  // namespace torchup

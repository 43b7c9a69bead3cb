#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace torchup::test {

/// An empty folder, which is gone with all that is in it when this is.
class TemporaryFolder {
 public:
  TemporaryFolder() : TemporaryFolder{std::filesystem::temp_directory_path()} {}
  explicit TemporaryFolder(const std::filesystem::path& parent) {
    std::string name = (parent / "torchup-test-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::runtime_error{"mkdtemp " + name};
    path = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::filesystem::path path;
};

}  // namespace torchup::test

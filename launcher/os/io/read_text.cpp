#include "launcher/os/io/read_text.hpp"

#include <fstream>
#include <iterator>

namespace torchup {

std::string read_text(const std::string& path) {
  std::ifstream file{path};
  return {std::istreambuf_iterator<char>{file}, {}};
}

}  // namespace torchup

#include "text.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace language_model {
namespace {

std::vector<std::filesystem::path> files_of(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator{path})
    if (entry.is_regular_file() && !entry.is_symlink()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());  // every rank reads them in the same order
  return files;
}

}  // namespace

Text read_text(const std::filesystem::path& path) {
  std::string characters;
  for (const auto& file : files_of(path)) {
    std::ifstream stream{file, std::ios::binary};
    if (!stream) throw std::runtime_error{file.string() + ": cannot be read"};
    characters.append(std::istreambuf_iterator<char>{stream}, {});
  }
  if (characters.empty()) throw std::runtime_error{path.string() + ": holds no text"};

  std::array<std::int64_t, 256> code_of{};
  for (const unsigned char character : characters) code_of[character] = 1;
  Text text;
  for (std::size_t character = 0; character < code_of.size(); ++character) {
    if (code_of[character] == 0) continue;
    code_of[character] = static_cast<std::int64_t>(text.alphabet.size());
    text.alphabet.push_back(static_cast<char>(character));
  }
  text.codes.reserve(characters.size());
  for (const unsigned char character : characters) text.codes.push_back(code_of[character]);
  return text;
}

}  // namespace language_model

#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace language_model {

/// Debian's licences, in every installation: about 250 kB of English.
inline const std::filesystem::path default_text = "/usr/share/common-licenses";

/// A text as numbers, one per character; the alphabet is what occurs in it.
struct Text {
  std::string alphabet;             ///< sorted; a character's number is its place
  std::vector<std::int64_t> codes;  ///< 0 .. alphabet.size() - 1
};

/// The file, or all regular files of the folder by name, one after another (links are left out: they repeat a file).
/// Throws std::runtime_error when there is nothing to read.
Text read_text(const std::filesystem::path& path);

}  // namespace language_model

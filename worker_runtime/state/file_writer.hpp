#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <torchup/safetensors.hpp>

namespace torchup {

/// A file that appears whole or not at all: written as `<path>.tmp-<pid>`, on disk before it gets its name.
///
/// Throws Error with the file's name when anything fails. Destroyed without `commit`, it leaves nothing.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* data, std::size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// fsync, rename, fsync of the folder.
  WrittenFile commit();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int fd_;
  WrittenFile written_;
};

/// Makes a rename or removal in `folder` last through a power cut.
void sync_folder(const std::filesystem::path& folder);

}  // namespace torchup

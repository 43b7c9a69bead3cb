#pragma once

#include <cstdint>
#include <filesystem>
#include <torchup/error.hpp>

namespace torchup {

/// The machine did not give a file's bytes: nothing is known of what they are, and another time it may give them.
struct NotRead : Error {
  using Error::Error;
};

/// A regular file, read from the beginning on, with the checksum of what was read so; or anywhere, without. Throws
/// Error with the file's name: NotRead where the machine failed.
class FileReader {
 public:
  explicit FileReader(std::filesystem::path path);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }                     ///< of the whole file, when it was opened
  void read(void* data, std::size_t size);                           ///< exactly `size` bytes
  void read_at(std::uint64_t offset, void* data, std::size_t size);  ///< exactly `size` bytes from there on
  std::uint32_t crc32() const { return crc32_; }                     ///< of all bytes that `read` gave

 private:
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path path_;
  int fd_;
  std::uint64_t bytes_ = 0;
  std::uint32_t crc32_ = 0;
};

}  // namespace torchup

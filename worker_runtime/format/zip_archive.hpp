#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace torchup {

// What a zip's directory may cost, whatever its bytes say. torch.save writes 100 bytes for each tensor.
inline constexpr std::uint64_t zip_directory_bytes_max = std::uint64_t{256} << 20;
inline constexpr std::size_t zip_records_max = std::size_t{4} << 20;

/// A record of an archive.
struct ZipRecord {
  std::uint64_t header = 0;  ///< where its own header begins
  std::uint64_t bytes = 0;   ///< as it stands in the file
  std::uint32_t crc32 = 0;
  bool plain = true;  ///< neither compressed nor encrypted
};

/// Where a record's bytes are in the file.
struct ZipPlace {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

/// The records of a zip archive in which, as torch.save writes it, nothing is compressed: they are read where they
/// stand, and no number of the file makes anybody allocate more than the file holds.
///
/// The file is a stranger's. Needs no LibTorch. Throws Error that says what is wrong, without the file's name.
/// Source of the format: PKWARE's APPNOTE.TXT, 4.3 (headers, zip64) and 4.5.3 (zip64 extra field).
class ZipArchive {
 public:
  /// Exactly `size` bytes from `offset` on; both are within the file.
  using ReadAt = std::function<void(std::uint64_t offset, char* data, std::size_t size)>;
  ZipArchive(std::uint64_t file_bytes, ReadAt read_at);

  /// Nothing: there is none of that name. All names begin with the same folder, which is left out.
  [[nodiscard]] const ZipRecord* find(std::string_view name) const;
  [[nodiscard]] const std::map<std::string, ZipRecord, std::less<>>& records() const { return records_; }
  /// Errors: it is compressed or encrypted; its own header is none, or not within the file.
  [[nodiscard]] ZipPlace place_of(const ZipRecord& record) const;

 private:
  struct Directory {
    std::uint64_t begin = 0;
    std::uint64_t bytes = 0;
    std::uint64_t records = 0;
  };
  [[nodiscard]] std::string text_at(std::uint64_t offset, std::uint64_t size) const;
  [[nodiscard]] Directory find_directory() const;
  [[nodiscard]] Directory find_zip64_directory(std::uint64_t end) const;
  void read_directory(const Directory& directory);

  std::uint64_t file_bytes_;
  ReadAt read_at_;
  std::uint64_t directory_begin_ = 0;
  std::map<std::string, ZipRecord, std::less<>> records_;
};

}  // namespace torchup

#include "worker_runtime/format/zip_archive.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <torchup/error.hpp>
#include <utility>

namespace torchup {
namespace {

constexpr std::uint64_t local_header_bytes = 30;
constexpr std::uint64_t entry_bytes = 46;
constexpr std::uint64_t end_bytes = 22;
constexpr std::uint64_t comment_bytes_max = 0xFFFF;
constexpr std::uint64_t zip64_locator_bytes = 20;
constexpr std::uint64_t zip64_end_bytes = 56;
constexpr std::string_view local_header_mark = "PK\3\4";
constexpr std::string_view entry_mark = "PK\1\2";
constexpr std::string_view end_mark = "PK\5\6";
constexpr std::string_view zip64_locator_mark = "PK\6\7";
constexpr std::string_view zip64_end_mark = "PK\6\6";
constexpr std::uint64_t in_zip64_field = 0xFFFFFFFF;  ///< a number that does not fit stands in the extra field
constexpr std::uint64_t zip64_field = 1;
constexpr std::uint64_t encrypted_flag = 1;

/// A little-endian number of `size` bytes; it is within `text`.
std::uint64_t number(std::string_view text, std::size_t at, std::size_t size) {
  std::uint64_t value = 0;
  for (std::size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(text.at(at + i));
  return value;
}

/// Puts what the zip64 field of `extra` holds in place of those numbers, in their order, that did not fit.
void widen(std::string_view extra, std::initializer_list<std::uint64_t*> numbers) {
  while (extra.size() >= 4) {
    const std::uint64_t kind = number(extra, 0, 2);
    const std::size_t size = std::min<std::size_t>(number(extra, 2, 2), extra.size() - 4);
    std::string_view field = extra.substr(4, size);
    extra.remove_prefix(4 + size);
    if (kind != zip64_field) continue;
    for (std::uint64_t* const wide : numbers) {
      if (*wide != in_zip64_field) continue;
      if (field.size() < 8) throw Error{"its directory is damaged: a large number is missing"};
      *wide = number(field, 0, 8);
      field.remove_prefix(8);
    }
    return;
  }
}

}  // namespace

ZipArchive::ZipArchive(std::uint64_t file_bytes, ReadAt read_at)
    : file_bytes_{file_bytes}, read_at_{std::move(read_at)} {
  const Directory directory = find_directory();
  directory_begin_ = directory.begin;
  read_directory(directory);
}

std::string ZipArchive::text_at(std::uint64_t offset, std::uint64_t size) const {
  std::string text(size, '\0');
  read_at_(offset, text.data(), text.size());
  return text;
}

/// By the mark near the file's end that is as far from it as its comment is long.
ZipArchive::Directory ZipArchive::find_directory() const {
  const std::uint64_t tail_bytes = std::min(file_bytes_, end_bytes + comment_bytes_max);
  const std::string tail = text_at(file_bytes_ - tail_bytes, tail_bytes);
  for (std::size_t at = tail.rfind(end_mark); at != std::string::npos;
       at = at == 0 ? at - 1 : tail.rfind(end_mark, at - 1)) {
    if (tail.size() - at < end_bytes || tail.size() - at != end_bytes + number(tail, at + 20, 2)) continue;
    const std::uint64_t end = file_bytes_ - tail.size() + at;
    Directory found{number(tail, at + 16, 4), number(tail, at + 12, 4), number(tail, at + 10, 2)};
    const bool is_zip64 =
        at >= zip64_locator_bytes && tail.compare(at - zip64_locator_bytes, 4, zip64_locator_mark) == 0;
    if (is_zip64) found = find_zip64_directory(number(tail, at - zip64_locator_bytes + 8, 8));
    if (found.begin > end || found.bytes > end - found.begin) throw Error{"its directory is not within the file"};
    return found;
  }
  throw Error{"it is no zip archive, or cut short: its directory is missing"};
}

ZipArchive::Directory ZipArchive::find_zip64_directory(std::uint64_t end) const {
  if (file_bytes_ < zip64_end_bytes || end > file_bytes_ - zip64_end_bytes)
    throw Error{"its directory is not within the file"};
  const std::string text = text_at(end, zip64_end_bytes);
  if (!text.starts_with(zip64_end_mark)) throw Error{"its directory is damaged"};
  return {number(text, 48, 8), number(text, 40, 8), number(text, 32, 8)};
}

void ZipArchive::read_directory(const Directory& directory) {
  if (directory.bytes > zip_directory_bytes_max || directory.records > zip_records_max)
    throw Error{
        fmt::format("its directory has more than {} bytes or {} records", zip_directory_bytes_max, zip_records_max)};
  const std::string whole = text_at(directory.begin, directory.bytes);
  std::string_view text = whole;
  std::string folder;
  for (std::uint64_t i = 0; i < directory.records; ++i) {
    if (text.size() < entry_bytes || !text.starts_with(entry_mark)) throw Error{"its directory is damaged"};
    ZipRecord record;
    std::uint64_t unpacked = number(text, 24, 4);
    record.bytes = number(text, 20, 4);
    record.header = number(text, 42, 4);
    record.crc32 = static_cast<std::uint32_t>(number(text, 16, 4));
    const std::size_t name_bytes = number(text, 28, 2), extra_bytes = number(text, 30, 2);
    const std::size_t more = name_bytes + extra_bytes + number(text, 32, 2);
    if (text.size() - entry_bytes < more) throw Error{"its directory is damaged"};
    widen(text.substr(entry_bytes + name_bytes, extra_bytes), {&unpacked, &record.bytes, &record.header});
    record.plain = number(text, 10, 2) == 0 && (number(text, 8, 2) & encrypted_flag) == 0 && unpacked == record.bytes;
    std::string name{text.substr(entry_bytes, name_bytes)};
    text.remove_prefix(entry_bytes + more);
    const auto slash = name.find('/');
    if (i == 0 && slash != std::string::npos) folder = name.substr(0, slash + 1);
    if (!name.starts_with(folder)) throw Error{fmt::format("its records are not all in one folder: {}", name)};
    name.erase(0, folder.size());
    if (!records_.emplace(std::move(name), record).second) throw Error{"two of its records have one name"};
  }
}

const ZipRecord* ZipArchive::find(std::string_view name) const {
  const auto found = records_.find(name);
  return found == records_.end() ? nullptr : &found->second;
}

ZipPlace ZipArchive::place_of(const ZipRecord& record) const {
  if (!record.plain)
    throw Error{"a record is compressed, as torch.save leaves none: load it with Python and save it again"};
  const std::uint64_t limit = directory_begin_;
  if (limit < local_header_bytes || record.header > limit - local_header_bytes)
    throw Error{"a record is not within the file"};
  const std::string header = text_at(record.header, local_header_bytes);
  if (!header.starts_with(local_header_mark)) throw Error{"a record's header is damaged"};
  const std::uint64_t begin = record.header + local_header_bytes + number(header, 26, 2) + number(header, 28, 2);
  if (begin > limit || record.bytes > limit - begin) throw Error{"a record is not within the file"};
  return {begin, record.bytes};
}

}  // namespace torchup

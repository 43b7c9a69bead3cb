#include "launcher/core/text/stored_zip.hpp"

#include <boost/crc.hpp>
#include <cstdint>

namespace torchup {
namespace {

/// Little-endian fields, one behind the other.
class Fields {
 public:
  Fields& two(std::size_t value) { return add(value, 2); }
  Fields& four(std::size_t value) { return add(value, 4); }
  Fields& text(std::string_view value) {
    bytes_.append(value);
    return *this;
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  Fields& add(std::size_t value, int width) {
    for (int i = 0; i < width; ++i, value >>= 8) bytes_.push_back(static_cast<char>(value & 0xff));
    return *this;
  }
  std::string bytes_;
};

}  // namespace

std::string stored_zip(std::string_view name, std::string_view content) {
  constexpr std::size_t version = 10;
  constexpr std::size_t first_day = 0x21;  // 1980-01-01
  boost::crc_32_type checksum;
  checksum.process_bytes(content.data(), content.size());
  // What the file's own header and the directory both say: version, flags, method, time, date, checksum, sizes, names.
  Fields common;
  common.two(version).two(0).two(0).two(0).two(first_day).four(checksum.checksum());
  common.four(content.size()).four(content.size()).two(name.size()).two(0);

  Fields archive;
  archive.text("PK\3\4").text(common.bytes()).text(name).text(content);
  const std::size_t directory = archive.bytes().size();
  archive.text("PK\1\2").two(version).text(common.bytes());
  archive.two(0).two(0).two(0).four(0).four(0).text(name);  // no comment, disk 0, no attributes, at the beginning
  const std::size_t directory_bytes = archive.bytes().size() - directory;
  archive.text("PK\5\6").two(0).two(0).two(1).two(1).four(directory_bytes).four(directory).two(0);
  return archive.bytes();
}

}  // namespace torchup

#include "worker_runtime/format/zip_archive.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <torchup/error.hpp>
#include <vector>

using namespace torchup;
using Catch::Contains;

namespace {

std::string little_endian(std::uint64_t value, std::size_t size) {
  std::string text(size, '\0');
  for (char& byte : text) {
    byte = static_cast<char>(value);
    value >>= 8;
  }
  return text;
}

struct Written {
  std::string name;
  std::string data;
  std::uint64_t method = 0;
  std::uint64_t unpacked = 0;  ///< 0: as long as the data
};

/// A zip as torch.save or zipfile writes it; `wide`: in zip64.
std::string zip_of(const std::vector<Written>& records, bool wide = false, const std::string& comment = "") {
  std::string file, directory;
  for (const Written& each : records) {
    const std::uint64_t unpacked = each.unpacked != 0 ? each.unpacked : each.data.size();
    const std::uint64_t at = file.size();
    file += "PK\3\4" + std::string(22, '\0') + little_endian(each.name.size(), 2) + little_endian(3, 2) + each.name +
            "pad" + each.data;
    const std::string extra = wide ? little_endian(7, 2) + little_endian(1, 2) + "x" + little_endian(1, 2) +
                                         little_endian(24, 2) + little_endian(unpacked, 8) +
                                         little_endian(each.data.size(), 8) + little_endian(at, 8)
                                   : "";
    const auto narrow = [&](std::uint64_t value) { return little_endian(wide ? 0xFFFFFFFF : value, 4); };
    directory += "PK\1\2" + std::string(4, '\0') + little_endian(0, 2) + little_endian(each.method, 2) +
                 std::string(4, '\0') + little_endian(77, 4) + narrow(each.data.size()) + narrow(unpacked) +
                 little_endian(each.name.size(), 2) + little_endian(extra.size(), 2) + std::string(10, '\0') +
                 narrow(at) + each.name + extra;
  }
  const std::uint64_t begin = file.size();
  file += directory;
  if (wide) {
    const std::uint64_t end = file.size();
    file += "PK\6\6" + std::string(28, '\0') + little_endian(records.size(), 8) + little_endian(directory.size(), 8) +
            little_endian(begin, 8);
    file += "PK\6\7" + std::string(4, '\0') + little_endian(end, 8) + little_endian(1, 4);
  }
  file += "PK\5\6" + std::string(6, '\0') + little_endian(wide ? 0xFFFF : records.size(), 2) +
          little_endian(wide ? 0xFFFFFFFF : directory.size(), 4) + little_endian(wide ? 0xFFFFFFFF : begin, 4) +
          little_endian(comment.size(), 2) + comment;
  return file;
}

ZipArchive open(const std::string& file) {
  return {file.size(), [&file](std::uint64_t offset, char* data, std::size_t size) {
            REQUIRE(size <= file.size());
            REQUIRE(offset <= file.size() - size);
            std::memcpy(data, file.data() + offset, size);
          }};
}

std::string content(const std::string& file, const std::string& name) {
  const ZipArchive archive = open(file);
  REQUIRE(archive.find(name));
  const ZipPlace place = archive.place_of(*archive.find(name));
  return file.substr(place.begin, place.bytes);
}

}  // namespace

TEST_CASE("records stand in the file as they are", "[unit][zip]") {
  const bool wide = GENERATE(false, true);
  const std::string file =
      zip_of({{"x/data.pkl", "pickle"}, {"x/data/0", ""}, {"x/version", "3\n"}}, wide, "PK\5\6 comment");
  REQUIRE(content(file, "data.pkl") == "pickle");
  REQUIRE(content(file, "data/0").empty());
  REQUIRE(content(file, "version") == "3\n");
  REQUIRE_FALSE(open(file).find("x/version"));
  REQUIRE(open(file).find("version")->crc32 == 77);
}

TEST_CASE("a record that swells is found, and not read", "[unit][zip]") {
  const std::uint64_t huge = GENERATE(std::uint64_t{1} << 30, std::uint64_t{1} << 62);
  const std::string file =
      zip_of({{"x/data.pkl", "pickle"}, {"x/version", "3\n", 8, huge}, {"x/a", "stored?", 0, huge}}, true);
  const ZipArchive archive = open(file);
  REQUIRE_THROWS_WITH(archive.place_of(*archive.find("version")), Contains("compressed"));
  REQUIRE_THROWS_WITH(archive.place_of(*archive.find("a")), Contains("compressed"));
  REQUIRE(content(file, "data.pkl") == "pickle");
}

TEST_CASE("what a directory says must fit the file", "[unit][zip]") {
  const bool wide = GENERATE(false, true);
  const std::string file = zip_of({{"x/a", "12345"}, {"x/b", "678"}}, wide);
  REQUIRE_THROWS_WITH(open(""), Contains("no zip archive"));
  REQUIRE_THROWS_AS(open(zip_of({{"x/a", "1"}, {"y/b", "1"}}, wide)), Error);
  REQUIRE_THROWS_AS(open(zip_of({{"x/a", "1"}, {"x/a", "1"}}, wide)), Error);
  for (std::size_t size = 0; size < file.size(); ++size) REQUIRE_THROWS_AS(open(file.substr(0, size)), Error);
  // Whatever a byte says: an error, or records within the file.
  for (std::size_t at = 0; at < file.size(); ++at) {
    for (const int value : {0x00, 0x01, 0x7F, 0xFF}) {
      std::string damaged = file;
      damaged[at] = static_cast<char>(value);
      try {
        const ZipArchive archive = open(damaged);
        for (const auto& [name, record] : archive.records()) {
          const ZipPlace place = archive.place_of(record);
          REQUIRE(place.begin <= damaged.size());
          REQUIRE(place.bytes <= damaged.size() - place.begin);
        }
      } catch (const Error&) {  // refused
      }
    }
  }
}

TEST_CASE("a directory beyond the limits is refused before it is read", "[unit][zip]") {
  // The end alone of an archive of 2^40 bytes, all of which could be read.
  const auto open_end = [](std::uint64_t directory_bytes, std::uint64_t records) {
    constexpr std::uint64_t file_bytes = std::uint64_t{1} << 40;
    const std::uint64_t end_at = file_bytes - 56 - 20 - 22;
    const std::string end = "PK\6\6" + std::string(28, '\0') + little_endian(records, 8) +
                            little_endian(directory_bytes, 8) + little_endian(0, 8) + "PK\6\7" + std::string(4, '\0') +
                            little_endian(end_at, 8) + little_endian(1, 4) + "PK\5\6" + std::string(18, '\0');
    return ZipArchive{file_bytes, [&](std::uint64_t offset, char* data, std::size_t size) {
                        std::memset(data, 0, size);
                        for (std::size_t i = 0; i < size; ++i)
                          if (offset + i >= end_at) data[i] = end[offset + i - end_at];
                      }};
  };
  REQUIRE(open_end(0, 0).records().empty());
  REQUIRE_THROWS_WITH(open_end(zip_directory_bytes_max + 1, 1), Contains("more than 268435456 bytes"));
  REQUIRE_THROWS_WITH(open_end(46, zip_records_max + 1), Contains("or 4194304 records"));
  REQUIRE_THROWS_WITH(open_end(46, zip_records_max), Contains("damaged"));
}

// A zip archive, from whomever: refused with our Error, or its records are within the file, and nothing beyond it is
// read.
//
// Input: the file.
#include <cstring>
#include <torchup/error.hpp>

#include "tests/fuzz/fuzz.hpp"
#include "worker_runtime/format/zip_archive.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const ZipArchive archive{size, [&](std::uint64_t offset, char* to, std::size_t bytes) {
                               fuzz::require(bytes <= size && offset <= size - bytes);
                               if (bytes > 0) std::memcpy(to, data + offset, bytes);
                             }};
    for (const auto& [name, record] : archive.records()) {
      try {
        const ZipPlace place = archive.place_of(record);
        fuzz::require(place.begin <= size && place.bytes <= size - place.begin);
      } catch (const Error&) {  // this one is refused
      }
    }
  } catch (const Error&) {  // refused
  }
  return 0;
}

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

/// What the fuzz targets share. libFuzzer calls their LLVMFuzzerTestOneInput; without it replay.cpp does.
namespace fuzz {

/// A finding.
inline void require(bool condition) {
  if (!condition) std::abort();
}

/// How many bytes come at a time: a sequence that one byte of the input chooses.
class PieceSize {
 public:
  explicit PieceSize(std::uint8_t seed) : state_{seed * 2654435761u + 1} {}
  static PieceSize whole() {
    PieceSize size{0};
    size.whole_ = true;
    return size;
  }
  std::size_t next() {
    if (whole_) return SIZE_MAX;
    state_ = state_ * 1103515245u + 12345u;
    const std::size_t choice = state_ >> 20;
    return choice % 4 == 0 ? 1 : choice % 4 == 1 ? 1 + choice % 16 : 1 + choice;  // up to 4096
  }

 private:
  std::uint32_t state_;
  bool whole_ = false;
};

/// Takes an input apart, byte by byte; zeros when it is used up.
class Choices {
 public:
  Choices(const std::uint8_t* data, std::size_t size) : data_{data}, left_{size} {}
  [[nodiscard]] bool any() const { return left_ > 0; }
  std::uint8_t next() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  std::uint8_t below(unsigned limit) { return static_cast<std::uint8_t>(next() % limit); }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

}  // namespace fuzz

#pragma once

#include <cstddef>
#include <utility>

namespace torchup {

/// Bytes that count in a sum for as long as this lives.
class CountedBytes {
 public:
  CountedBytes(std::size_t& sum, std::size_t bytes) : sum_{&sum}, bytes_{bytes} { sum += bytes; }
  CountedBytes(CountedBytes&& other) noexcept : sum_{other.sum_}, bytes_{std::exchange(other.bytes_, 0)} {}
  CountedBytes& operator=(CountedBytes&& other) noexcept {
    std::swap(sum_, other.sum_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~CountedBytes() { *sum_ -= bytes_; }

  void resize(std::size_t bytes) {
    *sum_ += bytes - bytes_;
    bytes_ = bytes;
  }
  [[nodiscard]] std::size_t count() const { return bytes_; }

 private:
  std::size_t* sum_;
  std::size_t bytes_;
};

}  // namespace torchup

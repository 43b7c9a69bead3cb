#pragma once

#include <memory>
#include <utility>

namespace torchup {

/// A value that nobody changes, so that whoever keeps a copy, on whatever thread, keeps a reference. Copied in no time,
/// however large; compares as the value does.
template <class T>
class Shared {
 public:
  Shared() : Shared{T{}} {}
  Shared(T value) : value_{std::make_shared<const T>(std::move(value))} {}  // NOLINT: it is the value
  operator const T&() const { return *value_; }                             // NOLINT: likewise
  const T& operator*() const { return *value_; }
  const T* operator->() const { return value_.get(); }
  friend bool operator==(const Shared& left, const Shared& right) {
    return left.value_ == right.value_ || *left == *right;
  }

 private:
  std::shared_ptr<const T> value_;
};

}  // namespace torchup

#pragma once

#include <compare>
#include <utility>

namespace torchup {

/// A number or text that must not be mixed with others of the same representation. `Tag` names what it counts.
template <class Tag, class T>
class Strong {
 public:
  constexpr explicit Strong(T value) : value_{std::move(value)} {}
  [[nodiscard]] constexpr const T& value() const { return value_; }
  friend constexpr auto operator<=>(const Strong&, const Strong&) = default;

 private:
  T value_;
};

}  // namespace torchup

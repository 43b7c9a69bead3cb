#pragma once

#include <torch/types.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torchup {

// Finding the tensors in what a module's forward returns. DDP must know them all: with find_unused_parameters the graph
// is searched from there.
//
// Known types: Tensor, and optional, pair, tuple, vector, array, map, unordered_map of known types; numbers,
// enumerators and strings hold none. For a type of your own write, beside it and in its namespace,
//
//   template <class Visit> void for_each_tensor(MyOutput& output, Visit&& visit) { visit(output.logits);
//   visit(output.hidden); }
//
// where `visit` takes any known type. A type that is neither does not compile.

namespace detail {

template <class T, template <class...> class Template>
inline constexpr bool is_a = false;
template <class... Arguments, template <class...> class Template>
inline constexpr bool is_a<Template<Arguments...>, Template> = true;
template <class T>
inline constexpr bool is_array = false;
template <class T, std::size_t count>
inline constexpr bool is_array<std::array<T, count>> = true;

template <class T>
inline constexpr bool holds_no_tensor = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::same_as<T, std::string>;
template <class T>
inline constexpr bool always_false = false;

/// Hides the functions of this name in to_device.hpp, which know fewer types: only those beside a type are meant here,
/// whichever header was included first.
void for_each_tensor() = delete;

struct AnyVisit {
  template <class T>
  void operator()(T&) const {}
};
template <class T>
concept HasOverload = requires(T& value, AnyVisit visit) {
  for_each_tensor(value, visit);
};

template <class T, class Visit>
void visit_tensors(T& value, Visit& visit) {
  if constexpr (std::same_as<T, torch::Tensor>) {
    visit(value);
  } else if constexpr (HasOverload<T>) {
    auto inner = [&visit](auto& part) { visit_tensors(part, visit); };
    for_each_tensor(value, inner);
  } else if constexpr (is_a<T, std::optional>) {
    if (value) visit_tensors(*value, visit);
  } else if constexpr (is_a<T, std::pair> || is_a<T, std::tuple>) {
    std::apply([&visit](auto&... parts) { (visit_tensors(parts, visit), ...); }, value);
  } else if constexpr (is_a<T, std::map> || is_a<T, std::unordered_map>) {
    for (auto& [key, part] : value) visit_tensors(part, visit);
  } else if constexpr (is_a<T, std::vector> || is_array<T>) {
    if constexpr (!holds_no_tensor<typename T::value_type>)
      for (auto& part : value) visit_tensors(part, visit);
  } else {
    static_assert(
        holds_no_tensor<T>,
        "forward returns a type in which torchup cannot find the tensors: write for_each_tensor(MyType&, visit) for "
        "it, see torchup/output_tensors.hpp");
  }
}

}  // namespace detail

/// Calls visit(Tensor&) for every tensor in `value`.
template <class T, class Visit>
void visit_output_tensors(T& value, Visit visit) {
  detail::visit_tensors(value, visit);
}

}  // namespace torchup

#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/base/result.hpp"

/// For .cpp files of this room: fields of JSON that others wrote.
namespace torchup::etcd {

inline constexpr int json_depth_max = 16;  ///< etcd's deepest answer has 7 levels

/// The object that `bytes` are. Deeper than json_depth_max nothing is built, so that a few bytes cost no more memory
/// than what etcd sends. Errors: errc::bad_frame; errc::limit_exceeded beyond `bytes_max`.
[[nodiscard]] Result<nlohmann::json> parse_object(std::string_view bytes, std::size_t bytes_max);

/// Takes an object apart. The first thing that is wrong is kept, and makes all reads behind it empty.
class Fields {
 public:
  using json = nlohmann::json;
  explicit Fields(const json& object) : object_{&object} {
    if (!object.is_object()) wrong("it is no object");
  }

  /// A decimal string; left out: 0.
  template <std::integral Number>
  Number number(const char* name) {
    const std::string_view digits = text(name);
    Number value{0};
    if (digits.empty()) return value;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc{} || end != digits.data() + digits.size()) wrong(std::string{name} + " is no number");
    return error_ ? Number{0} : value;
  }
  /// As JSON writes numbers, whole; it must be there.
  std::int64_t plain_number(const char* name);
  /// Left out: empty.
  std::string_view text(const char* name);
  std::string bytes(const char* name);  ///< of base64, which is whole and has nothing else in it
  bool flag(const char* name);
  const json* object(const char* name);  ///< null when it is left out
  const json& array(const char* name);   ///< left out: empty

  void wrong(std::string what) {
    if (!error_) error_ = fail(errc::bad_frame, std::move(what));
  }
  void wrong(const Error& error) {
    if (!error_) error_ = error;
  }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

 private:
  const json* member(const char* name, json::value_t kind, const char* kind_name);

  const json* object_;
  std::optional<Error> error_ = {};
};

}  // namespace torchup::etcd

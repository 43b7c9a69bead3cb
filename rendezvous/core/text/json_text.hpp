#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// JSON written as text, for answers that are long or often made: a tree of values costs a hundred times as much.
namespace torchup {

/// Appends `text` as a JSON string, in quotes. Bytes that are no UTF-8 become U+FFFD; control characters and U+2028 and
/// U+2029 are escaped, and so is `<`: what is put into a page's script cannot end it.
void put_json(std::string& out, std::string_view text);

/// An object under construction: each call appends a member.
class JsonObject {
 public:
  explicit JsonObject(std::string& out) : out_{out}, begin_{out.size()} { out_ += '{'; }

  JsonObject& text(std::string_view name, std::string_view value);
  /// null where it is empty.
  JsonObject& text_or_null(std::string_view name, std::string_view value);
  JsonObject& number(std::string_view name, std::int64_t value);
  JsonObject& number_or_null(std::string_view name, std::optional<std::int64_t> value);
  /// With `decimals` digits behind the point; what is no number is null.
  JsonObject& real(std::string_view name, double value, int decimals = 3);
  JsonObject& flag(std::string_view name, bool value);
  JsonObject& null(std::string_view name);
  /// `value` is JSON.
  JsonObject& json(std::string_view name, std::string_view value);
  void end() { out_ += '}'; }

 private:
  void put_name(std::string_view name);

  std::string& out_;
  std::size_t begin_;
};

}  // namespace torchup

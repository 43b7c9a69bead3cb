#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/endian/conversion.hpp>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/text/names.hpp"

/// How values become bytes and back, for the codecs of this folder: of messages (agent_codec) and of jobs (job_codec).
/// PROTOCOL.md says the same byte by byte.
///
/// Each structure names its fields once, in a function `fields(walker, structure)` beside it; Writer and Reader both
/// walk them. What a Reader has passed is within the limits that are named there, whoever wrote it.
///
/// Growth: a structure within another has its length in front. A field that comes later is added at the end of its
/// structure by `later`, `later_choice` and their like: who does not know it passes over it, who misses it keeps the
/// default.
namespace torchup::wire {

class Writer;

template <class T>
concept Number = std::integral<T> && !std::same_as<T, bool>;
template <class T>
concept Structure = requires(Writer& writer, T& structure) {
  fields(writer, structure);
};

/// Cuts what is too long and cleans what is no name, so that no reader refuses what we write for that.
class Writer {
 public:
  template <class... T>
  void operator()(const T&... values) {
    (write(values), ...);
  }
  template <class... T>
  void later(const T&... values) {
    (write(values), ...);
  }
  void later_text(const char* what, const std::string& text, std::size_t bytes_max) {
    this->text(what, text, bytes_max);
  }
  template <class T>
  void later_number(const char* what, const T& value, auto smallest, auto largest) {
    number(what, value, smallest, largest);
  }
  /// The outermost structure, which has no length of its own.
  template <Structure T>
  void message(const T& structure) {
    fields(*this, const_cast<T&>(structure));  // the same description serves the reader, which writes to it
  }
  template <class T>
  void number(const char*, const T& value, auto, auto) {
    write(value);
  }
  /// One that is bent into its range: from a worker's own file, or a count that went on from what a stranger told.
  template <Number T>
  void bent_number(const char*, const T& value, std::type_identity_t<T> smallest, std::type_identity_t<T> largest) {
    write(std::clamp(value, smallest, largest));
  }
  template <class Tag, Number T>
  void bent_number(const char* what, const Strong<Tag, T>& strong, std::type_identity_t<T> smallest,
                   std::type_identity_t<T> largest) {
    bent_number(what, strong.value(), smallest, largest);
  }
  template <class T>
  bool choice(const char*, const T& value, T, T) {
    write(static_cast<std::uint8_t>(value));
    return true;
  }
  template <class T>
  void later_choice(const char* what, const T& value, T last, T otherwise) {
    choice(what, value, last, otherwise);
  }
  template <class T>
  void known_choice(const char*, const T& value, T) {
    write(static_cast<std::uint8_t>(value));
  }
  void name(const char*, const std::string& text) {
    why_no_name(text).empty() ? write_text(text) : write_text(as_name(text));
  }
  template <class Tag>
  void name(const char* what, const Strong<Tag, std::string>& text) {
    name(what, text.value());
  }
  void text(const char*, const std::string& text, std::size_t bytes_max) { write_text(cut_text(text, bytes_max)); }
  template <class T>
  void list(const char*, const std::vector<T>& items, std::size_t items_max, const auto& walk_item) {
    const std::size_t count = std::min(items.size(), items_max);
    write(static_cast<std::uint32_t>(count));
    for (std::size_t i = 0; i < count; ++i) walk_item(const_cast<T&>(items[i]));
  }
  template <class T>
  void list(const char* what, const std::vector<T>& items, std::size_t items_max) {
    list(what, items, items_max, [this](const T& item) { write(item); });
  }
  void require(bool, const char*) {}
  [[nodiscard]] std::string take() { return std::move(bytes_); }

 private:
  template <Number T>
  void write(T value) {
    std::array<unsigned char, sizeof(T)> octets{};
    boost::endian::endian_store<T, sizeof(T), boost::endian::order::little>(octets.data(), value);
    bytes_.append(octets.begin(), octets.end());
  }
  void write(bool value) { bytes_.push_back(value ? 1 : 0); }
  void write_text(std::string_view text) {
    write(static_cast<std::uint32_t>(text.size()));
    bytes_ += text;
  }
  template <std::size_t n>
  void write(const std::array<std::uint8_t, n>& octets) {
    bytes_.append(octets.begin(), octets.end());
  }
  void write(Duration duration) {
    const auto cut = std::clamp(duration, Duration::zero(), duration_max);
    write(std::int64_t{std::chrono::duration_cast<std::chrono::nanoseconds>(cut).count()});
  }
  template <class Tag, Number T>
  void write(const Strong<Tag, T>& strong) {
    write(strong.value());
  }
  template <class T>
  void write(const std::optional<T>& item) {
    write(item.has_value());
    if (item) write(*item);
  }
  template <Structure T>
  void write(const T& structure) {
    const std::size_t length_at = bytes_.size();
    write(std::uint32_t{0});
    const std::size_t begin = bytes_.size();
    message(structure);
    boost::endian::endian_store<std::uint32_t, sizeof(std::uint32_t), boost::endian::order::little>(
        reinterpret_cast<unsigned char*>(bytes_.data()) + length_at, static_cast<std::uint32_t>(bytes_.size() - begin));
  }

  std::string bytes_;
};

/// After the first failure nothing more is read and `error` says what was wrong.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_{bytes} {}

  template <class... T>
  void operator()(T&... values) {
    (read(values), ...);
  }
  /// Fields that a writer from before their time leaves out: they keep their values then.
  template <class... T>
  void later(T&... values) {
    ((rest_.empty() ? void() : read(values)), ...);
  }
  void later_text(const char* what, std::string& text, std::size_t bytes_max) {
    if (!rest_.empty()) this->text(what, text, bytes_max);
  }
  template <Number T>
  void later_number(const char* what, T& value, std::type_identity_t<T> smallest, std::type_identity_t<T> largest) {
    if (!rest_.empty()) number(what, value, smallest, largest);
  }
  template <Structure T>
  void message(T& structure) {
    fields(*this, structure);
  }
  template <Number T>
  void number(const char* what, T& value, std::type_identity_t<T> smallest, std::type_identity_t<T> largest) {
    T given{};
    read(given);
    if (error_) return;
    if (given < smallest || given > largest) {
      return refuse(errc::bad_frame, fmt::format("{} is {}, not {} to {}", what, given, smallest, largest));
    }
    value = given;
  }
  template <class Tag, Number T>
  void number(const char* what, Strong<Tag, T>& strong, std::type_identity_t<T> smallest,
              std::type_identity_t<T> largest) {
    T value = strong.value();
    number(what, value, smallest, largest);
    strong = Strong<Tag, T>{value};
  }
  template <class T>
  void bent_number(const char* what, T& value, auto smallest, auto largest) {
    number(what, value, smallest, largest);
  }
  /// One of an enumeration's, up to `last`; what a newer writer knows beyond that reads as `otherwise`, and false is
  /// returned.
  template <class T>
  bool choice(const char*, T& value, T last, T otherwise) {
    std::uint8_t raw = 0;
    read(raw);
    const bool known = raw <= static_cast<std::uint8_t>(last);
    if (!error_) value = known ? static_cast<T>(raw) : otherwise;
    return known;
  }
  /// As `choice`, of a writer that may be from before its time: see `later`.
  template <class T>
  void later_choice(const char* what, T& value, T last, T otherwise) {
    if (!rest_.empty()) choice(what, value, last, otherwise);
  }
  /// The same where there is no safe meaning for what is not known.
  template <class T>
  void known_choice(const char* what, T& value, T last) {
    std::uint8_t raw = 0;
    read(raw);
    if (error_) return;
    if (raw > static_cast<std::uint8_t>(last)) {
      return refuse(errc::wrong_version,
                    fmt::format("{} is of a kind ({}) that only a newer release knows", what, raw));
    }
    value = static_cast<T>(raw);
  }
  /// A text that people and files may see (names.hpp).
  void name(const char* what, std::string& text) {
    const std::string_view given = octets(count(what, name_bytes_max, "bytes"));
    if (error_) return;
    if (const auto why = why_no_name(given); !why.empty()) {
      return refuse(errc::bad_frame, fmt::format("{} cannot be used: {}", what, why));
    }
    text = given;
  }
  template <class Tag>
  void name(const char* what, Strong<Tag, std::string>& strong) {
    std::string text = strong.value();
    name(what, text);
    strong = Strong<Tag, std::string>{std::move(text)};
  }
  void text(const char* what, std::string& text, std::size_t bytes_max) {
    const std::string_view given = octets(count(what, bytes_max, "bytes"));
    if (!error_) text = given;
  }
  template <class T>
  void list(const char* what, std::vector<T>& items, std::size_t items_max, const auto& walk_item) {
    items.clear();
    // Grown item by item: a count alone makes us allocate nothing.
    for (std::size_t left = count(what, items_max, "items"); left > 0 && !error_; --left) {
      walk_item(items.emplace_back());
    }
  }
  template <class T>
  void list(const char* what, std::vector<T>& items, std::size_t items_max) {
    list(what, items, items_max, [this](T& item) { read(item); });
  }
  /// What the fields of one structure must be together.
  void require(bool holds, const char* why_not) {
    if (!holds) refuse(errc::bad_frame, why_not);
  }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

 private:
  void refuse(errc code, std::string why) {
    if (!error_) error_ = fail(code, std::move(why));
    rest_ = {};
  }
  std::string_view octets(std::size_t count) {
    if (count > rest_.size()) {
      refuse(errc::bad_frame, "a frame is shorter than its fields");
      return {};
    }
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  std::size_t count(const char* what, std::size_t limit, const char* of_what) {
    std::uint32_t given = 0;
    read(given);
    if (given <= limit) return given;
    refuse(errc::limit_exceeded, fmt::format("{} has {} {}, where {} are allowed", what, given, of_what, limit));
    return 0;
  }

  template <Number T>
  void read(T& value) {
    const std::string_view bytes = octets(sizeof(T));
    if (error_) return;
    value = boost::endian::endian_load<T, sizeof(T), boost::endian::order::little>(
        reinterpret_cast<const unsigned char*>(bytes.data()));
  }
  void read(bool& value) {
    std::uint8_t raw = 0;
    read(raw);
    if (raw > 1) return refuse(errc::bad_frame, "a truth value is neither 0 nor 1");
    if (!error_) value = raw == 1;
  }
  template <std::size_t n>
  void read(std::array<std::uint8_t, n>& value) {
    const std::string_view bytes = octets(n);
    std::copy(bytes.begin(), bytes.end(), value.begin());
  }
  void read(Duration& duration) {
    std::int64_t nanoseconds = 0;
    number("a duration", nanoseconds, 0, std::chrono::nanoseconds{duration_max}.count());
    duration = std::chrono::nanoseconds{nanoseconds};
  }
  template <class T>
  void read(std::optional<T>& item) {
    bool there = false;
    read(there);
    if (!there) return item.reset();
    read(item.emplace());
  }
  template <Structure T>
  void read(T& structure) {
    std::uint32_t size = 0;
    read(size);
    const std::string_view inner = octets(size);
    if (error_) return;
    const std::string_view behind = std::exchange(rest_, inner);
    fields(*this, structure);
    if (!error_) rest_ = behind;  // what was left of `inner` are fields that only a newer writer knows
  }

  std::string_view rest_;
  std::optional<Error> error_;
};

}  // namespace torchup::wire

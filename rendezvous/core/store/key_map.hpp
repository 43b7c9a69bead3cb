#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rendezvous/core/store/sip_hash.hpp"

namespace torchup {

/// Keys and what belongs to them, in parts, each of which grows by itself: neither to grow nor to look at a part takes
/// long, however many keys there are. A key stays in its part, and elements do not move.
template <class T, std::size_t parts>
class KeyMap {
  struct Hashed {
    std::string_view key;
    std::size_t hash;
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(const std::string& key) const { return sip_hash_1_3(secret, key); }
    std::size_t operator()(const Hashed& hashed) const { return hashed.hash; }
    HashSecret secret;
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(const std::string& left, const std::string& right) const { return left == right; }
    bool operator()(const Hashed& left, const std::string& right) const { return left.key == right; }
    bool operator()(const std::string& left, const Hashed& right) const { return left == right.key; }
  };

 public:
  using Part = std::unordered_map<std::string, T, Hash, Equal>;
  using Element = typename Part::value_type;

  explicit KeyMap(HashSecret secret) : secret_{secret}, parts_(parts, Part{0, Hash{secret}}) {}

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool contains(std::string_view key) const { return size_ > 0 && find(key) != nullptr; }
  /// Null: there is none.
  [[nodiscard]] const Element* find(std::string_view key) const {
    const Hashed hashed = hashed_of(key);
    const Part& home = parts_[part_of(hashed)];
    const auto found = home.find(hashed);
    return found == home.end() ? nullptr : &*found;
  }
  [[nodiscard]] Element* find(std::string_view key) { return const_cast<Element*>(std::as_const(*this).find(key)); }
  /// A key that is not there.
  Element& emplace(std::string_view key, T value) {
    Part& home = parts_[part_of(hashed_of(key))];
    Element& element = *home.emplace(key, std::move(value)).first;
    ++size_;
    return element;
  }
  /// One that is. The view may be the element's own.
  void erase(std::string_view key) {
    const Hashed hashed = hashed_of(key);
    Part& home = parts_[part_of(hashed)];
    home.erase(home.find(hashed));
    --size_;
  }

  static constexpr std::size_t part_count = parts;
  [[nodiscard]] const Part& part(std::size_t index) const { return parts_[index]; }

 private:
  [[nodiscard]] Hashed hashed_of(std::string_view key) const {
    return {key, static_cast<std::size_t>(sip_hash_1_3(secret_, key))};
  }
  /// By other bits than those that the part itself goes by.
  [[nodiscard]] static std::size_t part_of(const Hashed& hashed) { return (hashed.hash >> 32) % parts; }

  HashSecret secret_;
  std::vector<Part> parts_;
  std::size_t size_ = 0;
};

}  // namespace torchup

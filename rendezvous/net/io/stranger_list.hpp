#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "rendezvous/core/port/strangers.hpp"

namespace torchup {

/// The strangers of a port (core/port/strangers), and how each of them is reached.
class StrangerList {
 public:
  /// Hears what the peer has said meanwhile, and if it is still a stranger then, closes it for that reason.
  using Drop = std::function<void(const std::string& why)>;

  explicit StrangerList(std::size_t most) : strangers_{most} {}
  StrangerList(const StrangerList&) = delete;
  StrangerList& operator=(const StrangerList&) = delete;

  /// One more, for whom another may have to go: `drop` may be called until it is settled, though not from within.
  [[nodiscard]] StrangerId came(std::string from, Drop drop);
  /// It has said who it is, or has gone; said twice, it counts once.
  void settled(StrangerId who);
  /// Has a stranger close its connection. False: there is none.
  bool give_descriptor();

  [[nodiscard]] std::size_t count() const { return strangers_.count(); }

 private:
  void drop(StrangerId who, const std::string& why);

  Strangers strangers_;
  std::uint64_t next_ = 1;
  std::map<StrangerId, Drop> drops_;
};

/// One of a list, for as long as it is no friend. Empty: it is none.
class StrangerPlace {
 public:
  StrangerPlace() = default;
  StrangerPlace(std::shared_ptr<StrangerList> list, std::string from, StrangerList::Drop drop)
      : list_{std::move(list)}, who_{list_->came(std::move(from), std::move(drop))} {}
  StrangerPlace(StrangerPlace&& other) noexcept : list_{std::move(other.list_)}, who_{other.who_} {}
  StrangerPlace& operator=(StrangerPlace&& other) noexcept {
    if (this == &other) return *this;
    settle();
    list_ = std::move(other.list_);
    who_ = other.who_;
    return *this;
  }
  ~StrangerPlace() { settle(); }
  void settle() {
    if (const auto list = std::exchange(list_, nullptr)) list->settled(who_);
  }
  explicit operator bool() const { return list_ != nullptr; }

 private:
  std::shared_ptr<StrangerList> list_;
  StrangerId who_{0};
};

}  // namespace torchup

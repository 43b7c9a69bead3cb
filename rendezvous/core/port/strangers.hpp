#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "rendezvous/base/strong.hpp"

namespace torchup {

/// A connection of which nobody knows yet what it is, numbered by whoever accepts: who came later has a higher number.
using StrangerId = Strong<struct StrangerTag, std::uint64_t>;

namespace strangers {

/// Accepted, or taken over by those who serve the language that its first byte belongs to.
struct Came {
  StrangerId who;
  std::string from;  ///< numeric address
};
/// It has said who it is (VALIDATE, a proven or an answered hello, a whole request), or has gone.
struct Settled {
  StrangerId who;
};
/// This process has no descriptor left, and somebody waits for one.
struct NoDescriptor {};
using Event = std::variant<Came, Settled, NoDescriptor>;

/// Hear what it has said meanwhile. If it is still a stranger then, close it.
struct Drop {
  StrangerId who;
  friend bool operator==(const Drop&, const Drop&) = default;
};

}  // namespace strangers

/// Who at a port has not said yet who it is, and who of them goes when there are too many: the one place where that is
/// decided, for all languages of a port. Pure.
///
/// Of the address that has the most strangers goes the one that came first: one machine that opens thousands of
/// connections pushes out its own, and among equals whoever has had the longest time to speak. So an agent that speaks
/// when it has connected gets in, however many others come and say nothing. [checked: 8,000 silent ones beside 20,000
/// that come and go]
class Strangers {
 public:
  /// Limit of the number beside a quarter of the descriptors.
  static constexpr std::size_t limit = 1024;

  /// `most`: 1 at least.
  explicit Strangers(std::size_t most) : most_{most} {}

  /// Applies `event`. Who is to be dropped is none of them any more for whoever asks next; that it was Settled may be
  /// said all the same. Nothing: there is room, or nobody to make it.
  [[nodiscard]] std::optional<strangers::Drop> step(const strangers::Event& event);

  [[nodiscard]] std::size_t count() const { return all_.size(); }
  [[nodiscard]] std::size_t most() const { return most_; }

 private:
  using Crowd = std::set<StrangerId>;
  using Crowds = std::map<std::string, Crowd>;
  struct Place {
    std::size_t size;
    StrangerId first;
    Crowds::iterator crowd;
  };
  /// The largest in front, and among equals the one of whoever came first.
  struct Before {
    bool operator()(const Place& left, const Place& right) const {
      return left.size != right.size ? left.size > right.size : left.first < right.first;
    }
  };

  void on(const strangers::Came& event);
  void on(const strangers::Settled& event);
  void on(const strangers::NoDescriptor&) {}
  void change(Crowds::iterator crowd, StrangerId who, bool comes);

  std::size_t most_;
  Crowds crowds_;  ///< by address
  std::map<StrangerId, Crowds::iterator> all_;
  std::set<Place, Before> order_;
};

}  // namespace torchup

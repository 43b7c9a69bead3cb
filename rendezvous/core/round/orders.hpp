#pragma once

#include <string>
#include <string_view>
#include <variant>

/// What people order of a job, beside what its agents say (rendezvous_orders.cpp obeys, and says why not).
namespace torchup {

namespace order {

/// The job ends, with 143; with `save` its workers are asked to save their state first, and it ends with 75. `now`:
/// they are killed. One of the two at most.
struct Stop {
  bool save = false;
  bool now = false;
  friend bool operator==(const Stop&, const Stop&) = default;
};
/// The round stops, and another begins.
struct Restart {
  friend bool operator==(const Restart&, const Restart&) = default;
};
/// A node has no workers any more, until Undrain; its agent lives on. `node` names it: by its id, by its host where one
/// agent alone is there, or by its group rank.
struct Drain {
  std::string node = {};
  friend bool operator==(const Drain&, const Drain&) = default;
};
struct Undrain {
  std::string node = {};
  friend bool operator==(const Undrain&, const Undrain&) = default;
};
/// The job goes on with so many nodes, whatever range it began with.
struct Resize {
  int min_nodes = 1;
  int max_nodes = 1;
  friend bool operator==(const Resize&, const Resize&) = default;
};

}  // namespace order

using Order = std::variant<order::Stop, order::Restart, order::Drain, order::Undrain, order::Resize>;

/// "stop", "restart", "drain", "undrain" or "resize".
[[nodiscard]] std::string_view verb_of(const Order& order);

/// What becomes of an order. One that is refused has changed nothing.
struct OrderAnswer {
  bool accepted = false;
  std::string text = {};  ///< one line for people: what is done now, or why nothing is, with the phase of the job
  friend bool operator==(const OrderAnswer&, const OrderAnswer&) = default;
};

}  // namespace torchup

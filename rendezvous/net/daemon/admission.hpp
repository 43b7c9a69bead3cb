#pragma once

#include <functional>
#include <string>

#include "rendezvous/core/text/source_list.hpp"

namespace torchup {

class Coordinator;

/// Who is let in without proving a token: the one rule for stores' clients, which cannot prove one, and for agents
/// where none is set.
///
/// Where there is a token, or a list of sources, they must come from this machine, from that list, or, to a store, from
/// where a member of a job is. Otherwise everybody may come.
struct Admission {
  bool token = false;
  SourceList allowed = {};

  using Rule = std::function<bool(const std::string& address)>;
  /// Empty: everybody.
  [[nodiscard]] Rule of_agents() const;
  /// The same for a store beside a coordinator, which must outlive the rule.
  [[nodiscard]] Rule of_store_clients(const Coordinator& coordinator) const;
  /// The same for a store whose clients come from `members`.
  [[nodiscard]] Rule of_store_clients(SourceList members) const;

 private:
  [[nodiscard]] Rule with(Rule is_member) const;
};

}  // namespace torchup

#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace torchup {

/// The number that says in which form a program writes or reads something.
struct SchemaNumber {
  std::string_view name;  ///< "events_schema", "state_schema", …
  int value;
};

/// What `program` answers to --version: "torchup 0.2.0", or, in JSON, an object in one line, whose members are promises
/// of README: name, version, commit (empty where nobody said), target, agent_protocol (the oldest and the newest
/// version of the agents' protocol) and each of `schemas`. With its line end.
[[nodiscard]] std::string version_answer(std::string_view program, bool as_json,
                                         std::initializer_list<SchemaNumber> schemas);

}  // namespace torchup

#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace torchup {

/// The store of the job that this process has joined, for what is between its workers and not of any process group.
/// init_process_group sets it, the end of the job's group clears it; null outside. It is the store itself, not a part
/// of it under a prefix: only the client itself can be waited on until something else happens. `round`: a name that
/// belongs into its keys, since the store may hold those of earlier rounds.
void set_job_store(c10::intrusive_ptr<c10d::Store> store, std::string round = {});
/// That name.
std::string job_round();

/// A connection that was made when the job was joined, for the one thread that watches whether the job is to stop; null
/// outside. Making one reads the environment (the resolver's variables), which the training thread may be changing.
c10::intrusive_ptr<c10d::Store> watching_job_store();

/// A connection of the caller's own to it (a blocking call on one connection holds up all others on it), or null.
c10::intrusive_ptr<c10d::Store> connect_job_store();

/// Writes a key for others who wait for it. All who write it write the same, or one alone writes it and says what it
/// wrote `before`. Returns when the store has it, also where the connection was lost since it was last used: a plain
/// set is not answered, and goes nowhere then without an error.
void publish(c10d::Store& store, const std::string& key, const std::string& value, const std::string& before = {});

}  // namespace torchup

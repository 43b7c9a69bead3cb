#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace torchup {

/// The store of the job that this process has joined, for what is between its workers and not of any process group.
/// init_process_group sets it, the end of the job's group clears it; null outside.
void set_job_store(c10::intrusive_ptr<c10d::Store> store);

/// A connection of the caller's own to it (a blocking call on one connection holds up all others on it), or null.
c10::intrusive_ptr<c10d::Store> connect_job_store();

}  // namespace torchup

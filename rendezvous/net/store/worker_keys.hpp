#pragma once

#include <string>

#include "rendezvous/base/types.hpp"

namespace torchup {

class StoreClient;

/// Removes what workers left in that store: every key but torchrun's own. One that fails in between stays as it is
/// then.
void delete_worker_keys(StoreClient& client);

/// Longest wait for a connection to a workers' store that is to be emptied.
inline constexpr Duration worker_keys_limit = std::chrono::seconds{2};

/// The same in the store at that address, if it answers within the limit. Blocks.
void delete_worker_keys(const std::string& address, Port port, Duration limit);

}  // namespace torchup

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "rendezvous/core/store/store.hpp"

namespace torchup {

/// What clients ask of a store, as it is counted. VALIDATE, which begins each connection, is none.
struct StoreOperation {
  Query query;
  std::string_view word;
};
inline constexpr std::array store_operations{
    StoreOperation{Query::set, "set"},
    StoreOperation{Query::compare_set, "compare_set"},
    StoreOperation{Query::get, "get"},
    StoreOperation{Query::add, "add"},
    StoreOperation{Query::check, "check"},
    StoreOperation{Query::wait, "wait"},
    StoreOperation{Query::get_num_keys, "get_num_keys"},
    StoreOperation{Query::delete_key, "delete_key"},
    StoreOperation{Query::append, "append"},
    StoreOperation{Query::multi_get, "multi_get"},
    StoreOperation{Query::multi_set, "multi_set"},
    StoreOperation{Query::cancel_wait, "cancel_wait"},
    StoreOperation{Query::ping, "ping"},
    StoreOperation{Query::queue_push, "queue_push"},
    StoreOperation{Query::queue_pop, "queue_pop"},
    StoreOperation{Query::queue_len, "queue_len"},
    StoreOperation{Query::list_keys, "list_keys"},
    StoreOperation{Query::barrier, "barrier"},
    StoreOperation{Query::wait_get, "wait_get"},
    StoreOperation{Query::wait_pop, "wait_pop"},
};
inline constexpr std::size_t query_codes = static_cast<std::size_t>(Query::wait_pop) + 1;
/// How often each was asked, by the query's code.
using StoreRequestCounts = std::array<std::uint64_t, query_codes>;

/// Counters since the start, and what is there now.
struct StoreServerStatus {
  std::size_t connections = 0;
  std::size_t keys = 0;
  std::size_t queues = 0;
  std::size_t bytes = 0;           ///< of keys, values and queue elements, with what keeps them
  std::size_t waiting = 0;         ///< clients with an open wait or barrier
  std::size_t arriving_bytes = 0;  ///< of unfinished requests
  std::size_t unread_bytes = 0;    ///< of answers on their way, with the values that they share with the store
  std::uint64_t accepted = 0;
  std::uint64_t refused = 0;  ///< closed for what they sent, or at a limit
  std::uint64_t requests = 0;
  StoreRequestCounts requests_of = {};  ///< their sum is `requests`
  std::uint64_t batches = 0;            ///< calls of the kernel that took the answers of several clients (SendBatch)
};

}  // namespace torchup

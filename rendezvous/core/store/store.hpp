#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rendezvous/base/strong.hpp"
#include "rendezvous/core/store/key_map.hpp"
#include "rendezvous/core/store/sip_hash.hpp"
#include "rendezvous/core/store/value.hpp"

namespace torchup {

/// A request's code on the wire. The first nineteen are PyTorch's (torch 2.4 and newer), the others ours.
enum class Query : std::uint8_t {
  validate,
  set,
  compare_set,
  get,
  add,
  check,
  wait,
  get_num_keys,
  delete_key,
  append,
  multi_get,
  multi_set,
  cancel_wait,
  ping,
  queue_push,
  queue_pop,
  queue_len,
  list_keys,
  barrier,
  /// WAIT and MULTI_GET in one: `00` when all keys are there, then their values. `01` alone when cancelled.
  wait_get = 0x40,
  /// WAIT and QUEUE_POP in one: `00`, then QUEUE_POP's answer; nobody can take the element in between.
  wait_pop = 0x41,
};

/// A key that no PyTorch client can write (theirs begin with `/`). CHECK of it alone says READY in a server that knows
/// wait_get and wait_pop, and NOT_READY in PyTorch's: that is how a client finds out, without risk and in the round
/// trip of its PING. GET of it names the store: a client that comes back learns whether it is still the same. It is
/// neither listed nor counted, and cannot be stored.
inline constexpr std::string_view extension_key = "torchup/wait_get,wait_pop";

/// One connection, as the engine knows it. The owner may give the number to a new one after `disconnect`.
using ClientId = Strong<struct ClientTag, std::uint32_t>;

/// One request. Which fields count is said by the query's layout in store_codec.
///
/// The views are valid during `Store::apply` only; the values are moved out of it.
struct Request {
  Query query = Query::ping;
  std::string_view key;
  std::vector<std::string_view> keys;
  std::vector<Value> values;  ///< set, append, queue_push: one; compare_set: expected, desired; multi_set: one per key
  std::int64_t number = 0;    ///< add: what to add; barrier: world size
  std::uint32_t nonce = 0;    ///< ping
};

/// Where the engine's answers go. Calls for one client come in the order in which the bytes must reach it; each call is
/// one field of a reply (store_codec says what it looks like). Must not call the engine back.
class StoreOutlet {
 public:
  virtual void byte(ClientId to, std::uint8_t value) = 0;
  virtual void number(ClientId to, std::int64_t value) = 0;
  virtual void nonce(ClientId to, std::uint32_t value) = 0;
  /// A value that lies in the store: it costs memory of its own when the store has `released` it.
  virtual void bytes(ClientId to, const Value& value) = 0;
  /// One that does not, or not any more.
  virtual void given(ClientId to, const Value& value) = 0;
  virtual void bytes(ClientId to, std::string_view value) = 0;
  /// Fields that follow each other, many, as store_codec writes them.
  virtual void fields(ClientId to, std::string encoded) = 0;
  /// The protocol has no error reply: the only way to refuse is to close. The engine has forgotten this client.
  virtual void close(ClientId client, std::string reason) = 0;
  /// The store gives up a value that is not inline. Whoever was answered with it and has not read it holds it alone
  /// now.
  virtual void released(const Value& value) = 0;

 protected:
  ~StoreOutlet() = default;
};

/// What may not grow without end. Who meets a limit is closed, with its name as the reason; nobody else notices.
struct StoreLimits {
  std::size_t keys_max = 16 * 1024 * 1024;               ///< plain keys and queues together
  std::size_t bytes_max = std::size_t{1} << 30;          ///< all keys, values and queue elements, and what keeps them
  std::size_t value_bytes_max = std::size_t{64} << 20;   ///< one value, however often something was appended to it
  std::size_t waits_bytes_max = std::size_t{256} << 20;  ///< what all open waits together cost
  std::size_t listed_bytes_max = std::size_t{64} << 20;  ///< the answer to LIST_KEYS
};

/// PyTorch's TCPStore without sockets: keys, queues, waits and barriers of one key space. Pure: the same requests in
/// the same order give the same answers. Each request is atomic.
///
/// Behaves as PyTorch's libuv server (torch 2.15), without these faults of it: a wait counts a non-empty queue as
/// present; a client's registrations end with its wait; a key that is deleted again is missing again; a second wait
/// replaces the first; COMPARE_SET wakes only when it stored something; MULTI_SET is applied once. Source:
/// torch/csrc/distributed/c10d/TCPStore.cpp, TCPStoreLibUvBackend.cpp; observed on 2.15.0.
class Store {
 public:
  /// Answers of CHECK, and of the waiting requests.
  static constexpr std::uint8_t ready = 0, not_ready = 1;
  static constexpr std::uint8_t stop_waiting = 0, wait_canceled = 1;

  /// `identity` should be another one for every store that ever lives at one address; clients may learn it, but not
  /// the secret.
  Store(StoreLimits limits, Value identity, StoreOutlet& outlet, HashSecret secret = {})
      : limits_{limits}, identity_{std::move(identity)}, outlet_{outlet}, entries_{secret}, queues_{secret},
        awaited_{secret}, barriers_{secret} {}
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// Serves one request. Moves the values out of `request`.
  void apply(ClientId client, Request& request);
  /// The connection is gone: its waits are forgotten. What it arrived at or wrote stays.
  void disconnect(ClientId client);

  /// LIST_KEYS of many keys may be made in steps, of about so many keys each; true when `apply` will answer it at once,
  /// or the client was refused. One at a time: nothing is done while another client's is being made.
  ///
  /// It has each key that was there from the first step to the last, once. Of those that came or went meanwhile it may
  /// have some.
  bool prepare_list(ClientId client, std::size_t keys);
  /// That client's list, whatever there is of it, is not wanted.
  void forget_list(ClientId client) {
    if (list_ && list_->client == client) list_.reset();
  }
  [[nodiscard]] bool has_list(ClientId client) const {
    return list_ && list_->client == client && list_->next == Entries::part_count;
  }

  // For the process that holds the store. Keys are wire keys: a client's key `k` is `/k` here.

  /// Null when there is no plain value.
  [[nodiscard]] const Value* find(std::string_view key) const;
  /// As SET. False at a limit.
  bool set(std::string_view key, Value value);
  /// As ADD; empty when the key holds no number, or at a limit.
  std::optional<std::int64_t> add(std::string_view key, std::int64_t delta);
  /// As DELETE_KEY.
  bool erase(std::string_view key);
  /// Removes plain values and queues whose key satisfies `condition`; returns how many. Waits stay open.
  std::size_t erase_if(const std::function<bool(std::string_view key)>& condition);
  /// The same in steps, of about so many keys each: `next` counts them, from 0. True: that was the last one. Of keys
  /// that are written meanwhile some are looked at.
  bool erase_some(const std::function<bool(std::string_view key)>& condition, std::size_t keys, std::size_t& next);

  [[nodiscard]] std::size_t key_count() const { return entries_.size(); }
  [[nodiscard]] std::size_t queue_count() const { return queues_.size(); }
  [[nodiscard]] std::size_t byte_count() const { return bytes_; }
  /// Clients whose WAIT, BARRIER or other waiting request is open.
  [[nodiscard]] std::size_t waiting_count() const { return waits_.size(); }
  [[nodiscard]] bool waits(ClientId client) const { return waits_.contains(client.value()); }

 private:
  // So many parts that one of a store which is full of small keys is looked at in some milliseconds.
  using Entries = KeyMap<GrowingValue, 256>;
  using Queues = KeyMap<std::deque<Value>, 64>;
  struct Wait;
  using Line = std::list<Wait*>;  ///< those who wait for one key, in order of arrival
  using Lines = KeyMap<Line, 64>;
  struct Registration {
    Lines::Element* line;
    Line::iterator place;  ///< the line's end where the request named the key before
  };
  /// An open waiting request. It stands in the line of every key it names, present or not, once.
  struct Wait {
    ClientId client;
    Query query;              ///< wait, wait_get, wait_pop or barrier
    std::size_t missing = 0;  ///< registrations whose key is absent now
    std::vector<Registration> registrations{};
  };

  /// An answer to LIST_KEYS that is being made.
  struct List {
    ClientId client;
    std::size_t next = 0;  ///< part of the entries
    std::uint64_t count = 0;
    std::string encoded;
  };

  [[nodiscard]] bool present(std::string_view key) const;
  bool store(ClientId client, std::string_view key, Value value);
  void put_new(std::string_view key, Value value);
  void replace(GrowingValue& place, Value value);
  void release(const Value& value);
  void wrote(std::string_view key, bool appeared);
  void appeared(std::string_view key);
  void vanished(std::string_view key);
  void wake_satisfied(std::string_view key);
  void wake_one(std::string_view key);
  void release_barrier(std::string_view key);
  std::optional<std::int64_t> advance(ClientId client, std::string_view key, std::int64_t delta, bool wakes);

  void compare_set(ClientId client, Request& request);
  void append(ClientId client, Request& request);
  void multi_set(ClientId client, Request& request);
  void check(ClientId client, const Request& request);
  void wait(ClientId client, const Request& request);
  void barrier(ClientId client, const Request& request);
  void push(ClientId client, Request& request);
  void pop(ClientId client, std::string_view key);
  void list_keys(ClientId client);
  void drop_queue(std::string_view key);
  [[nodiscard]] bool erase_queue(std::string_view key, std::size_t& most);
  [[nodiscard]] static std::size_t cost_of_element(std::size_t bytes);

  void register_wait(ClientId client, Query query, const std::string_view* keys, std::size_t count);
  void answer(Wait& wait);
  bool forget_wait(ClientId client);
  void refuse(ClientId client, std::string reason);
  bool room_for(ClientId client, std::size_t new_keys, std::size_t new_bytes);

  StoreLimits limits_;
  Value identity_;
  StoreOutlet& outlet_;
  Entries entries_;
  Queues queues_;   ///< none of them empty
  Lines awaited_;   ///< waits for presence; no line is empty
  Lines barriers_;  ///< arrivals at a barrier, released by any write to its key
  std::unordered_map<std::uint32_t, Wait> waits_;
  std::size_t waits_bytes_ = 0;  ///< of all registrations
  std::size_t satisfied_ = 0;    ///< waits for presence that miss nothing, and that no write has ended yet
  std::size_t bytes_ = 0;
  std::size_t listed_bytes_ = sizeof(std::uint64_t);  ///< of an answer to LIST_KEYS
  std::optional<List> list_;
};

}  // namespace torchup

// Valid requests of several clients in any order: the engine behind its codec answers as a model that is too simple to
// be wrong. The model keeps no registrations: after every change it looks at every open wait again.
#include <algorithm>
#include <deque>
#include <map>
#include <optional>

#include "tests/fuzz/fuzz.hpp"
#include "tests/support/store_harness.hpp"

using namespace torchup;

namespace {

constexpr std::uint32_t client_count = 4;

class Model {
 public:
  struct Wait {
    std::uint32_t client;
    Query query;
    std::vector<std::string> keys;
  };

  std::string& out(std::uint32_t client) { return outs_[client]; }
  [[nodiscard]] bool closed(std::uint32_t client) const { return closed_[client]; }
  void disconnect(std::uint32_t client) { forget(client); }
  void connect(std::uint32_t client) {
    closed_[client] = false;
    outs_[client].clear();
  }

  void apply(std::uint32_t client, Query query, const std::vector<std::string>& keys,
             const std::vector<std::string>& values, std::int64_t number) {
    std::string& reply = outs_[client];
    const std::string& key = keys.front();
    switch (query) {
      case Query::set:
        return write(key, values[0]);
      case Query::append:
        return write(key, (plain_.contains(key) ? plain_[key] : "") + values[0]);
      case Query::multi_set:
        for (std::size_t i = 0; i < keys.size(); ++i) write(keys[i], values[i]);
        return;
      case Query::compare_set:
        if (plain_.contains(key) ? plain_[key] == values[0] : values[0].empty()) {
          write(key, values[1]);
          return put_bytes(reply, values[1]);
        }
        return put_bytes(reply, plain_.contains(key) ? plain_[key] : values[0]);
      case Query::get:
        return put_bytes(reply, value(key));
      case Query::multi_get:
        for (const auto& each : keys) put_bytes(reply, value(each));
        return;
      case Query::add:
        if (const auto sum = add(client, key, number)) {
          write(key, std::to_string(*sum));
          put_number(reply, *sum);
        }
        return;
      case Query::check:
        return put_byte(reply,
                        std::all_of(keys.begin(), keys.end(), [&](const auto& each) { return present(each); }) ? 0 : 1);
      case Query::get_num_keys:
        return put_number(reply, static_cast<std::int64_t>(plain_.size()));
      case Query::delete_key:
        return put_number(reply, static_cast<std::int64_t>(plain_.erase(key)));
      case Query::ping:
        return put_nonce(reply, static_cast<std::uint32_t>(number));
      case Query::cancel_wait:
        forget(client);
        return put_byte(reply, 1);
      case Query::queue_push:
        queues_[key].push_back(values[0]);
        // One waiter: of those that this satisfies the oldest that takes the element, or else the oldest.
        for (const bool takes : {true, false})
          for (const Wait& wait : waits_)
            if (wait.query != Query::barrier && (wait.query == Query::wait_pop) == takes && names(wait, key) &&
                satisfied(wait))
              return answer(Wait{wait});
        return;
      case Query::queue_pop:
        return pop(client, key);
      case Query::queue_len:
        return put_number(reply, queues_.contains(key) ? static_cast<std::int64_t>(queues_[key].size()) : 0);
      case Query::wait:
      case Query::wait_get:
      case Query::wait_pop: {
        forget(client);
        const Wait wait{client, query, keys};
        return satisfied(wait) ? answer(wait) : waits_.push_back(wait);
      }
      case Query::barrier: {
        const auto count = add(client, key, 1);
        if (!count) return;
        plain_[key] = std::to_string(*count);  // wakes nobody
        forget(client);
        if (*count < number) return waits_.push_back({client, query, {key}});
        write(key, plain_[key]);
        return put_byte(reply, 0);
      }
      default:
        return;
    }
  }

 private:
  static bool names(const Wait& wait, const std::string& key) {
    return std::find(wait.keys.begin(), wait.keys.end(), key) != wait.keys.end();
  }
  bool present(const std::string& key) { return plain_.contains(key) || !queues_[key].empty(); }
  bool satisfied(const Wait& wait) {
    return std::all_of(wait.keys.begin(), wait.keys.end(), [&](const auto& key) { return present(key); });
  }
  std::string value(const std::string& key) { return plain_.contains(key) ? plain_[key] : ""; }

  std::optional<std::int64_t> add(std::uint32_t client, const std::string& key, std::int64_t delta) {
    if (!plain_.contains(key)) return delta;
    errno = 0;
    char* end = nullptr;
    const long long number = std::strtoll(plain_[key].c_str(), &end, 10);
    if (end == plain_[key].c_str() || errno == ERANGE) {
      forget(client);
      closed_[client] = true;
      return std::nullopt;
    }
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(number) + static_cast<std::uint64_t>(delta));
  }

  void write(const std::string& key, const std::string& value) {
    plain_[key] = value;
    const std::vector<Wait> all = waits_;
    for (const Wait& wait : all)
      if (wait.query != Query::barrier && names(wait, key) && satisfied(wait)) answer(wait);
    for (const Wait& wait : all)
      if (wait.query == Query::barrier && wait.keys[0] == key) answer(wait);
  }
  void answer(const Wait& wait) {
    forget(wait.client);
    put_byte(outs_[wait.client], 0);
    if (wait.query == Query::wait_get)
      for (const auto& key : wait.keys) put_bytes(outs_[wait.client], value(key));
    if (wait.query == Query::wait_pop) pop(wait.client, wait.keys[0]);
  }
  void pop(std::uint32_t client, const std::string& key) {
    auto& queue = queues_[key];
    put_number(outs_[client], static_cast<std::int64_t>(queue.size()));
    if (queue.empty()) return;
    put_bytes(outs_[client], queue.front());
    queue.pop_front();
  }
  void forget(std::uint32_t client) {
    std::erase_if(waits_, [&](const Wait& wait) { return wait.client == client; });
  }

  std::map<std::string, std::string> plain_;
  std::map<std::string, std::deque<std::string>> queues_;
  std::vector<Wait> waits_;  ///< in order of arrival
  std::map<std::uint32_t, std::string> outs_;
  bool closed_[client_count] = {};
};

constexpr Query queries[] = {Query::set,        Query::compare_set, Query::get,         Query::add,
                             Query::check,      Query::wait,        Query::delete_key,  Query::append,
                             Query::multi_get,  Query::multi_set,   Query::cancel_wait, Query::ping,
                             Query::queue_push, Query::queue_pop,   Query::queue_len,   Query::barrier,
                             Query::wait_get,   Query::wait_pop,    Query::get_num_keys};

std::string some_value(fuzz::Choices& choices) {
  switch (choices.below(8)) {
    case 0:
      return "";
    case 1:
      return "x";
    case 2:
      return " 7a";
    case 3:
      return "9223372036854775807";
    case 4:
      return std::string(5000, 'v');  // received directly
    default:
      return std::to_string(choices.below(4));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Choices choices{data, std::min<std::size_t>(size, 128)};
  fuzz::PieceSize pieces{choices.next()};
  test::StoreHarness engine;
  Model model;
  for (std::uint32_t id = 0; id < client_count; ++id) engine.send(id, test::validate), model.connect(id);
  while (choices.any()) {
    const std::uint32_t client = choices.below(client_count);
    const std::uint8_t what = choices.next();
    if (what % 32 == 31) {
      engine.disconnect(client), model.disconnect(client);
      engine.send(client, test::validate), model.connect(client);
      continue;
    }
    const Query query = queries[what % std::size(queries)];
    const bool many = query == Query::check || query == Query::wait || query == Query::wait_get ||
                      query == Query::multi_get || query == Query::multi_set;
    std::vector<std::string> keys, values;
    for (int count = many ? 1 + choices.below(3) : 1; count > 0; --count)
      keys.push_back({'/', static_cast<char>('a' + choices.below(3))});
    for (std::size_t count = query == Query::multi_set     ? keys.size()
                             : query == Query::compare_set ? 2
                                                           : 1;
         count > 0; --count)
      values.push_back(some_value(choices));
    const std::int64_t number = choices.below(5) - 1;
    const std::string bytes = test::request(query, keys, values, number);
    for (std::string_view rest = bytes; !rest.empty();) {
      const auto piece = rest.substr(0, pieces.next());
      engine.send(client, piece);
      rest.remove_prefix(piece.size());
    }
    model.apply(client, query, keys, values, number);
    for (std::uint32_t id = 0; id < client_count; ++id) {
      fuzz::require(engine.received(id) == std::exchange(model.out(id), {}));
      fuzz::require(engine.closed(id) == model.closed(id));
      if (engine.closed(id)) {
        engine.disconnect(id), model.disconnect(id);
        engine.send(id, test::validate), model.connect(id);
      }
    }
  }
  // Everything taken out again leaves nothing behind.
  for (std::uint32_t id = 0; id < client_count; ++id) engine.disconnect(id);
  engine.store().erase_if([](std::string_view) { return true; });
  fuzz::require(engine.store().byte_count() == 0 && engine.store().waiting_count() == 0 &&
                engine.store().queue_count() == 0);
  return 0;
}

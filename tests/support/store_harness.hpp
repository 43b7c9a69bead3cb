#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/core/store/store_codec.hpp"

namespace torchup::test {

/// The store's engine and codec without sockets: bytes of any number of clients in, bytes out.
class StoreHarness : StoreOutlet {
 public:
  explicit StoreHarness(StoreLimits limits = {}, FieldLimits fields = {})
      : fields_{fields}, store_{limits, Value{std::string_view{"identity"}}, *this} {}

  Store& store() { return store_; }

  /// Bytes that client `id` sends, in one segment. The first time it connects; VALIDATE is its own affair.
  void send(std::uint32_t id, std::string_view bytes) {
    auto& client = clients_.try_emplace(id, Client{RequestReader{fields_}}).first->second;
    if (client.closed) return;
    // As a socket would: what fits goes straight into a large value's block.
    while (!client.closed) {
      const auto space = client.reader.direct_space();
      const std::size_t taken = std::min(space.size(), bytes.size());
      std::copy_n(bytes.begin(), taken, space.begin());
      client.reader.filled(taken);
      bytes.remove_prefix(taken);
      const auto status = client.reader.read(bytes, request_);
      if (status == RequestReader::Status::malformed) close(ClientId{id}, client.reader.error());
      if (status != RequestReader::Status::complete) break;
      store_.apply(ClientId{id}, request_);
    }
    if (client.closed) store_.disconnect(ClientId{id});
  }
  void disconnect(std::uint32_t id) {
    store_.disconnect(ClientId{id});
    clients_.erase(id);
  }

  /// What client `id` has got since the last call.
  std::string received(std::uint32_t id) { return std::exchange(clients_.at(id).out, {}); }
  bool closed(std::uint32_t id) const { return clients_.at(id).closed; }
  const std::string& reason(std::uint32_t id) const { return clients_.at(id).reason; }
  const RequestReader& reader(std::uint32_t id) const { return clients_.at(id).reader; }

 private:
  struct Client {
    RequestReader reader;
    std::string out{};
    bool closed = false;
    std::string reason{};
  };

  void byte(ClientId to, std::uint8_t value) override { put_byte(clients_.at(to.value()).out, value); }
  void number(ClientId to, std::int64_t value) override { put_number(clients_.at(to.value()).out, value); }
  void nonce(ClientId to, std::uint32_t value) override { put_nonce(clients_.at(to.value()).out, value); }
  void bytes(ClientId to, const Value& value) override { put_bytes(clients_.at(to.value()).out, value.view()); }
  void given(ClientId to, const Value& value) override { bytes(to, value); }
  void released(const Value&) override {}
  void bytes(ClientId to, std::string_view value) override { put_bytes(clients_.at(to.value()).out, value); }
  void fields(ClientId to, std::string encoded) override { clients_.at(to.value()).out += encoded; }
  void close(ClientId client, std::string reason) override {
    clients_.at(client.value()).closed = true;
    clients_.at(client.value()).reason = std::move(reason);
  }

  FieldLimits fields_;
  std::map<std::uint32_t, Client> clients_;
  Request request_;
  Store store_;
};

inline std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes)
    for (const int nibble : {(c >> 4) & 15, c & 15}) text += "0123456789abcdef"[nibble];
  return text;
}

inline std::string unhex(std::string_view text) {
  const auto nibble = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes += static_cast<char>(nibble(text[i]) * 16 + nibble(text[i + 1]));
  return bytes;
}

/// The bytes of one request with the given fields.
inline std::string request(Query query, std::vector<std::string> keys = {}, std::vector<std::string> values = {},
                           std::int64_t number = 0) {
  Request built;
  built.query = query;
  if (!keys.empty()) built.key = keys.front();
  built.keys.assign(keys.begin(), keys.end());
  for (const auto& value : values) built.values.emplace_back(std::string_view{value});
  built.number = number;
  built.nonce = static_cast<std::uint32_t>(number);
  std::string bytes;
  put_request(bytes, built);
  return bytes;
}

inline const std::string validate = unhex("00cef7853c");

}  // namespace torchup::test

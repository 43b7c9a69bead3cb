#pragma once

#include <cstring>
#include <string_view>

#include "rendezvous/core/store/sip_hash.hpp"
#include "rendezvous/core/store/value.hpp"
#include "rendezvous/net/io/token.hpp"

/// What chance gives each store.
namespace torchup {

inline Value random_store_identity() {
  const Nonce nonce = fresh_nonce();
  return Value{std::string_view{reinterpret_cast<const char*>(nonce.data()), nonce.size()}};
}

inline HashSecret random_hash_secret() {
  const Nonce nonce = fresh_nonce();
  HashSecret secret;
  static_assert(sizeof secret <= sizeof nonce);
  std::memcpy(&secret, nonce.data(), sizeof secret);
  return secret;
}

}  // namespace torchup

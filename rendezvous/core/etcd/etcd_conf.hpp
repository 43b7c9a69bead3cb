#pragma once

#include <functional>
#include <map>
#include <string>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"

/// How etcd is reached, as people say it: the keys of --rdzv-conf with the etcd backend, and of torchupd --etcd-conf.
namespace torchup::etcd {

struct Conf {
  std::string protocol = "http";  ///< or https, which is the default where a certificate key is given
  std::string ca_file = {};
  std::string cert_file = {};
  std::string key_file = {};
  std::string prefix = "/torchup";
  std::string user = {};
  std::string password_file = {};
  Port port{0};  ///< of an agent's coordinator; 0: any free one
  friend bool operator==(const Conf&, const Conf&) = default;
};

/// Takes what it knows out of `items`, and leaves the rest: protocol, cacert, cert, key, etcd_prefix, user,
/// password_file, port.
///
/// Errors: errc::bad_value with the thing, the reason and the remedy: an unknown protocol, a certificate without its
/// key or a key without its certificate, either with http, a prefix that is none, a port that is none, a password
/// without a user.
[[nodiscard]] Result<Conf> read_conf(std::map<std::string, std::string>& items);

/// "key=value,key=value", as torchrun reads --rdzv-conf.
[[nodiscard]] Result<std::map<std::string, std::string>> split_conf(const std::string& text);

}  // namespace torchup::etcd

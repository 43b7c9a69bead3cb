#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/etcd/etcd_failure.hpp"
#include "rendezvous/core/etcd/etcd_messages.hpp"
#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/net/etcd/etcd_tls.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

struct EtcdSettings {
  std::vector<Endpoint> members = {};  ///< at least one, in the order of trying
  std::string user = {};               ///< empty: nobody logs in
  std::string password = {};
  bool https = false;
  EtcdTlsFiles files = {};
};

/// Asks etcd by its JSON gateway: one request after the other, over one kept connection to one member. A member that
/// cannot be reached, does not answer within `answer_limit` or is none of etcd's gives its turn to the next. A request
/// that was sent and not answered is never sent again, for it may have been done: whoever asked decides. Each request
/// logs in first where there is a user and no token, and once more where the token is none any more.
///
/// Lives on the loop's thread. Destroyed, it calls nobody any more.
class EtcdClient {
 public:
  static constexpr Duration connect_limit = std::chrono::seconds{2};
  static constexpr Duration answer_limit = std::chrono::seconds{2};

  struct Answer {
    std::optional<etcd::Failure> failure = {};
    std::string body = {};  ///< without a failure: with status 200
  };
  using Done = std::function<void(Answer)>;

  EtcdClient(boost::asio::io_context& loop, EtcdSettings settings);
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;
  ~EtcdClient();

  /// `done` is called from the loop, never from within this call.
  void ask(etcd::Request request, Done done);

  /// What is wrong with each member that was tried since any last answered: "etcd1:2379: refused; …". Empty: nothing.
  [[nodiscard]] std::string trouble() const;
  /// The worst of it, where it is one that trying again does not mend.
  [[nodiscard]] std::optional<etcd::Failure> verdict() const;
  /// Every member has been tried, and each answers as etcd 3.4 or newer does not.
  [[nodiscard]] bool none_is_etcd() const;
  /// What was answered last cannot be believed: the next member is asked from now on.
  void disbelieve(const std::string& why);
  /// Ours, numeric, of the last connection; empty: there has been none.
  [[nodiscard]] std::string local_address() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace torchup

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/core/etcd/scope.hpp"
#include "rendezvous/core/etcd/state_pieces.hpp"
#include "rendezvous/core/seat/candidacy.hpp"
#include "rendezvous/net/coordinator/job_archive.hpp"
#include "rendezvous/net/etcd/etcd_client.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

/// Jobs' states in etcd (core/etcd/state_pieces), written under the term of a seat: each txn is refused once the seat
/// is another's. One write of a job after the other, and of what waits the newest alone. What was not answered is asked
/// for by a read before anything is written again; a write that fails is tried until it succeeds, or the seat is lost:
/// then nobody hears of it any more.
///
/// States hang on a lease of `state_ttl`, so that a cluster that died leaves nothing for ever; of a job that is over on
/// one of `verdict_ttl`, after which its run id is new again.
class EtcdArchive final : public JobArchive {
 public:
  static constexpr Duration state_ttl = std::chrono::hours{2};
  static constexpr Duration verdict_ttl = std::chrono::minutes{5};
  static constexpr Duration retry_first = std::chrono::milliseconds{50};
  static constexpr Duration retry_longest = std::chrono::seconds{1};

  /// `outvoted`: a txn was refused because the seat is another's, or nobody's.
  EtcdArchive(boost::asio::io_context& loop, EtcdSettings settings, etcd::Scope scope, std::function<void()> outvoted,
              std::function<void(const std::string&)> log);
  ~EtcdArchive() override;

  /// What the txn that took the seat has read.
  void begin(Term term, const std::vector<etcd::ReadState>& states);
  /// The seat was taken again. False: what is kept is not what was written here, and all must begin again.
  [[nodiscard]] bool go_on(Term term, const std::vector<etcd::ReadState>& states);
  /// Nothing is written any more, and what was asked for is not answered.
  void end();

  [[nodiscard]] bool binds() const override { return true; }
  [[nodiscard]] Duration save_delay() const override { return std::chrono::seconds{2}; }
  void write(std::uint64_t number, Entry entry, Done done) override;
  void remove(std::uint64_t number, const RunId& run_id) override;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace torchup

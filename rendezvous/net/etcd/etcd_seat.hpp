#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/etcd/scope.hpp"
#include "rendezvous/core/etcd/state_pieces.hpp"
#include "rendezvous/core/seat/candidacy.hpp"
#include "rendezvous/net/etcd/etcd_client.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

/// A candidate's dealings with etcd: asks what core/seat/candidacy wants asked, and passes on what comes of it.
class EtcdSeat {
 public:
  struct Serving {
    candidacy::Serve serve = {};
    TimePoint taken{};                          ///< when the txn was sent
    std::vector<etcd::ReadState> states = {};   ///< as that txn read them
    std::optional<etcd::Holder> former = {};    ///< who had the seat before, where it was not vacant
  };
  struct Handlers {
    /// Before the seat is taken: opens the port, and says what is written there.
    std::function<Result<etcd::Holder>()> open = {};
    std::function<void(Serving)> serve = {};
    std::function<void(TimePoint sent)> confirm = {};
    std::function<void(const candidacy::Yield&)> yield = {};
    std::function<void(const candidacy::Attend&)> attend = {};
    /// Of the job that `watched` names, when nobody serves it any more.
    std::function<void(const etcd::RecordedVerdict&)> ended = {};
    /// What is wrong with etcd, as often as that changes; empty: it answers. Where a failure is given, trying again
    /// does not mend it.
    std::function<void(const std::string& trouble, const std::optional<etcd::Failure>&)> trouble = {};
    /// After each event: role, term or what is known of them may be another.
    std::function<void()> stepped = {};
    /// A state that cannot be used, with its key and the remedy: nobody serves.
    std::function<void(const Error&)> unusable = {};
  };

  /// `watched`: the job whose verdict is looked for, where the scope has one only.
  EtcdSeat(boost::asio::io_context& loop, EtcdSettings settings, etcd::Scope scope, std::optional<RunId> watched,
           CandidacySettings candidacy, Handlers handlers);
  EtcdSeat(const EtcdSeat&) = delete;
  EtcdSeat& operator=(const EtcdSeat&) = delete;
  ~EtcdSeat();

  void start();
  /// What others say of the holder; and Leave, after which `done` is called when etcd has heard of it, or cannot.
  void tell(const candidacy::Event& event);
  void leave(std::function<void()> done);
  void set_campaign_wait(Duration wait);

  [[nodiscard]] const Candidacy& machine() const;
  /// When etcd last answered; nothing: never.
  [[nodiscard]] std::optional<TimePoint> answered_at() const;
  [[nodiscard]] std::string trouble() const;
  /// As EtcdClient has it.
  [[nodiscard]] bool none_is_etcd() const;
  /// Numeric, by which etcd was reached last; empty: it has not been.
  [[nodiscard]] std::string local_address() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace torchup

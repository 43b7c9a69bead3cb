#include "rendezvous/net/etcd/etcd_seat.hpp"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <utility>
#include <variant>

#include "rendezvous/net/io/lasting_clock.hpp"

namespace torchup {
namespace {

std::int64_t whole_seconds(Duration ttl) {
  return std::max<std::int64_t>(1, std::chrono::ceil<std::chrono::seconds>(ttl).count());
}

}  // namespace

class EtcdSeat::Impl : public std::enable_shared_from_this<EtcdSeat::Impl> {
 public:
  Impl(boost::asio::io_context& loop, EtcdSettings settings, etcd::Scope scope, std::optional<RunId> watched,
       CandidacySettings candidacy, Handlers handlers)
      : loop_{loop}, client_{loop, std::move(settings)}, scope_{std::move(scope)}, watched_{std::move(watched)},
        handlers_{std::move(handlers)}, machine_{candidacy, lasting_now()}, timer_{loop} {}

  void start() {
    boost::asio::post(loop_, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->tell(candidacy::Wake{});
    });
  }

  void close() {
    handlers_ = {};
    timer_.cancel();
    closed_ = true;
  }

  void tell(const candidacy::Event& event) {
    if (closed_) return;
    const auto self = shared_from_this();
    const TimePoint now = lasting_now();
    for (const candidacy::Action& action : machine_.step(event, now)) {
      if (closed_) return;
      std::visit([this](const auto& wanted) { perform(wanted); }, action);
    }
    if (closed_) return;
    if (handlers_.stepped) handlers_.stepped();
    const auto deadline = machine_.deadline();
    if (!deadline) return timer_.cancel();
    timer_.start(std::max(*deadline - lasting_now(), Duration::zero()), [weak = weak_from_this()] {
      if (const auto impl = weak.lock()) impl->tell(candidacy::Wake{});
    });
  }

  void leave(std::function<void()> done) {
    tell(candidacy::Leave{});
    // Behind whatever the leave has asked for. Who is not answered goes all the same.
    if (unanswered_ == 0) return boost::asio::post(loop_, std::move(done));
    left_ = std::move(done);
  }

  [[nodiscard]] const Candidacy& machine() const { return machine_; }
  void set_campaign_wait(Duration wait) { machine_.set_campaign_wait(wait); }
  [[nodiscard]] std::optional<TimePoint> answered_at() const { return answered_at_; }
  [[nodiscard]] std::string trouble() const { return client_.trouble(); }
  [[nodiscard]] bool none_is_etcd() const { return client_.none_is_etcd(); }
  [[nodiscard]] std::string local_address() const { return client_.local_address(); }

 private:
  /// `heard` reads an answer and says what the machine is to be told.
  template <class Heard>
  void ask(etcd::Request request, std::uint64_t number, Heard heard) {
    ++unanswered_;
    client_.ask(std::move(request), [weak = weak_from_this(), number, heard = std::move(heard)](EtcdClient::Answer answer) {
      const auto self = weak.lock();
      if (!self || self->closed_) return;
      --self->unanswered_;
      candidacy::Event event = candidacy::Failed{number, answer.failure && answer.failure->cause == etcd::Cause::forbidden};
      if (!answer.failure || answer.failure->cause == etcd::Cause::lease_gone) event = heard(*self, answer);
      if (!answer.failure && number != 0) {
        if (std::holds_alternative<candidacy::Failed>(event)) {
          self->client_.disbelieve("is no etcd: what it answers cannot be understood");
        } else {
          self->answered_at_ = lasting_now();
        }
      }
      self->tell_trouble(answer.failure);
      if (self->closed_) return;
      if (number != 0) self->tell(event);
      if (self->unanswered_ == 0 && self->left_) std::exchange(self->left_, {})();
    });
  }

  void tell_trouble(const std::optional<etcd::Failure>& failure) {
    std::string text = client_.trouble();
    if (text.empty() && failure && failure->cause != etcd::Cause::lease_gone) text = failure->words;
    if (text == told_trouble_) return;
    told_trouble_ = text;
    if (handlers_.trouble) handlers_.trouble(text, client_.verdict());
  }

  void perform(const candidacy::Look& look) {
    etcd::Txn txn;
    txn.then.emplace_back(etcd::Range{.key = scope_.seat()});
    if (watched_) txn.then.emplace_back(etcd::Range{.key = scope_.head(*watched_)});
    ask(*etcd::request(txn), look.number,
        [txn, number = look.number, known = known_](Impl& self, const EtcdClient::Answer& answer) {
          return self.read_look(etcd::read_txn(answer.body, txn), number, known);
        });
  }

  /// `known`: the revision that had been seen when it was asked; a member that answers of a time before is left.
  candidacy::Event read_look(Result<etcd::TxnAnswer> answer, std::uint64_t number, etcd::Revision known) {
    if (!answer || answer->header.revision < known) return candidacy::Failed{number};
    known_ = std::max(known_, answer->header.revision);
    candidacy::View view{.revision = answer->header.revision};
    const auto& seat = std::get<etcd::RangeAnswer>(answer->answers.front());
    if (!seat.entries.empty()) {
      const etcd::Entry& entry = seat.entries.front();
      view.term = Term{entry.changed.value()};
      view.lease = entry.lease;
      auto holder = etcd::read_holder(entry.value);
      // Whose seat cannot be read still has it.
      if (holder) view.holder = *std::move(holder);
      if (machine_.role() != Candidacy::Role::holding) {
        former_ = view.holder;
        former_term_ = view.term;
      }
    }
    if (watched_ && machine_.role() != Candidacy::Role::holding) {
      const auto& heads = std::get<etcd::RangeAnswer>(answer->answers.back());
      if (!heads.entries.empty()) look_for_verdict(heads.entries.front());
    }
    return candidacy::Read{number, std::move(view)};
  }

  void look_for_verdict(const etcd::Entry& entry) {
    const auto head = etcd::read_head(entry.value);
    if (head && head->verdict && handlers_.ended) handlers_.ended(*head->verdict);
  }

  void perform(const candidacy::Grant& grant) {
    ask(etcd::grant_request(whole_seconds(grant.ttl)), grant.number,
        [number = grant.number](Impl&, const EtcdClient::Answer& answer) -> candidacy::Event {
          const auto granted = etcd::read_grant(answer.body);
          if (!granted) return candidacy::Failed{number};
          return candidacy::Granted{number, granted->lease};
        });
  }

  void perform(const candidacy::Take& take) {
    const auto holder = handlers_.open();
    if (!holder) {
      if (handlers_.unusable) handlers_.unusable(holder.error());
      return boost::asio::post(loop_, [weak = weak_from_this(), number = take.number] {
        if (const auto self = weak.lock()) self->tell(candidacy::Failed{number});
      });
    }
    etcd::Txn txn{.compares = {{scope_.seat(), etcd::Revision{take.was.value()}}}};
    txn.then.emplace_back(etcd::Put{scope_.seat(), etcd::encode_holder(*holder), take.lease});
    txn.then.emplace_back(etcd::range_of_prefix(scope_.states()));
    ask(*etcd::request(txn), take.number,
        [txn, number = take.number, taken = lasting_now()](Impl& self, const EtcdClient::Answer& answer) {
          return self.read_taking(answer, txn, number, taken);
        });
  }

  candidacy::Event read_taking(const EtcdClient::Answer& answer, const etcd::Txn& txn, std::uint64_t number,
                               TimePoint taken) {
    // The lease is dead, as its next renewal will find.
    if (answer.failure) return candidacy::Failed{number};
    auto read = etcd::read_txn(answer.body, txn);
    if (!read) return candidacy::Failed{number};
    if (!read->succeeded) return candidacy::Missed{number};
    auto states = etcd::read_states(scope_, std::get<etcd::RangeAnswer>(read->answers.back()).entries);
    if (!states) {
      unusable_ = states.error();
    } else {
      states_ = *std::move(states);
    }
    taken_ = taken;
    return candidacy::Taken{number, Term{read->header.revision.value()}};
  }

  void perform(const candidacy::Renew& renew) {
    ask(etcd::keep_alive_request(renew.lease), renew.number,
        [renew](Impl&, const EtcdClient::Answer& answer) -> candidacy::Event {
          const auto alive = etcd::read_keep_alive(answer.body, renew.lease);
          if (!alive) return candidacy::Failed{renew.number};
          return candidacy::Renewed{renew.number, alive->ttl_s > 0};
        });
  }

  void perform(const candidacy::Revoke& revoke) {
    ask(etcd::revoke_request(revoke.lease), 0, [](Impl&, const EtcdClient::Answer&) { return candidacy::Failed{0}; });
  }

  void perform(const candidacy::Vacate& vacate) {
    etcd::Txn txn{.compares = {{scope_.seat(), etcd::Revision{vacate.term.value()}}}};
    txn.then.emplace_back(etcd::Delete{scope_.seat()});
    const auto nothing = [](Impl&, const EtcdClient::Answer&) { return candidacy::Failed{0}; };
    ask(*etcd::request(txn), 0, nothing);
    ask(etcd::revoke_request(vacate.lease), 0, nothing);
  }

  void perform(const candidacy::Serve& serve) {
    if (unusable_) {
      if (handlers_.unusable) handlers_.unusable(*std::exchange(unusable_, {}));
      return;
    }
    // Of another term than the one before ours nothing is known, nor proved.
    const bool of_former = former_ && serve.before != Term{0} && former_term_ == serve.before;
    if (handlers_.serve) handlers_.serve({serve, taken_, std::exchange(states_, {}), of_former ? former_ : std::nullopt});
  }
  void perform(const candidacy::Confirm& confirm) {
    if (handlers_.confirm) handlers_.confirm(confirm.sent);
  }
  void perform(const candidacy::Yield& yield) {
    if (handlers_.yield) handlers_.yield(yield);
  }
  void perform(const candidacy::Attend& attend) {
    if (handlers_.attend) handlers_.attend(attend);
  }

  boost::asio::io_context& loop_;
  EtcdClient client_;
  etcd::Scope scope_;
  std::optional<RunId> watched_;
  Handlers handlers_;
  Candidacy machine_;
  LastingTimer timer_;
  bool closed_ = false;
  int unanswered_ = 0;
  std::function<void()> left_;
  std::optional<TimePoint> answered_at_;
  std::string told_trouble_;
  etcd::Revision known_{0};  ///< the greatest that a look has shown
  std::optional<etcd::Holder> former_;  ///< whom a look has shown last, before we held
  Term former_term_{0};
  // Of the taking that the machine is about to be told of.
  std::vector<etcd::ReadState> states_;
  TimePoint taken_{};
  std::optional<Error> unusable_;
};

EtcdSeat::EtcdSeat(boost::asio::io_context& loop, EtcdSettings settings, etcd::Scope scope,
                   std::optional<RunId> watched, CandidacySettings candidacy, Handlers handlers)
    : impl_{std::make_shared<Impl>(loop, std::move(settings), std::move(scope), std::move(watched), candidacy,
                                   std::move(handlers))} {}
EtcdSeat::~EtcdSeat() { impl_->close(); }
void EtcdSeat::start() { impl_->start(); }
void EtcdSeat::tell(const candidacy::Event& event) { impl_->tell(event); }
void EtcdSeat::leave(std::function<void()> done) { impl_->leave(std::move(done)); }
void EtcdSeat::set_campaign_wait(Duration wait) { impl_->set_campaign_wait(wait); }
const Candidacy& EtcdSeat::machine() const { return impl_->machine(); }
std::optional<TimePoint> EtcdSeat::answered_at() const { return impl_->answered_at(); }
std::string EtcdSeat::local_address() const { return impl_->local_address(); }
bool EtcdSeat::none_is_etcd() const { return impl_->none_is_etcd(); }
std::string EtcdSeat::trouble() const { return impl_->trouble(); }

}  // namespace torchup

#include "rendezvous/net/coordinator/etcd_archive.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <optional>
#include <utility>

#include "rendezvous/net/io/lasting_clock.hpp"

namespace torchup {

namespace asio = boost::asio;

class EtcdArchive::Impl : public std::enable_shared_from_this<EtcdArchive::Impl> {
 public:
  Impl(asio::io_context& loop, EtcdSettings settings, etcd::Scope scope, std::function<void()> outvoted,
       std::function<void(const std::string&)> log)
      : loop_{loop}, client_{loop, std::move(settings)}, scope_{std::move(scope)}, outvoted_{std::move(outvoted)},
        log_{std::move(log)}, renew_{loop} {}

  void begin(Term term, const std::vector<etcd::ReadState>& states) {
    end();
    term_ = term;
    for (const etcd::ReadState& state : states) heads_[state.run_id] = head_of(state);
    wait_renewal();
  }

  bool go_on(Term term, const std::vector<etcd::ReadState>& states) {
    if (!std::ranges::all_of(states, [this](const etcd::ReadState& state) { return is_ours(state); })) return false;
    for (const auto& [run_id, head] : heads_) {
      const auto found = std::ranges::find(states, run_id, &etcd::ReadState::run_id);
      if (head.serial != 0 && found == states.end()) return false;
    }
    term_ = term;
    for (const etcd::ReadState& state : states) heads_[state.run_id] = head_of(state);
    for (auto& [number, job] : jobs_) {
      if (job->writing) look(number);
    }
    return true;
  }

  void end() {
    ++tenure_;
    term_ = Term{0};
    heads_.clear();
    jobs_.clear();
    renew_.cancel();
  }

  void write(std::uint64_t number, Entry entry, Done done) {
    if (term_ == Term{0}) return;
    auto& job = jobs_[number];
    if (!job) job = std::make_shared<Job>(loop_, entry.run_id);
    if (job->next) job->next->done = {};  // its keeper asks for one at a time; the newest counts
    job->next = Waiting{std::move(entry), std::move(done)};
    if (!job->writing) begin_writing(number);
  }

  void remove(std::uint64_t number, const RunId& run_id) {
    jobs_.erase(number);
    const auto head = heads_.find(run_id);
    // How it ended is there for those who come late, until its lease is over.
    if (term_ == Term{0} || head == heads_.end() || head->second.over) return;
    etcd::Txn txn{.compares = {{scope_.seat(), etcd::Revision{term_.value()}}}};
    txn.then.emplace_back(etcd::Delete{scope_.head(run_id)});
    txn.then.emplace_back(etcd::delete_prefix(scope_.head(run_id) + "/"));
    heads_.erase(head);
    client_.ask(*etcd::request(txn), [](const EtcdClient::Answer&) {});
  }

 private:
  struct Head {
    etcd::Revision changed{0};
    std::uint64_t serial = 0;
    bool over = false;  ///< it has a verdict, and a lease of its own
  };
  [[nodiscard]] static Head head_of(const etcd::ReadState& state) {
    return {state.changed, state.head.serial, state.head.verdict.has_value()};
  }
  struct Waiting {
    Entry entry = {};
    Done done = {};
  };
  struct Job {
    Job(asio::io_context& loop, RunId id) : run_id{std::move(id)}, timer{loop} {}
    RunId run_id;
    std::optional<Waiting> next = {};  ///< not begun
    bool writing = false;
    Done done = {};
    std::string bytes = {};
    std::optional<etcd::RecordedVerdict> verdict = {};
    std::uint64_t serial = 0;
    std::vector<etcd::Txn> txns = {};
    std::size_t at = 0;  ///< of them, the one that is asked for
    etcd::LeaseId verdict_lease{0};
    Duration retry = retry_first;
    asio::steady_timer timer;
  };

  /// It is as we know it, or what was on its way and not answered was applied.
  [[nodiscard]] bool is_ours(const etcd::ReadState& state) const {
    const auto known = heads_.find(state.run_id);
    if (known != heads_.end() && known->second.changed == state.changed) return true;
    return std::ranges::any_of(jobs_, [&](const auto& each) {
      const Job& job = *each.second;
      return job.writing && job.run_id == state.run_id && job.serial == state.head.serial && job.bytes == state.bytes;
    });
  }

  /// Calls `then` with what was answered, unless the tenure or the job is over.
  template <class Then>
  void ask(std::uint64_t number, etcd::Request request, Then then) {
    client_.ask(std::move(request),
                [weak = weak_from_this(), number, tenure = tenure_, then = std::move(then)](EtcdClient::Answer answer) {
                  const auto self = weak.lock();
                  if (!self || self->tenure_ != tenure) return;
                  const auto found = self->jobs_.find(number);
                  if (found == self->jobs_.end()) return;
                  const std::shared_ptr<Job> job = found->second;
                  then(*self, *job, std::move(answer));
                });
  }

  void begin_writing(std::uint64_t number) {
    Job& job = *jobs_.at(number);
    Waiting next = *std::exchange(job.next, {});
    try {
      job.bytes = next.entry.content();
    } catch (const std::exception& fault) {
      log_(fmt::format("a job's state cannot be written: {}", fault.what()));
      return;
    }
    job.writing = true;
    job.done = std::move(next.done);
    job.verdict.reset();
    if (next.entry.verdict) {
      job.verdict = etcd::RecordedVerdict{next.entry.verdict->exit_code, next.entry.verdict->reason};
    }
    job.serial = heads_[job.run_id].serial + 1;
    job.retry = retry_first;
    prepare(number);
  }

  /// Leases first.
  void prepare(std::uint64_t number) {
    Job& job = *jobs_.at(number);
    const bool over = job.verdict.has_value();
    const etcd::LeaseId lease = over ? job.verdict_lease : lease_;
    if (lease != etcd::LeaseId{0}) return plan(number, lease);
    const Duration ttl = over ? verdict_ttl : state_ttl;
    ask(number, etcd::grant_request(std::chrono::duration_cast<std::chrono::seconds>(ttl).count()),
        [number, over](Impl& self, Job& asked, const EtcdClient::Answer& answer) {
          const auto granted = answer.failure ? Result<etcd::LeaseAnswer>{fail(errc::bad_frame, "")}
                                              : etcd::read_grant(answer.body);
          if (!granted) return self.again(number, asked);
          (over ? asked.verdict_lease : self.lease_) = granted->lease;
          self.prepare(number);
        });
  }

  void plan(std::uint64_t number, etcd::LeaseId lease) {
    Job& job = *jobs_.at(number);
    const Head& head = heads_[job.run_id];
    job.serial = std::max(job.serial, head.serial + 1);
    auto txns = etcd::write_state(scope_, {.run_id = job.run_id,
                                           .bytes = job.bytes,
                                           .verdict = job.verdict,
                                           .serial = job.serial,
                                           .term = etcd::Revision{term_.value()},
                                           .head = head.changed,
                                           .lease = lease});
    if (!txns) return log_(fmt::format("a job's state cannot be written: {}", txns.error().message()));
    job.txns = *std::move(txns);
    job.at = 0;
    send(number);
  }

  void send(std::uint64_t number) {
    Job& job = *jobs_.at(number);
    auto request = etcd::request(job.txns[job.at]);
    if (!request) return log_(fmt::format("a job's state cannot be written: {}", request.error().message()));
    ask(number, *std::move(request), [number](Impl& self, Job& asked, const EtcdClient::Answer& answer) {
      if (answer.failure) {
        if (answer.failure->cause == etcd::Cause::lease_gone) {
          (asked.verdict ? asked.verdict_lease : self.lease_) = etcd::LeaseId{0};
        }
        return self.again(number, asked);
      }
      const auto done = etcd::read_txn(answer.body, asked.txns[asked.at]);
      if (!done) self.client_.disbelieve("is no etcd: what it answers cannot be understood");
      // Refused: another has the seat, or a txn of ours was applied though it was not answered.
      if (!done || !done->succeeded) return self.look(number);
      if (++asked.at < asked.txns.size()) return self.send(number);
      self.kept(number, asked, done->header.revision);
    });
  }

  void again(std::uint64_t number, Job& job) {
    job.timer.expires_after(job.retry);
    job.retry = std::min(job.retry * 2, Duration{retry_longest});
    job.timer.async_wait([weak = weak_from_this(), number, tenure = tenure_](const boost::system::error_code& error) {
      const auto self = weak.lock();
      if (!error && self && self->tenure_ == tenure && self->jobs_.contains(number)) self->look(number);
    });
  }

  /// Is the seat still ours, and the head what we wrote last?
  void look(std::uint64_t number) {
    Job& job = *jobs_.at(number);
    etcd::Txn txn;
    txn.then.emplace_back(etcd::Range{.key = scope_.seat()});
    txn.then.emplace_back(etcd::Range{.key = scope_.head(job.run_id)});
    ask(number, *etcd::request(txn), [number, txn](Impl& self, Job& asked, const EtcdClient::Answer& answer) {
      if (answer.failure) return self.again(number, asked);
      const auto read = etcd::read_txn(answer.body, txn);
      if (!read) {
        self.client_.disbelieve("is no etcd: what it answers cannot be understood");
        return self.again(number, asked);
      }
      self.looked(number, asked, std::get<etcd::RangeAnswer>(read->answers[0]),
                  std::get<etcd::RangeAnswer>(read->answers[1]));
    });
  }

  void looked(std::uint64_t number, Job& job, const etcd::RangeAnswer& seat, const etcd::RangeAnswer& head) {
    if (seat.entries.empty() || seat.entries.front().changed.value() != term_.value()) {
      outvoted_();  // a later tenure of ours goes on from here
      return again(number, job);
    }
    if (head.entries.empty()) {
      heads_[job.run_id] = {};
    } else {
      const auto read = etcd::read_head(head.entries.front().value);
      if (!read) return log_(fmt::format("a job's state was overwritten by others: {}", read.error().message()));
      heads_[job.run_id] = {head.entries.front().changed, read->serial, read->verdict.has_value()};
      if (job.writing && !job.txns.empty() && read->serial == job.serial) {
        return kept(number, job, head.entries.front().changed);
      }
    }
    prepare(number);
  }

  void kept(std::uint64_t number, Job& job, etcd::Revision changed) {
    heads_[job.run_id] = {changed, job.serial, job.verdict.has_value()};
    job.writing = false;
    job.txns.clear();
    job.bytes.clear();
    const Done done = std::exchange(job.done, {});
    const std::uint64_t tenure = tenure_;
    if (done) done({});
    const auto still = jobs_.find(number);
    if (tenure_ == tenure && still != jobs_.end() && still->second->next && !still->second->writing) {
      begin_writing(number);
    }
  }

  void wait_renewal() {
    renew_.expires_after(state_ttl / 6);
    renew_.async_wait([weak = weak_from_this(), tenure = tenure_](const boost::system::error_code& error) {
      const auto self = weak.lock();
      if (error || !self || self->tenure_ != tenure) return;
      if (self->lease_ != etcd::LeaseId{0}) {
        self->client_.ask(etcd::keep_alive_request(self->lease_), [weak, lease = self->lease_](EtcdClient::Answer answer) {
          const auto impl = weak.lock();
          if (!impl || answer.failure || impl->lease_ != lease) return;
          const auto alive = etcd::read_keep_alive(answer.body, lease);
          if (alive && alive->ttl_s == 0) impl->lease_ = etcd::LeaseId{0};
        });
      }
      self->wait_renewal();
    });
  }

  asio::io_context& loop_;
  EtcdClient client_;
  etcd::Scope scope_;
  std::function<void()> outvoted_;
  std::function<void(const std::string&)> log_;
  asio::steady_timer renew_;
  Term term_{0};               ///< 0: nothing is written
  std::uint64_t tenure_ = 0;   ///< counts them: what an earlier one asked for is not heard
  etcd::LeaseId lease_{0};     ///< of all states of jobs that go on
  std::map<RunId, Head> heads_;
  std::map<std::uint64_t, std::shared_ptr<Job>> jobs_;
};

EtcdArchive::EtcdArchive(asio::io_context& loop, EtcdSettings settings, etcd::Scope scope,
                         std::function<void()> outvoted, std::function<void(const std::string&)> log)
    : impl_{std::make_shared<Impl>(loop, std::move(settings), std::move(scope), std::move(outvoted), std::move(log))} {}
EtcdArchive::~EtcdArchive() { impl_->end(); }
void EtcdArchive::begin(Term term, const std::vector<etcd::ReadState>& states) { impl_->begin(term, states); }
bool EtcdArchive::go_on(Term term, const std::vector<etcd::ReadState>& states) { return impl_->go_on(term, states); }
void EtcdArchive::end() { impl_->end(); }
void EtcdArchive::write(std::uint64_t number, Entry entry, Done done) {
  impl_->write(number, std::move(entry), std::move(done));
}
void EtcdArchive::remove(std::uint64_t number, const RunId& run_id) { impl_->remove(number, run_id); }

}  // namespace torchup

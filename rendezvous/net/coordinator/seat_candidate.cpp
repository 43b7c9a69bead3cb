#include "rendezvous/net/coordinator/seat_candidate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/core/membership/job_codec.hpp"
#include "rendezvous/core/text/wording.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/io/lasting_clock.hpp"
#include "rendezvous/net/io/node_identity.hpp"

#include <unistd.h>

namespace torchup {
namespace {

/// So long a service at etcd's address that is none may be one that is about to be replaced.
constexpr Duration foreign_limit = std::chrono::seconds{5};

std::vector<std::string> texts_of(const std::vector<Endpoint>& endpoints) {
  std::vector<std::string> texts;
  for (const Endpoint& each : endpoints) texts.push_back(to_string(each));
  return texts;
}

/// Those of them that can be dialled.
std::vector<Endpoint> endpoints_of(const std::vector<std::string>& texts) {
  std::vector<Endpoint> endpoints;
  for (const std::string& text : texts) {
    auto endpoint = parse_endpoint(text, Port{0});
    if (endpoint && endpoint->port != Port{0}) endpoints.push_back(*std::move(endpoint));
  }
  return endpoints;
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& each : texts) all += (all.empty() ? "" : ",") + each;
  return all;
}

etcd::Scope scope_of(const CandidateSettings& settings) {
  return settings.job ? etcd::Scope::of_job(settings.prefix, *settings.job) : etcd::Scope::of_daemons(settings.prefix);
}

}  // namespace

class SeatCandidate::Impl : public std::enable_shared_from_this<SeatCandidate::Impl> {
 public:
  Impl(boost::asio::io_context& loop, Coordinator& coordinator, CandidateSettings settings, Handlers handlers,
       LogSink log)
      : loop_{loop}, coordinator_{coordinator}, settings_{std::move(settings)}, handlers_{std::move(handlers)},
        log_{std::move(log)} {}

  void start() {
    coordinator_.stand_by({});
    coordinator_.set_met([weak = weak_from_this()](std::int64_t term, const std::vector<std::string>& texts) {
      const auto self = weak.lock();
      if (self && self->seat_) self->seat_->tell(candidacy::Outvoted{Term{term}, endpoints_of(texts)});
    });
    coordinator_.set_role([weak = weak_from_this()] {
      const auto self = weak.lock();
      return self ? self->role() : Coordinator::Role{};
    });
    archive_ = std::make_unique<EtcdArchive>(
        loop_, settings_.etcd, scope_of(settings_),
        [weak = weak_from_this()] {
          if (const auto self = weak.lock(); self && self->seat_) self->seat_->tell(candidacy::Outvoted{Term{0}});
        },
        [weak = weak_from_this()](const std::string& line) {
          if (const auto self = weak.lock()) self->log(LogLevel::error, line);
        });
    seat_ = std::make_unique<EtcdSeat>(loop_, settings_.etcd, scope_of(settings_), settings_.job, settings_.candidacy,
                                       handlers());
    seat_->start();
  }

  void close() {
    closed_ = true;
    handlers_ = {};
    seat_.reset();
    if (archive_) archive_->end();
  }

  void tell(const candidacy::Event& event) {
    if (seat_ && !closed_) seat_->tell(event);
  }

  /// Known since when: whoever takes over says how long nobody decided.
  void saw_end(std::int64_t term) {
    if (!since_) since_ = lasting_now();
    tell(candidacy::HolderEnded{Term{term}});
  }

  void leave(std::function<void()> done) {
    if (!seat_) return boost::asio::post(loop_, std::move(done));
    seat_->leave(std::move(done));
  }

  void set_group_rank(GroupRank rank) {
    if (seat_) seat_->set_campaign_wait(campaign_wait_of(rank));
  }
  [[nodiscard]] bool serves() const { return seat_ && seat_->machine().role() == Candidacy::Role::holding; }
  [[nodiscard]] std::string local_address() const { return seat_ ? seat_->local_address() : ""; }

 private:
  void log(LogLevel level, std::string text) const {
    if (log_) log_(LogLine{level, "seat", std::move(text)});
  }

  EtcdSeat::Handlers handlers() {
    const auto weak = weak_from_this();
    const auto with_self = [weak](auto what) {
      return [weak, what](const auto&... told) {
        if (const auto self = weak.lock(); self && !self->closed_) what(*self, told...);
      };
    };
    EtcdSeat::Handlers made;
    made.open = [weak]() -> Result<etcd::Holder> {
      const auto self = weak.lock();
      if (!self || self->closed_) return fail(errc::refused, "this process ends");
      return self->open();
    };
    made.serve = with_self([](Impl& self, const EtcdSeat::Serving& serving) { self.serve(serving); });
    made.confirm = with_self([](Impl& self, TimePoint sent) { self.coordinator_.confirm(sent); });
    made.yield = with_self([](Impl& self, const candidacy::Yield& yield) { self.yield(yield); });
    made.attend = with_self([](Impl& self, const candidacy::Attend& attend) { self.attend(attend); });
    made.ended = with_self([](Impl& self, const etcd::RecordedVerdict& verdict) {
      if (self.handlers_.ended) self.handlers_.ended({.exit_code = verdict.exit_code, .reason = verdict.reason});
    });
    made.trouble = with_self([](Impl& self, const std::string& trouble, const std::optional<etcd::Failure>& failure) {
      self.tell_trouble(trouble, failure);
    });
    made.stepped = with_self([](Impl& self) { self.stepped(); });
    made.unusable = with_self([](Impl& self, const Error& error) {
      if (self.handlers_.unusable) self.handlers_.unusable(error);
    });
    return made;
  }

  Result<etcd::Holder> open() {
    auto endpoints = handlers_.open();
    if (!endpoints) return endpoints.error();
    own_ = *std::move(endpoints);
    return etcd::Holder{.endpoints = own_, .host = own_host_name(), .node = settings_.agent, .pid = ::getpid()};
  }

  void serve(const EtcdSeat::Serving& serving) {
    const std::int64_t term = serving.serve.term.value();
    active_ = {term, texts_of(own_)};
    if (serving.serve.again && archive_->go_on(serving.serve.term, serving.states)) {
      coordinator_.go_on(serving.serve.term, serving.taken);
    } else {
      if (coordinator_.right().term != 0) coordinator_.end_tenure({term, texts_of(own_)});  // our former one
      std::vector<Coordinator::Found> found;
      for (const etcd::ReadState& state : serving.states) {
        auto job = decode_job(state.bytes);
        if (!job) return unusable(state, job.error());
        found.push_back({std::move(job->run_id), std::move(job->snapshot)});
      }
      const std::size_t jobs = found.size();
      archive_->begin(serving.serve.term, serving.states);
      const Takeover from{.proved = serving.serve.proved, .holder = serving.former ? serving.former->node : ""};
      coordinator_.begin_tenure(*archive_, {serving.serve.term, serving.taken, from}, std::move(found));
      tell_takeover(serving, jobs);
    }
    since_.reset();
    if (handlers_.attend) handlers_.attend(term, own_, true);
  }

  void tell_takeover(const EtcdSeat::Serving& serving, std::size_t jobs) {
    TakenOver told{.term = serving.serve.term.value(), .proved = serving.serve.proved, .jobs = jobs};
    if (serving.former) {
      told.from = fmt::format("{} ({})", serving.former->host, joined(texts_of(serving.former->endpoints)));
    }
    if (since_) told.after = lasting_now() - *since_;
    if (handlers_.took_over) handlers_.took_over(told);
  }

  void unusable(const etcd::ReadState& state, const Error& why) {
    if (handlers_.unusable) handlers_.unusable(etcd::unusable_state(scope_of(settings_).head(state.run_id), why));
  }

  void yield(const candidacy::Yield& yield) {
    archive_->end();
    active_ = {yield.term.value(), texts_of(yield.endpoints)};
    coordinator_.end_tenure(active_);
    log(LogLevel::warning, yield.endpoints.empty()
                               ? std::string{"the seat is given up"}
                               : fmt::format("another has the seat: {}, term {}", joined(active_.endpoints), active_.term));
  }

  void attend(const candidacy::Attend& attend) {
    active_ = {attend.term.value(), texts_of(attend.endpoints)};
    since_.reset();
    coordinator_.stand_by(active_);
    if (handlers_.attend) handlers_.attend(attend.term.value(), attend.endpoints, false);
  }

  void tell_trouble(const std::string& trouble, const std::optional<etcd::Failure>& failure) {
    trouble_ = trouble;
    int exit_code = 0;
    std::string text = trouble;
    if (failure && failure->cause == etcd::Cause::forbidden) {
      exit_code = exit_code::mismatch;
      text = fmt::format("etcd refuses us: {} (user '{}', prefix {})", trouble, settings_.etcd.user, settings_.prefix);
    } else if (failure && failure->cause == etcd::Cause::full) {
      text = fmt::format("etcd's database is full (alarm NOSPACE): {}", trouble);
    }
    if (handlers_.trouble) handlers_.trouble(text, exit_code);
    stepped();
  }

  /// Who answers at all of etcd's addresses, and at none as etcd does, is another service, and will not become one.
  void look_for_foreigners() {
    if (seat_->answered_at() || !seat_->none_is_etcd()) return foreign_since_.reset();
    const TimePoint now = lasting_now();
    if (!foreign_since_) foreign_since_ = now;
    if (now - *foreign_since_ < foreign_limit || !handlers_.trouble || std::exchange(told_foreign_, true)) return;
    handlers_.trouble(trouble_, exit_code::unreachable);
  }

  void stepped() {
    if (!seat_) return;
    look_for_foreigners();
    const Candidacy& machine = seat_->machine();
    coordinator_.set_seated(machine.seated());
    if (machine.role() == Candidacy::Role::seeking && !since_) since_ = lasting_now();
    std::string line;
    if (machine.role() == Candidacy::Role::holding) {
      line = fmt::format("active, term {}", machine.term().value());
    } else if (machine.role() == Candidacy::Role::standing_by) {
      line = fmt::format("standby; the active one is {}", joined(active_.endpoints));
    } else {
      line = "standby; none is active";
    }
    if (!trouble_.empty()) line += fmt::format("; etcd does not answer ({}): jobs run on, nothing can be decided", trouble_);
    if (line == told_line_) return;
    told_line_ = line;
    if (handlers_.stands) handlers_.stands(line);
  }

  [[nodiscard]] Coordinator::Role role() const {
    Coordinator::Role role{.role = serves() ? "active" : "standby",
                           .term = active_.term,
                           .endpoints = active_.endpoints,
                           .error = trouble_};
    const auto answered = seat_ ? seat_->answered_at() : std::nullopt;
    if (answered) role.last_confirmed = lasting_now() - *answered;
    return role;
  }

  boost::asio::io_context& loop_;
  Coordinator& coordinator_;
  CandidateSettings settings_;
  Handlers handlers_;
  LogSink log_;
  std::unique_ptr<EtcdArchive> archive_;
  std::unique_ptr<EtcdSeat> seat_;
  std::vector<Endpoint> own_;
  Elsewhere active_;
  std::string trouble_;
  std::string told_line_;
  std::optional<TimePoint> since_;
  std::optional<TimePoint> foreign_since_;
  bool told_foreign_ = false;
  bool closed_ = false;
};

SeatCandidate::SeatCandidate(boost::asio::io_context& loop, Coordinator& coordinator, CandidateSettings settings,
                     Handlers handlers, LogSink log)
    : impl_{std::make_shared<Impl>(loop, coordinator, std::move(settings), std::move(handlers), std::move(log))} {}
SeatCandidate::~SeatCandidate() { impl_->close(); }
void SeatCandidate::start() { impl_->start(); }
void SeatCandidate::attends(std::int64_t term) { impl_->tell(candidacy::Attached{Term{term}}); }
void SeatCandidate::doubts() { impl_->tell(candidacy::Doubted{}); }
void SeatCandidate::saw_end(std::int64_t term) { impl_->saw_end(term); }
void SeatCandidate::set_group_rank(GroupRank rank) { impl_->set_group_rank(rank); }
void SeatCandidate::leave(std::function<void()> done) { impl_->leave(std::move(done)); }
bool SeatCandidate::serves() const { return impl_->serves(); }
std::string SeatCandidate::local_address() const { return impl_->local_address(); }

}  // namespace torchup

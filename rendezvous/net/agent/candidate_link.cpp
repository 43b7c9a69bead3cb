#include "rendezvous/net/agent/candidate_link.hpp"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/core/membership/ended_jobs.hpp"
#include "rendezvous/net/agent/agent_client.hpp"
#include "rendezvous/net/agent/job_host.hpp"
#include "rendezvous/net/coordinator/seat_candidate.hpp"
#include "rendezvous/net/io/node_identity.hpp"

namespace torchup {

namespace asio = boost::asio;

namespace {

/// Without a place nobody has a rank yet, and all would campaign at once.
constexpr std::int64_t first_wait_ms_max = 500;
/// For the last words to etcd.
constexpr Duration vacate_limit = std::chrono::seconds{2};

std::string known_as(const AttachEtcd& etcd) {
  std::string all;
  for (const Endpoint& each : etcd.etcd.members) all += (all.empty() ? "" : ",") + to_string(each);
  return "rendezvous in etcd at " + all;
}

class CandidateLink final : public AgentLink {
 public:
  CandidateLink(asio::io_context& loop, AttachSettings settings, Handler handler)
      : state_{std::make_shared<State>(loop, std::move(settings), std::move(handler))} {
    state_->start();
  }
  ~CandidateLink() override { state_->let_go(); }

  void send(AgentMessage message) override { state_->send(std::move(message)); }
  void report_progress(const ProgressReport& report) override { state_->link->report_progress(report); }
  void report_node(const NodeReport& report) override { state_->link->report_node(report); }
  [[nodiscard]] bool reaches() const override { return state_->link->reaches(); }
  [[nodiscard]] std::optional<ClockOffset::Estimate> clock() const override { return state_->link->clock(); }
  [[nodiscard]] std::optional<Duration> day_ahead() const override { return state_->link->day_ahead(); }
  bool set_cut(bool cut) override { return state_->link->set_cut(cut); }
  void finish(Duration linger, std::function<void()> done) override { state_->finish(linger, std::move(done)); }

 private:
  struct State final : std::enable_shared_from_this<State> {
    State(asio::io_context& the_loop, AttachSettings the_settings, Handler the_handler)
        : loop{the_loop}, settings{std::move(the_settings)}, handler{std::move(the_handler)}, host{loop, settings} {}

    void start() {
      const auto weak = weak_from_this();
      AgentClientSettings client{.run_id = settings.run_id,
                                 .known_as = known_as(*settings.etcd),
                                 .token = settings.token,
                                 .join_timeout = settings.join_timeout};
      client.on_attends = [weak](std::int64_t term) {
        if (const auto self = weak.lock(); self && self->candidate) self->candidate->attends(term);
      };
      client.on_doubts = [weak] {
        if (const auto self = weak.lock(); self && self->candidate) self->candidate->doubts();
      };
      client.on_saw_end = [weak](std::int64_t term) {
        if (const auto self = weak.lock(); self && self->candidate) self->candidate->saw_end(term);
      };
      link = connect_directed(loop, std::move(client), [weak](LinkEvent event) {
        if (const auto self = weak.lock()) self->heard(std::move(event));
      });
      CandidateSettings wanted{.etcd = settings.etcd->etcd,
                               .prefix = settings.etcd->prefix,
                               .job = settings.run_id,
                               .candidacy = {.lease = settings.etcd->lease},
                               .agent = agent_name(completed(Join{}, 0).node)};
      std::random_device chance;
      wanted.candidacy.campaign_wait =
          std::chrono::milliseconds{std::uniform_int_distribution<std::int64_t>{0, first_wait_ms_max}(chance)};
      candidate.emplace(loop, host.coordinator, std::move(wanted), handlers(), settings.log);
      candidate->start();
    }

    SeatCandidate::Handlers handlers() {
      const auto weak = weak_from_this();
      SeatCandidate::Handlers made;
      made.open = [weak]() -> Result<std::vector<Endpoint>> {
        const auto self = weak.lock();
        if (!self) return fail(errc::refused, "this process ends");
        return self->open();
      };
      made.attend = [weak](std::int64_t term, const std::vector<Endpoint>& endpoints, bool ours) {
        const auto self = weak.lock();
        if (!self) return;
        if (ours && !std::exchange(self->hosted, true) && self->settings.hosting) {
          self->settings.hosting(self->host.onlookers);
        }
        self->link->direct(term, endpoints);
      };
      made.ended = [weak](const Verdict& verdict) {
        if (const auto self = weak.lock()) self->link->ended(verdict);
      };
      made.trouble = [weak](const std::string& trouble, int exit_code) {
        const auto self = weak.lock();
        if (self && !trouble.empty()) self->link->undirected(trouble, exit_code);
      };
      made.unusable = [weak](const Error& error) {
        if (const auto self = weak.lock()) self->unusable(error);
      };
      made.took_over = [weak](const SeatCandidate::TakenOver& told) {
        const auto self = weak.lock();
        if (self && self->settings.etcd->took_over) self->settings.etcd->took_over(told);
      };
      made.stands = [weak](const std::string& line) {
        const auto self = weak.lock();
        if (self && self->settings.log) self->settings.log(LogLine{LogLevel::info, "seat", "coordinator here: " + line});
      };
      return made;
    }

    /// At the address by which etcd is reached, unless people say how others reach us.
    Result<std::vector<Endpoint>> open() {
      std::string address = candidate->local_address();
      if (!host.port) {
        const bool demanded = !settings.local_addr.empty();
        const auto opened = host.listen(loop, demanded ? "::" : address, settings.etcd->port, settings);
        if (!opened) {
          host.port.reset();
          return Error{opened.error().code, "the coordinator's port cannot be opened: " + opened.error().message()};
        }
        own_port = *opened;
      }
      return std::vector{Endpoint{settings.local_addr.empty() ? address : settings.local_addr, own_port}};
    }

    void unusable(const Error& error) {
      const bool ports = error.code == boost::system::errc::address_in_use;
      link->undirected(error.message(), ports ? exit_code::unreachable : exit_code::unfit);
    }

    void send(AgentMessage message) {
      if (auto* join = std::get_if<Join>(&message); join && !settings.local_addr.empty()) {
        join->addresses = {settings.local_addr};
        join->address_demanded = true;
      }
      link->send(std::move(message));
    }

    void heard(LinkEvent event) {
      if (const auto* message = std::get_if<CoordinatorMessage>(&event)) {
        if (const auto* placed = std::get_if<Placed>(message)) candidate->set_group_rank(placed->placement.group_rank);
      }
      const Handler current = handler;  // which may destroy the link
      if (current) current(std::move(event));
    }

    void finish(Duration linger, std::function<void()> done) {
      const bool stays = candidate->serves() && host.coordinator.verdict(settings.run_id).has_value();
      link->finish(linger, [self = shared_from_this(), linger, stays, done = std::move(done)]() mutable {
        if (!stays) return self->leave(std::move(done));
        self->host.coordinator.when_others_left(
            self->settings.run_id, linger, [self, done = std::move(done)]() mutable { self->leave(std::move(done)); });
      });
    }

    /// Whoever ends waits no longer for etcd than that.
    void leave(std::function<void()> done) {
      finished = std::move(done);
      goodbye.emplace(loop, vacate_limit);
      const auto end = [self = shared_from_this()] {
        const auto finished = std::exchange(self->finished, {});
        if (!finished) return;
        self->goodbye.reset();
        finished();
      };
      goodbye->async_wait([end](const boost::system::error_code& error) {
        if (!error) end();
      });
      candidate->leave(end);
    }

    void let_go() {
      handler = {};
      finished = {};
      goodbye.reset();
      candidate.reset();
      link.reset();
    }

    asio::io_context& loop;
    AttachSettings settings;
    Handler handler;
    JobHost host;
    Port own_port{0};
    bool hosted = false;  ///< it was told that this process has a coordinator
    std::unique_ptr<DirectedLink> link;
    std::optional<SeatCandidate> candidate;
    std::optional<asio::steady_timer> goodbye;
    std::function<void()> finished;
  };

  std::shared_ptr<State> state_;
};

}  // namespace

std::unique_ptr<AgentLink> candidate_link(asio::io_context& loop, AttachSettings settings, AgentLink::Handler handler) {
  return std::make_unique<CandidateLink>(loop, std::move(settings), std::move(handler));
}

}  // namespace torchup

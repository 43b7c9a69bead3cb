#include "rendezvous/net/agent/standby.hpp"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <random>
#include <utility>
#include <vector>

#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/net/agent/agent_client.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"

namespace torchup {
namespace {

/// Two daemons that see a vacant seat do not ask for it in the same instant.
constexpr std::int64_t campaign_wait_ms_max = 100;

}  // namespace

class Standby::Impl : public std::enable_shared_from_this<Standby::Impl> {
 public:
  Impl(boost::asio::io_context& loop, Coordinator& coordinator, StandbySettings settings)
      : loop_{loop}, coordinator_{coordinator}, settings_{std::move(settings)} {}

  void start() {
    std::random_device chance;
    std::uniform_int_distribution<std::int64_t> wait{0, campaign_wait_ms_max};
    CandidateSettings wanted{.etcd = settings_.etcd,
                             .prefix = settings_.prefix,
                             .candidacy = {.campaign_wait = std::chrono::milliseconds{wait(chance)}}};
    candidate_ = std::make_unique<SeatCandidate>(loop_, coordinator_, std::move(wanted), handlers(), settings_.log);
    candidate_->start();
  }

  void leave(std::function<void()> done) { candidate_->leave(std::move(done)); }

  void let_go() {
    candidate_.reset();
    attending_.reset();
  }

 private:
  SeatCandidate::Handlers handlers() {
    const auto weak = weak_from_this();
    SeatCandidate::Handlers made;
    made.open = [weak]() -> Result<std::vector<Endpoint>> {
      const auto self = weak.lock();
      if (!self) return fail(errc::refused, "this process ends");
      return std::vector{self->advertised()};
    };
    made.attend = [weak](std::int64_t term, const std::vector<Endpoint>& endpoints, bool ours) {
      if (const auto self = weak.lock()) self->attend(term, endpoints, ours);
    };
    made.trouble = [weak](const std::string& trouble, int exit_code) {
      const auto self = weak.lock();
      if (self && !trouble.empty() && exit_code != 0) self->log(LogLevel::error, trouble);
    };
    made.unusable = [weak](const Error& error) {
      const auto self = weak.lock();
      if (self && self->settings_.unusable) self->settings_.unusable(error);
    };
    made.took_over = [weak](const SeatCandidate::TakenOver& told) {
      const auto self = weak.lock();
      if (!self || told.jobs == 0) return;
      self->log(LogLevel::info, fmt::format("{} jobs taken over{}{}", told.jobs,
                                            told.from.empty() ? "" : " from " + told.from,
                                            told.proved ? ", which has ended" : ""));
    };
    made.stands = settings_.stands;
    return made;
  }

  [[nodiscard]] Endpoint advertised() const {
    Endpoint own = settings_.advertised.value_or(Endpoint{});
    const bool here = settings_.bind == "localhost" || is_loopback(settings_.bind);
    if (own.host.empty() && here) own.host = settings_.bind == "localhost" ? "127.0.0.1" : settings_.bind;
    if (own.host.empty()) own.host = candidate_->local_address();
    if (own.port == Port{0}) own.port = settings_.port();
    return own;
  }

  void attend(std::int64_t term, const std::vector<Endpoint>& endpoints, bool ours) {
    if (ours) return attending_.reset();
    const auto weak = weak_from_this();
    if (!attending_) {
      AgentClientSettings client{.run_id = RunId{""},
                                 .known_as = "the active torchupd",
                                 .token = settings_.token,
                                 .join_timeout = std::chrono::hours{24 * 365}};
      client.on_attends = [weak](std::int64_t met) {
        if (const auto self = weak.lock()) self->candidate_->attends(met);
      };
      client.on_doubts = [weak] {
        if (const auto self = weak.lock()) self->candidate_->doubts();
      };
      client.on_saw_end = [weak](std::int64_t ended) {
        if (const auto self = weak.lock()) self->candidate_->saw_end(ended);
      };
      attending_ = connect_directed(loop_, std::move(client), [weak](const LinkEvent& event) {
        const auto self = weak.lock();
        const auto* lost = std::get_if<LinkLost>(&event);
        if (self && lost) self->log(LogLevel::warning, lost->reason);
      });
    }
    attending_->direct(term, endpoints);
  }

  void log(LogLevel level, std::string text) const {
    if (settings_.log) settings_.log(LogLine{level, "seat", std::move(text)});
  }

  boost::asio::io_context& loop_;
  Coordinator& coordinator_;
  StandbySettings settings_;
  std::unique_ptr<SeatCandidate> candidate_;
  std::unique_ptr<DirectedLink> attending_;  ///< to the active one, while that is another
};

Standby::Standby(boost::asio::io_context& loop, Coordinator& coordinator, StandbySettings settings)
    : impl_{std::make_shared<Impl>(loop, coordinator, std::move(settings))} {}
Standby::~Standby() { impl_->let_go(); }
void Standby::start() { impl_->start(); }
void Standby::leave(std::function<void()> done) { impl_->leave(std::move(done)); }

}  // namespace torchup

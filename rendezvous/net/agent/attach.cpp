#include "rendezvous/net/agent/attach.hpp"

#include <sys/socket.h>

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/core/text/wording.hpp"
#include "rendezvous/net/agent/agent_client.hpp"
#include "rendezvous/net/agent/candidate_link.hpp"
#include "rendezvous/net/agent/job_host.hpp"
#include "rendezvous/net/agent/torchrun_link.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/daemon/common_port.hpp"
#include "rendezvous/net/daemon/coordinator_ops.hpp"
#include "rendezvous/net/io/lookup.hpp"
#include "rendezvous/net/io/node_identity.hpp"

namespace torchup {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

/// How long torchrun's agents may need the store after the verdict.
constexpr Duration torchrun_linger = std::chrono::seconds{10};

/// How long a former agent of this machine, which has been told to end, may still hold the port.
constexpr Duration port_limit = std::chrono::seconds{5};
constexpr Duration port_pace = std::chrono::milliseconds{100};

/// A name server that has not answered by then is told of. Who knows without it that it hosts waits no longer.
constexpr Duration name_limit = std::chrono::seconds{3};

/// Decides between hosting and connecting, then passes everything on to the link that came of it.
class Attachment final : public std::enable_shared_from_this<Attachment> {
 public:
  Attachment(asio::io_context& loop, AttachSettings settings, AgentLink::Handler handler)
      : loop_{loop}, settings_{std::move(settings)}, handler_{std::move(handler)} {}

  void start() {
    since_ = lasting_now();
    if (settings_.connection >= 0) return connect();
    if (settings_.endpoints.size() > 1) return connect();  // daemons, whichever is active
    if (!settings_.endpoint) return host_alone();
    if (settings_.is_host.has_value() && !*settings_.is_host) return connect();
    const std::string& name = settings_.endpoint->host;
    if (settings_.is_host.has_value() || name == "localhost" || name == own_host_name()) named_us_ = true;
    look_up();
  }

  void send(AgentMessage message) {
    if (auto* join = std::get_if<Join>(&message); join && !settings_.local_addr.empty()) {
      join->addresses = {settings_.local_addr};
      join->address_demanded = true;
    } else if (join && !settings_.endpoint) {
      join->addresses = {"127.0.0.1"};  // nobody else comes: the interfaces need not be asked for
    }
    if (const auto* join = std::get_if<Join>(&message)) last_join_ = *join;
    if (link_) return link_->send(std::move(message));
    // A user who gives up while the endpoint's name is looked up need not wait for it.
    if (auto* leave = std::get_if<Leave>(&message)) {
      undecided_ = false;
      lookup_.reset();
      name_timer_.reset();
      return tell(CoordinatorMessage{End{verdict_of(*leave)}});
    }
    kept_.push_back(std::move(message));
  }

  void finish(Duration linger, std::function<void()> done) {
    if (link_ && host_ && host_->coordinator.had_torchrun(settings_.run_id)) {
      return link_->finish(linger, [self = shared_from_this(), done = std::move(done)]() mutable {
        self->outlast_torchrun(std::chrono::steady_clock::now() + torchrun_linger, std::move(done));
      });
    }
    if (link_) return link_->finish(linger, std::move(done));
    asio::post(loop_, std::move(done));
  }

  [[nodiscard]] bool is_foreign() const { return is_foreign_; }
  void report_progress(const ProgressReport& report) {
    if (link_) link_->report_progress(report);
  }
  void report_node(const NodeReport& report) {
    if (link_) link_->report_node(report);
  }
  [[nodiscard]] bool reaches() const { return link_ && link_->reaches(); }
  [[nodiscard]] std::optional<ClockOffset::Estimate> clock() const { return link_ ? link_->clock() : std::nullopt; }
  [[nodiscard]] std::optional<Duration> day_ahead() const { return link_ ? link_->day_ahead() : std::nullopt; }
  bool set_cut(bool cut) {
    if (!host_ || !host_->port) return link_ && link_->set_cut(cut);
    host_->port->set_agents_cut(cut);
    return true;
  }

  void let_go() {
    undecided_ = false;
    handler_ = {};
    lookup_.reset();
    name_timer_.reset();
    port_timer_.reset();
    foreign_.reset();
    link_.reset();
    host_.reset();
  }

 private:
  /// Torchrun's agents close the rendezvous when they end, and complain where it is gone.
  void outlast_torchrun(TimePoint until, std::function<void()> done) {
    if (!host_ || host_->port->server().status().connections == 0 || std::chrono::steady_clock::now() >= until)
      return done();
    linger_.emplace(loop_, std::chrono::milliseconds{50});
    linger_->async_wait(
        [self = shared_from_this(), until, done = std::move(done)](const boost::system::error_code& error) mutable {
          if (!error) self->outlast_torchrun(until, std::move(done));
        });
  }

  void host_alone() {
    host_ = std::make_unique<JobHost>(loop_, settings_);
    if (settings_.hosting) settings_.hosting(host_->onlookers);
    use(host_->coordinator.connect(settings_.run_id, handler_));
  }

  void look_up() {
    lookup_ = std::make_unique<Lookup>(loop_, settings_.endpoint->host, settings_.endpoint->port,
                                       [self = shared_from_this()](Result<Lookup::Addresses> addresses) {
                                         if (self->undecided_) self->decide(std::move(addresses));
                                       });
    name_timer_.emplace(loop_, std::min<Duration>(name_limit, settings_.join_timeout));
    name_timer_->async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      if (!error) self->name_is_late();
    });
  }

  /// A name server that does not answer is told of long before the resolver gives up.
  void name_is_late() {
    if (!undecided_) return;
    const Error late{make_error_code(boost::system::errc::timed_out), "the look-up of " + settings_.endpoint->host};
    if (named_us_) return decide(late);
    tell(
        CoordinatorMessage{Waiting{fmt::format("rendezvous endpoint {}: the name {} is still being looked up: the name "
                                               "server does not answer",
                                               to_string(*settings_.endpoint), settings_.endpoint->host),
                                   true}});
    name_timer_->expires_after(since_ + settings_.join_timeout - lasting_now());
    name_timer_->async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      if (error || !self->undecided_) return;
      self->undecided_ = false;
      self->lookup_.reset();
      self->tell(
          LinkLost{exit_code::unreachable,
                   fmt::format("the rendezvous endpoint {} was not reached within {}: the name {} was not found, "
                               "for the name server does not answer",
                               to_string(*self->settings_.endpoint), seconds(self->settings_.join_timeout),
                               self->settings_.endpoint->host)});
    });
  }

  void decide(Result<Lookup::Addresses> addresses) {
    lookup_.reset();
    name_timer_.reset();
    std::vector<asio::ip::address> named;
    if (addresses) {
      for (const auto& endpoint : *addresses) named.push_back(endpoint.address());
    }
    const bool own =
        std::any_of(named.begin(), named.end(), [](const auto& a) { return is_of_this_machine(a.to_string()); });
    if (!named_us_ && !own) return connect();  // which looks the name up again until it is found

    // One address that others can use is bound alone. A host name that means 127.0.1.1 here means another one to them.
    std::sort(named.begin(), named.end());
    named.erase(std::unique(named.begin(), named.end()), named.end());
    const bool all_loopback = std::all_of(named.begin(), named.end(), [](const auto& a) { return a.is_loopback(); });
    std::string bind;
    if (settings_.endpoint->host == "localhost" || (all_loopback && is_literal(settings_.endpoint->host))) {
      bind = named.size() == 1 ? named.front().to_string() : "localhost";
    } else if (named.size() == 1 && !all_loopback && own) {
      bind = named.front().to_string();
    }
    bind_ = std::move(bind);
    exposed_ = !all_loopback;
    host_until(std::chrono::steady_clock::now() + port_limit);
  }

  void host_until(TimePoint limit) {
    const auto hosted = host();
    if (hosted) return;
    const bool taken = hosted.error().code == boost::system::errc::address_in_use;
    if (taken && !settings_.is_host.has_value()) {  // a peer on this machine was faster
      may_host_ = true;
      return connect();
    }
    if (!taken || std::chrono::steady_clock::now() >= limit) {
      const Error why = taken && !settings_.further_ports.empty() ? all_taken(hosted.error()) : hosted.error();
      return tell(LinkLost{67, "the rendezvous cannot be hosted here: " + why.message()});
    }
    if (!port_timer_) {
      port_timer_.emplace(loop_);
      tell(CoordinatorMessage{Waiting{"rendezvous endpoint " + to_string(*settings_.endpoint) +
                                          ": another process of this machine has its port; trying for 5 s",
                                      true}});
    }
    port_timer_->expires_after(port_pace);
    port_timer_->async_wait([self = shared_from_this(), limit](const boost::system::error_code& error) {
      if (!error && self->undecided_) self->host_until(limit);
    });
  }

  Result<> host() {
    host_ = std::make_unique<JobHost>(loop_, settings_);
    auto port = host_->listen(loop_, bind_, settings_.endpoint->port, settings_);
    for (const Port further : settings_.further_ports) {
      if (port || port.error().code != boost::system::errc::address_in_use) break;
      port = host_->listen(loop_, bind_, further, settings_);
    }
    if (!port) {
      host_.reset();
      return port.error();
    }
    if (settings_.log) {
      settings_.log("the rendezvous of job " + settings_.run_id.value() + " is hosted here, on " +
                    host_->port->server().address() +
                    (settings_.token.empty() && exposed_ ? "; without a token everybody who reaches it can join" : ""));
    }
    if (settings_.hosting) settings_.hosting(host_->onlookers);
    use(host_->coordinator.connect(settings_.run_id, settings_.workers_share_port ? sharing(*port) : handler_));
    return {};
  }

  [[nodiscard]] Error all_taken(const Error& last) const {
    std::string ports = with_listener(settings_.endpoint->port);
    for (const Port further : settings_.further_ports) ports += ", " + with_listener(further);
    return {last.code, fmt::format("each of the ports {} is taken; --rdzv-endpoint=:PORT names another", ports)};
  }

  [[nodiscard]] std::string with_listener(Port port) const {
    const std::string who = settings_.listener_on ? settings_.listener_on(port) : "";
    return who.empty() ? fmt::format("{}", port.value()) : fmt::format("{} by {}", port.value(), who);
  }

  /// Who had the port was about to end: a former agent of this machine, perhaps.
  void host_after_all() {
    if (!handler_ || !may_host_ || host_) return;
    if (last_join_) kept_ = {*last_join_};
    if (!host()) kept_.clear();
  }

  /// Keys of the round before go; those of torchrun agents that meet here stand under the run id.
  AgentLink::Handler sharing(Port port) {
    return [this, port](LinkEvent event) {
      const auto* message = std::get_if<CoordinatorMessage>(&event);
      const auto* host = message ? std::get_if<HostStore>(message) : nullptr;
      if (!host) return handler_(std::move(event));
      const std::string kept = "/" + settings_.run_id.value() + "/";
      host_->port->server().store().erase_if([&](std::string_view key) { return !key.starts_with(kept); });
      link_->send(StoreReady{host->round, port});
    };
  }

  static bool is_literal(const std::string& host) {
    boost::system::error_code error;
    asio::ip::make_address(host, error);
    return !error;
  }

  void connect() {
    use(connect_agent(loop_,
                      {.endpoint = *settings_.endpoint,
                       .connection = settings_.connection,
                       .run_id = settings_.run_id,
                       .endpoints = settings_.endpoints.size() > 1 ? settings_.endpoints : std::vector<Endpoint>{},
                       .further_ports = settings_.further_ports,
                       .token = settings_.token,
                       .join_timeout = settings_.join_timeout,
                       .since = since_,
                       .on_foreign =
                           [weak = weak_from_this()] {
                             if (const auto self = weak.lock()) self->meet_foreigner();
                           },
                       .on_refused =
                           [weak = weak_from_this()] {
                             if (const auto self = weak.lock()) self->host_after_all();
                           }},
                      handler_));
  }

  /// Who answers there is no coordinator of ours. A store of PyTorch's is where torchrun's agents meet; but it proves
  /// no token.
  void meet_foreigner() {
    if (foreign_ || !settings_.token.empty()) return;
    foreign_ = connect_torchrun(
        loop_,
        {.endpoint = *settings_.endpoint,
         .run_id = settings_.run_id,
         .local_addr = settings_.local_addr,
         .is_static = settings_.workers_share_port},
        [weak = weak_from_this()](bool is_store) {
          if (const auto self = weak.lock()) self->met_foreigner(is_store);
        },
        handler_);
  }
  void met_foreigner(bool is_store) {
    if (!is_store) return foreign_.reset();  // the client goes on trying, and says so in the end
    if (host_) return foreign_.reset();      // it is ours
    if (!handler_) return;
    if (settings_.store_proxy) {
      foreign_.reset();
      return tell(LinkLost{exit_code::mismatch,
                           "torchrun's agents meet at the rendezvous endpoint " + to_string(*settings_.endpoint) +
                               ", and they know no store proxy: start this job without --store-proxy"});
    }
    link_ = std::move(foreign_);
    is_foreign_ = true;
    if (last_join_) link_->send(*last_join_);
  }

  void use(std::unique_ptr<AgentLink> link) {
    undecided_ = false;
    link_ = std::move(link);
    for (AgentMessage& message : std::exchange(kept_, {})) link_->send(std::move(message));
  }

  void tell(LinkEvent event) {
    asio::post(loop_, [self = shared_from_this(), event = std::move(event)]() mutable {
      const AgentLink::Handler handler = self->handler_;
      if (handler) handler(std::move(event));
    });
  }

  asio::io_context& loop_;
  AttachSettings settings_;
  AgentLink::Handler handler_;
  std::optional<asio::steady_timer> linger_;
  TimePoint since_{};                             ///< the join timeout counts from here
  std::optional<asio::steady_timer> name_timer_;  ///< while the endpoint's name is looked up
  std::optional<asio::steady_timer> port_timer_;  ///< while somebody else holds the port
  bool named_us_ = false;
  bool may_host_ = false;  ///< the port was taken, else we would host
  std::string bind_;
  bool exposed_ = false;
  bool undecided_ = true;
  bool is_foreign_ = false;  ///< link_ is to torchrun's agents
  std::vector<AgentMessage> kept_;
  std::unique_ptr<Lookup> lookup_;
  std::unique_ptr<JobHost> host_;
  std::unique_ptr<AgentLink> link_;
  std::unique_ptr<AgentLink> foreign_;  ///< being tried while link_ tries on
  std::optional<Join> last_join_;
};

class AttachedLink final : public AgentLink {
 public:
  explicit AttachedLink(std::shared_ptr<Attachment> attachment) : attachment_{std::move(attachment)} {
    attachment_->start();
  }
  ~AttachedLink() override { attachment_->let_go(); }
  [[nodiscard]] bool is_foreign() const override { return attachment_->is_foreign(); }
  void send(AgentMessage message) override { attachment_->send(std::move(message)); }
  void report_progress(const ProgressReport& report) override { attachment_->report_progress(report); }
  void report_node(const NodeReport& report) override { attachment_->report_node(report); }
  [[nodiscard]] bool reaches() const override { return attachment_->reaches(); }
  [[nodiscard]] std::optional<ClockOffset::Estimate> clock() const override { return attachment_->clock(); }
  bool set_cut(bool cut) override { return attachment_->set_cut(cut); }
  [[nodiscard]] std::optional<Duration> day_ahead() const override { return attachment_->day_ahead(); }
  void finish(Duration linger, std::function<void()> done) override { attachment_->finish(linger, std::move(done)); }

 private:
  std::shared_ptr<Attachment> attachment_;
};

}  // namespace

std::unique_ptr<AgentLink> attach(asio::io_context& loop, AttachSettings settings, AgentLink::Handler handler) {
  if (settings.etcd) return candidate_link(loop, std::move(settings), std::move(handler));
  return std::make_unique<AttachedLink>(std::make_shared<Attachment>(loop, std::move(settings), std::move(handler)));
}

}  // namespace torchup

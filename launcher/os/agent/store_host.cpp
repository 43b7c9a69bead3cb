#include "launcher/os/agent/store_host.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rendezvous/core/text/source_list.hpp"
#include "rendezvous/net/daemon/admission.hpp"
#include "rendezvous/net/io/token.hpp"

namespace torchup {
namespace {

/// A name is not looked up on the loop: every address then.
std::string numeric_or_every(const std::string& address) {
  boost::system::error_code error;
  asio::ip::make_address(address, error);
  return error ? "" : address;
}

}  // namespace

StoreHost::StoreHost(asio::io_context& loop, const LaunchConfig& config, Said said, Recorder record)
    : loop_{loop}, config_{config}, said_{std::move(said)}, record_{std::move(record)} {}

/// What the store refuses is told by the loop: the store has a thread of its own.
LogSink StoreHost::log() {
  return [this](LogLine line) {
    asio::post(loop_, [this, line = std::move(line)]() mutable {
      line.text.insert(0, "worker store: ");
      said_(std::move(line));
    });
  };
}

void StoreHost::refused(const std::string& address) {
  if (refusals_.tells(address, std::chrono::steady_clock::now())) record_(event::StoreRefused{address});
}

/// The address by which others come, and nothing at it that speaks TCPStore.
Result<StoreHost::Opened> StoreHost::open_behind_gate() {
  Opened opened;
  const Nonce chance = fresh_nonce();
  std::ranges::copy(chance, opened.key.begin());
  StoreGateOptions gate{.bind = numeric_or_every(config_.rendezvous.local_addr),
                        .key = opened.key,
                        .token = config_.rendezvous.token,
                        .log = log()};
  WorkerStore::Options options{.bind = "127.0.0.1", .log = log()};
  options.gate = gate;
  auto store = WorkerStore::open(options);
  if (!store && store.error().code == std::errc::address_not_available) {
    record_(
        event::Notice{fmt::format("--local-addr {} is no address of this machine: links to the workers' store are "
                                  "taken on all",
                                  gate.bind)});
    options.gate->bind.clear();
    store = WorkerStore::open(options);
  }
  if (!store) return store.error();
  store_.emplace(*std::move(store));
  opened.port = store_->gate_port();
  return opened;
}

Result<Port> StoreHost::reach(const Placement& placement) {
  if (!by_proxy()) return Port{0};
  if (placement.group_rank == GroupRank{0}) {
    if (!store_) return fail(errc::refused, "there is no store of this round here");
    return store_->port();
  }
  if (proxy_ && proxied_ == placement.round) return proxy_->port();
  proxy_.reset();
  auto proxy = WorkerProxy::open({.store = Endpoint{placement.master_addr, placement.master_port},
                                  .key = placement.store_key,
                                  .token = config_.rendezvous.token,
                                  .log = log()});
  if (!proxy) return proxy.error();
  proxy_.emplace(*std::move(proxy));
  proxied_ = placement.round;
  return proxy_->port();
}

Result<StoreHost::Opened> StoreHost::open(const std::vector<std::string>& sources) {
  store_.reset();
  const RendezvousConfig& meeting = config_.rendezvous;
  if (by_proxy()) return open_behind_gate();
  if (!config_.share_store) {
    const auto port = free_port();
    if (!port) return port.error();
    return Opened{*port};
  }
  const bool fixed = meeting.backend == Backend::static_;
  // With a static rendezvous of several nodes the workers' store is the one at the endpoint, beside the coordinator.
  if (fixed && !config_.one_node()) return Opened{meeting.endpoint->port};
  const bool loopback = config_.one_node() && (!fixed || meeting.endpoint->host == "127.0.0.1");
  const bool published = !fixed && !meeting.local_addr.empty();
  const std::string bind = published ? numeric_or_every(meeting.local_addr) : loopback ? "127.0.0.1" : "";
  const Port port = fixed ? meeting.endpoint->port : Port{0};
  SourceList members;
  for (const std::string& source : sources) {
    if (const auto read = SourceList::read(source)) members.add(*read);
  }
  const Admission admission{.token = !meeting.token.empty(), .allowed = meeting.allowed};
  WorkerStore::Options options{.bind = bind, .port = port, .admits = admission.of_store_clients(members), .log = log()};
  options.refused = [this](const std::string& address) { asio::post(loop_, [this, address] { refused(address); }); };
  auto opened = WorkerStore::open(options);
  if (!opened && opened.error().code == std::errc::address_not_available) {
    // Behind address translation, what others use is not ours.
    record_(event::Notice{
        fmt::format("--local-addr {} is no address of this machine: the workers' store listens on all", bind)});
    options.bind.clear();
    opened = WorkerStore::open(options);
  }
  if (!opened) return opened.error();
  store_.emplace(*std::move(opened));
  return Opened{store_->port()};
}

}  // namespace torchup

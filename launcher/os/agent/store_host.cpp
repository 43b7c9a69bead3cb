#include "launcher/os/agent/store_host.hpp"

#include <fmt/format.h>

#include <utility>

#include "rendezvous/core/text/source_list.hpp"
#include "rendezvous/net/daemon/admission.hpp"

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

Result<Port> StoreHost::open(const std::vector<std::string>& sources) {
  store_.reset();
  const RendezvousConfig& meeting = config_.rendezvous;
  if (!config_.share_store) return free_port();
  const bool fixed = meeting.backend == Backend::static_;
  // With a static rendezvous of several nodes the workers' store is the one at the endpoint, beside the coordinator.
  if (fixed && !config_.one_node()) return meeting.endpoint->port;
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
  return store_->port();
}

}  // namespace torchup

#include "launcher/os/agent/socket_interface.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <utility>

#include "rendezvous/net/io/node_identity.hpp"

namespace torchup {
namespace {

/// How long the name servers may take over the master address: a resolver has asked twice by then.
constexpr std::chrono::seconds name_limit{8};

}  // namespace

Task<std::vector<std::string>> SocketInterface::variables(std::string address) {
  cancelled_ = false;
  const auto answer = std::make_shared<Answer>(loop_, std::chrono::steady_clock::now() + name_limit);
  const Lookup lookup{loop_, address, Port{0}, [answer](auto found) { answer->end(std::move(found)); }};
  awaited_ = answer;
  co_await answer->timer.async_wait();
  std::vector<std::string> variables;
  if (cancelled_) co_return variables;
  if (!answer->answer) {
    record_(event::Warning{
        fmt::format("--set-socket-ifname: the name server did not say within {} s where {} is; the workers look for "
                    "an interface themselves",
                    name_limit.count(), address)});
    co_return variables;
  }
  const Result<Lookup::Addresses>& found = *answer->answer;
  const std::string interface = found ? interface_towards(found->front().address().to_string()) : "";
  if (interface.empty()) {
    record_(event::Warning{"--set-socket-ifname: no interface leads to " + address});
    co_return variables;
  }
  for (const char* name : {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
    if (!std::getenv(name)) variables.push_back(fmt::format("{}={}", name, interface));
  }
  co_return variables;
}

void SocketInterface::cancel() {
  cancelled_ = true;
  if (const auto answer = awaited_.lock()) answer->timer.cancel();
}

}  // namespace torchup

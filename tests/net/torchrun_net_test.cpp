#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <chrono>

#include "rendezvous/core/text/base64.hpp"
#include "rendezvous/core/torchrun_wire/torchrun_state.hpp"
#include "rendezvous/net/agent/torchrun_link.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "rendezvous/net/store/store_server.hpp"
#include "tests/support/long_running.hpp"
#include "tests/support/store_harness.hpp"
#include "tests/support/store_peers.hpp"

using namespace torchup;
using test::connect_to, test::run_until, test::send_all;
using namespace std::chrono_literals;

namespace {

sockaddr_in loopback(Port port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port.value());
  return address;
}

StoreServerOptions on_loopback() {
  StoreServerOptions options;
  options.bind = "127.0.0.1";
  return options;
}

/// A program that greets as PyTorch's store does, and answers nothing else.
struct SilentStore {
  SilentStore() {
    sockaddr_in address = loopback(Port{0});
    socklen_t size = sizeof address;
    REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(listener.get(), 4) == 0);
    REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port = Port{ntohs(address.sin_port)};
  }
  /// True once a client has been greeted and has asked something.
  bool asked() {
    if (client.get() < 0) client = UniqueFd{::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
    if (client.get() < 0) return false;
    char buffer[4096];
    const ssize_t got = ::recv(client.get(), buffer, sizeof buffer, 0);
    if (got <= 0) return false;
    bytes.append(buffer, static_cast<std::size_t>(got));
    constexpr std::size_t ping_at = 5;  // VALIDATE and its number; then PING and its number, which comes back
    if (!greeted && bytes.size() > ping_at + 5) {
      send_all(client, bytes.substr(ping_at + 1, 4) + '\1');  // and no, it has no such key
      greeted = true;
      bytes.clear();
    }
    return greeted && !bytes.empty();
  }
  /// Whether the client has not hung up.
  [[nodiscard]] bool connected() const {
    char byte = 0;
    return ::recv(client.get(), &byte, 1, MSG_PEEK) < 0 && errno == EAGAIN;
  }

  UniqueFd listener{::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  UniqueFd client;
  Port port{0};
  std::string bytes;
  bool greeted = false;
};

/// An agent of ours, as the coordinator sees it.
struct Ours final : Coordinator::Listener {
  explicit Ours(Coordinator& coordinator)
      : attendance{coordinator.open(RunId{"job"}, {.observed = "10.0.0.1", .coordinator = "10.0.0.254"}, *this)} {}
  void tell(CoordinatorMessage message) override { heard.push_back(std::move(message)); }
  void refuse(int, std::string) override {}
  void let_go(std::string) override {}
  template <class T>
  const T* last() const {
    return heard.empty() ? nullptr : std::get_if<T>(&heard.back());
  }
  static Join join_of(const std::string& node, int nodes) {
    Join join;
    join.node = NodeId{node};
    join.host = "a";
    join.terms = {.min_nodes = nodes, .max_nodes = nodes};
    return join;
  }
  std::vector<CoordinatorMessage> heard;
  std::unique_ptr<Coordinator::Attendance> attendance;
};

}  // namespace

TEST_CASE("a run id begins anew when its mixed job is over, whoever lingers", "[net][torchrun]") {
  boost::asio::io_context loop;
  StoreServer server{loop, on_loopback()};
  const auto port = server.listen();
  REQUIRE(port.has_value());
  Coordinator coordinator{loop, {}, test::long_running()};
  coordinator.admit_torchrun(server, {});
  const RunId run_id{"job"};

  std::optional<UniqueFd> theirs = connect_to(*port);
  send_all(*theirs, test::validate);
  TorchrunState state;
  state.participants[{"b", 1, 0}] = 0;
  state.last_heartbeats[{"b", 1, 0}] =
      std::chrono::floor<std::chrono::microseconds>(std::chrono::system_clock::now()) + 1h;
  send_all(*theirs,
           test::request(Query::compare_set, {"/torch.rendezvous.job"}, {"", to_base64(write_torchrun_state(state))}));
  std::optional<Ours> ours{coordinator};
  ours->attendance->said(Ours::join_of("a_1_0", 2));
  run_until(loop, [&] { return coordinator.mixed(run_id); });
  state.closed = true;
  (void)server.store().set("/torch.rendezvous.job", Value{to_base64(write_torchrun_state(state))});
  run_until(loop, [&] { return ours->last<End>() != nullptr; });
  const bool lingers = GENERATE(false, true);  // our old agent
  if (!lingers) ours.reset();

  REQUIRE_FALSE(coordinator.mixed(run_id));
  Ours late{coordinator};  // it has not heard the verdict yet
  late.attendance->resumed({.join = Ours::join_of("c_1_0", 2), .stage = Resume::Stage::ready});
  REQUIRE(late.last<End>());
  REQUIRE(late.last<End>()->verdict.exit_code == 1);
  REQUIRE(server.store().find("/torch.rendezvous.job"));  // one of torchrun's is still there, and may look
  Ours next{coordinator};
  next.attendance->said(Ours::join_of("a_2_0", 1));
  REQUIRE(next.last<HostStore>());
  theirs.reset();
  run_until(loop, [&] { return !server.store().find("/torch.rendezvous.job"); });
  REQUIRE_FALSE(next.last<End>());
  REQUIRE_FALSE(coordinator.mixed(run_id));

  theirs = connect_to(*port);  // the new job can be a mixed one again
  send_all(*theirs, test::validate);
  state.closed = false;
  send_all(*theirs,
           test::request(Query::compare_set, {"/torch.rendezvous.job"}, {"", to_base64(write_torchrun_state(state))}));
  Ours another{coordinator};
  next.attendance->said(Leave{.exit_code = 0});
  another.attendance->said(Ours::join_of("a_3_0", 2));
  run_until(loop, [&] { return coordinator.mixed(run_id); });
}

TEST_CASE("a static run id begins anew at a coordinator that stays", "[net][torchrun]") {
  boost::asio::io_context loop;
  StoreServer server{loop, on_loopback()};
  REQUIRE(server.listen().has_value());
  Coordinator coordinator{loop, {}, test::long_running()};
  coordinator.admit_torchrun(server, {});
  const RunId run_id{"job"};
  const std::string keys = "/job/torchelastic/";
  Store& store = server.store();
  for (const char* const node : {"a_1_0", "a_2_0"}) {
    Ours ours{coordinator};
    Join join = Ours::join_of(node, 2);
    join.group_rank = GroupRank{0};
    ours.attendance->said(join);
    REQUIRE(ours.heard.empty());
    loop.restart();
    loop.run_for(300ms);
    REQUIRE_FALSE(coordinator.mixed(run_id));  // nobody of torchrun's has come
    (void)store.set(keys + "role_info/1", Value{R"({"role": "default", "rank": 1, "local_world_size": 1})"});
    run_until(loop, [&] { return ours.last<HostStore>() != nullptr; });
    REQUIRE(coordinator.mixed(run_id));
    ours.attendance->said(StoreReady{Round{0}, Port{29500}});
    run_until(loop, [&] { return ours.last<Placed>() != nullptr; });
    REQUIRE(store.find(keys + "assigned_ranks/1"));
    ours.attendance->said(WorkersSucceeded{Round{0}});
    run_until(loop, [&] { return store.find(keys + "agent/terminal_state/num_members") != nullptr; });
    REQUIRE(ours.last<Placed>());
    (void)store.set(keys + "agent/terminal_state/last_member", Value{"x"});
    run_until(loop, [&] { return ours.last<End>() != nullptr; });
    REQUIRE(ours.last<End>()->verdict.exit_code == 0);
    REQUIRE_FALSE(coordinator.mixed(run_id));
    REQUIRE(coordinator.had_torchrun(run_id));
  }
}

TEST_CASE("nobody waits for a store of torchrun's that does not answer", "[net][torchrun]") {
  SilentStore store;
  boost::asio::io_context loop;
  bool is_store = false;
  std::optional<LinkEvent> heard;
  auto link = connect_torchrun(
      loop, {.endpoint = {"127.0.0.1", store.port}, .run_id = RunId{"job"}}, [&](bool answers) { is_store = answers; },
      [&](LinkEvent event) { heard = std::move(event); });
  run_until(loop, [&] { return store.asked() && is_store; });
  SECTION("where the agent is done with it") {
    link.reset();
    REQUIRE(store.connected());  // the thread still asks
  }
  SECTION("where the user wants to leave") {
    link->send(Leave{.ends_job = false, .exit_code = 143, .reason = "got SIGTERM"});
    run_until(loop, [&] { return heard.has_value(); });
    REQUIRE(store.connected());
    const auto* message = std::get_if<CoordinatorMessage>(&*heard);
    REQUIRE(message);
    REQUIRE(std::get<End>(*message).verdict.exit_code == 143);
  }
}

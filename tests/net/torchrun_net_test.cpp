#include <fcntl.h>
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
#include "rendezvous/net/coordinator/torchrun_host.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "rendezvous/net/store/store_server.hpp"
#include "tests/support/long_running.hpp"
#include "tests/support/store_harness.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

sockaddr_in loopback(Port port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port.value());
  return address;
}

UniqueFd connect_to(Port port) {
  UniqueFd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const sockaddr_in address = loopback(port);
  REQUIRE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  ::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  return socket;
}

void send_all(const UniqueFd& socket, const std::string& bytes) {
  REQUIRE(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

/// Runs `loop` until `condition` holds; fails after thirty seconds.
template <class Condition>
void run_until(boost::asio::io_context& loop, Condition condition) {
  const auto end = std::chrono::steady_clock::now() + 30s;
  while (!condition()) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    loop.restart();
    loop.run_for(1ms);
  }
}

/// A store with torchrun's meetings in it.
struct Host {
  Host() {
    const auto opened = server.listen();
    REQUIRE(opened.has_value());
    port = *opened;
  }
  static StoreServerOptions options() {
    StoreServerOptions options;
    options.bind = "127.0.0.1";
    return options;
  }
  /// As an agent does that is the first to come.
  void meet(const UniqueFd& socket, const std::string& run_id) {
    TorchrunState state;
    state.participants[{"a", 1, 0}] = 0;
    state.last_heartbeats[{"a", 1, 0}] = UtcTime{} + 1h;
    write(socket, run_id, "", to_base64(write_torchrun_state(state)));
  }
  void write(const UniqueFd& socket, const std::string& run_id, const std::string& expected, const std::string& text) {
    send_all(socket, test::request(Query::compare_set, {"/torch.rendezvous." + run_id}, {expected, text}));
  }
  void turn(Duration at) { host.turn(TimePoint{} + at, UtcTime{} + 1h); }

  boost::asio::io_context loop;
  StoreServer server{loop, options()};
  std::vector<std::string> log;
  TorchrunHost host{loop, server, {}, [this](const RunId& run_id, const std::string& line) {
                      log.push_back(run_id.value() + ": " + line);
                    }};
  Port port{0};
};

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

}  // namespace

TEST_CASE("a meeting that nobody has a part in is forgotten", "[net][torchrun]") {
  Host host;
  std::optional<UniqueFd> client = connect_to(host.port);
  send_all(*client, test::validate);
  host.meet(*client, "job");
  run_until(host.loop, [&] { return host.host.jobs().size() == 1; });
  host.turn(0s);
  host.turn(24h);
  REQUIRE(host.host.jobs().size() == 1);  // its agent is there
  client.reset();
  run_until(host.loop, [&] { return host.server.status().connections == 0; });
  host.turn(25h);
  host.turn(25h + meeting_kept - 1ms);
  REQUIRE(host.host.jobs().size() == 1);
  REQUIRE(host.server.store().find("/torch.rendezvous.job"));
  host.turn(25h + meeting_kept);
  REQUIRE(host.host.jobs().empty());
  REQUIRE_FALSE(host.server.store().find("/torch.rendezvous.job"));
}

TEST_CASE("a store holds so many meetings", "[net][torchrun]") {
  Host host;
  const UniqueFd client = connect_to(host.port);
  send_all(client, test::validate);
  const std::string last = fmt::format("job{}", meetings_max);
  for (std::size_t i = 0; i <= meetings_max; ++i) {
    host.meet(client, fmt::format("job{}", i));
    host.loop.restart();
    host.loop.poll();
  }
  run_until(host.loop, [&] { return host.server.store().find("/torch.rendezvous." + last) != nullptr; });
  REQUIRE(host.host.jobs().size() == meetings_max);
  REQUIRE_FALSE(host.host.find(RunId{last}));
  REQUIRE(host.log.size() == 1);
  REQUIRE(host.log[0].starts_with(last + ": meetings_max"));
  host.turn(0s);
  SECTION("and the one that has been over for the longest time makes room") {
    host.meet(client, "another");
    run_until(host.loop, [&] { return host.host.find(RunId{"another"}) != nullptr; });
    REQUIRE(host.host.find(RunId{"job0"}));  // the client has a part in this one
    REQUIRE_FALSE(host.host.find(RunId{"job1"}));
    REQUIRE(host.host.jobs().size() == meetings_max);
  }
  SECTION("until they are forgotten") {
    host.turn(meeting_kept);
    REQUIRE(host.host.jobs().size() == 1);
  }
}

TEST_CASE("a text that is no state makes no meeting", "[net][torchrun]") {
  Host host;
  const UniqueFd client = connect_to(host.port);
  send_all(client, test::validate);
  host.write(client, "job.0/MASTER_ADDR", "", "10.0.0.1");
  host.write(client, "job", "", "Y2FuaW1hZGFt");
  run_until(host.loop, [&] { return host.server.status().requests >= 2; });
  REQUIRE(host.host.jobs().empty());
  host.meet(client, "other");
  run_until(host.loop, [&] { return host.host.jobs().size() == 1; });
}

TEST_CASE("who is owed an answer about the state asks for nothing else, and costs so much", "[net][torchrun]") {
  Host host;
  std::vector<UniqueFd> clients;
  TorchrunState state;
  state.round = 1;
  std::string text;
  constexpr std::size_t value_bytes = std::size_t{7} << 20, most = held_bytes_max / value_bytes;
  for (int i = 0; i <= static_cast<int>(most); ++i) {
    clients.push_back(connect_to(host.port));
    const TorchrunNode node{fmt::format("n{}", i), i, 0};
    state.participants[node] = i;
    state.last_heartbeats[node] = UtcTime{} + 1h;
    const std::string next = to_base64(write_torchrun_state(state));
    send_all(clients.back(), test::validate);
    host.write(clients.back(), "job", text, next);
    run_until(host.loop, [&] {
      const Value* const value = host.server.store().find("/torch.rendezvous.job");
      return value && value->view() == next;
    });
    text = next;
  }
  host.turn(0s);
  host.turn(10s);  // each is told at last what became of its own write
  const auto answered = [&](const UniqueFd& client) {
    char byte = 0;
    return ::recv(client.get(), &byte, 1, MSG_PEEK) == 1;
  };
  const auto read_all = [](const UniqueFd& client) {
    char bytes[65536];
    while (::recv(client.get(), bytes, sizeof bytes, 0) > 0) {
    }
  };
  SECTION("a second request closes the connection") {
    read_all(clients[0]);
    const std::string get = test::request(Query::get, {"/torch.rendezvous.job"});
    const auto before = host.server.status().requests;
    send_all(clients[0], get);
    run_until(host.loop, [&] { return host.server.status().requests > before; });
    REQUIRE_FALSE(answered(clients[0]));
    send_all(clients[0], get);
    run_until(host.loop, [&] { return host.server.status().refused == 1; });
  }
  SECTION("beyond the limit it is answered at once") {
    const std::string request =
        test::request(Query::compare_set, {"/torch.rendezvous.job"}, {"x", std::string(value_bytes, 'y')});
    for (std::size_t i = 0; i <= most; ++i) {
      read_all(clients[i]);
      const auto before = host.server.status().requests;
      std::string_view rest = request;
      run_until(host.loop, [&] {
        const ssize_t sent = ::send(clients[i].get(), rest.data(), rest.size(), MSG_NOSIGNAL);
        if (sent > 0) rest.remove_prefix(static_cast<std::size_t>(sent));
        return host.server.status().requests > before;
      });
      if (i == most) {
        run_until(host.loop, [&] { return answered(clients[i]); });
      } else {
        REQUIRE_FALSE(answered(clients[i]));
      }
    }
  }
}

namespace {

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
  StoreServer server{loop, Host::options()};
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
  StoreServer server{loop, Host::options()};
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

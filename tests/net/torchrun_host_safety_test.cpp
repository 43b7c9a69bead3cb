// What strangers cost who looks after torchrun's agents: memory for their states, and faults of ours.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <stdexcept>

#include "rendezvous/net/coordinator/coordinator.hpp"
#include "tests/net/torchrun_hosts.hpp"
#include "tests/support/long_running.hpp"

using namespace torchup;
using test::connect_to, test::Host, test::run_until, test::send_all;
using namespace std::chrono_literals;

namespace {

TorchrunState state_of(std::int64_t nodes, const std::string& name) {
  TorchrunState state;
  for (std::int64_t i = 0; i < nodes; ++i) {
    const TorchrunNode node{name, i, 0};
    state.participants[node] = 0;
    state.last_heartbeats[node] = UtcTime{} + 1h;
  }
  return state;
}

std::string text_of(const TorchrunState& state) { return to_base64(write_torchrun_state(state)); }

std::size_t nodes_known(const Host& host, const std::string& run_id) {
  return host.host.view(RunId{run_id}, {}).nodes.size();
}

bool any_says(const std::vector<std::string>& log, const std::string& what) {
  return std::ranges::any_of(log, [&](const std::string& line) { return line.starts_with(what); });
}

}  // namespace

TEST_CASE("what is kept of all states has a limit, and small jobs stay", "[net][torchrun][many]") {
  Host host;
  const std::string name(240, 'n');
  const UniqueFd client = connect_to(host.port), of_large = connect_to(host.port);
  for (const UniqueFd* each : {&client, &of_large}) send_all(*each, test::validate);
  host.meet(client, "job");
  const std::string large = text_of(state_of(torchrun_nodes_max, name));
  host.write_whole(of_large, "large", "", large);
  REQUIRE(nodes_known(host, "large") == torchrun_nodes_max);  // as many as a state may have, and under long names
  REQUIRE(host.log.empty());

  SECTION("the largest is left to itself, the newcomer or another") {
    host.write_whole(client, "as large", "", large);
    REQUIRE(nodes_known(host, "as large") == 0);
    REQUIRE(any_says(host.log, "as large: states_bytes_max"));
    host.write_whole(client, "smaller", "", text_of(state_of(torchrun_nodes_max * 19 / 20, name)));
    REQUIRE(nodes_known(host, "large") == 0);
    REQUIRE(nodes_known(host, "smaller") == torchrun_nodes_max * 19 / 20);
    REQUIRE(any_says(host.log, "large: states_bytes_max"));
    host.write_whole(client, "large", large, text_of(state_of(10, name)));  // and it may come back
    REQUIRE(nodes_known(host, "large") == 10);
  }
  SECTION("who is over gives way first") {
    TorchrunState closed = state_of(torchrun_nodes_max / 2, name);
    closed.closed = true;
    host.write_whole(client, "over", "", text_of(closed));
    host.turn(0s);
    host.write_whole(client, "another", "", text_of(state_of(torchrun_nodes_max / 2, name)));
    REQUIRE(nodes_known(host, "over") == 0);
    REQUIRE(nodes_known(host, "large") == torchrun_nodes_max);
    REQUIRE(nodes_known(host, "another") == torchrun_nodes_max / 2);
  }
  SECTION("what is forgotten counts no more") {
    host.host.forget(RunId{"large"});
    host.write_whole(client, "as large", "", large);
    REQUIRE(nodes_known(host, "as large") == torchrun_nodes_max);
  }
  REQUIRE(nodes_known(host, "job") == 1);
}

TEST_CASE("a fault of ours in one meeting ends that one, and no other", "[net][torchrun]") {
  Host host;
  std::optional<UniqueFd> faulty = connect_to(host.port), second = connect_to(host.port), sound = connect_to(host.port);
  for (const auto* client : {&faulty, &second, &sound}) send_all(**client, test::validate);
  TorchrunState state;
  const auto write_as = [&](const UniqueFd& client, const TorchrunState& next) {
    const Value* const present = host.server.store().find("/torch.rendezvous.faulty");
    const std::string before{present ? present->view() : std::string_view{}};
    host.write_whole(client, "faulty", before, text_of(next));
  };
  host.meet(*sound, "sound");
  const auto enter = [&](const std::string& name) {
    state.participants[{name, 1, 0}] = 0;
    state.last_heartbeats[{name, 1, 0}] = UtcTime{} + 1h;
  };
  enter("a");
  write_as(*faulty, state);
  enter("b");
  write_as(*second, state);
  host.on_log = [](const std::string& line) {
    if (line.starts_with("faulty")) throw std::runtime_error{"a fault of ours"};
  };
  SECTION("at a turn") { faulty.reset(); }
  SECTION("at a request, whose client is closed") {
    TorchrunState without = state;
    without.participants.erase({"a", 1, 0});
    without.last_heartbeats.erase({"a", 1, 0});
    write_as(*second, without);
    TorchrunState closed = without;
    closed.closed = true;
    host.write(*faulty, "faulty", text_of(without), text_of(closed));
    char bytes[4096];
    run_until(host.loop, [&] { return ::recv(faulty->get(), bytes, sizeof bytes, 0) == 0; });
  }
  run_until(host.loop, [&] {
    host.turn(0s);
    return !host.faults.empty();
  });
  REQUIRE(host.faults == std::vector<std::string>{"faulty: a fault of ours"});
  REQUIRE_FALSE(host.host.find(RunId{"faulty"}));
  REQUIRE(nodes_known(host, "sound") == 1);
  send_all(*second, test::request(Query::get, {"/torch.rendezvous.faulty"}));
  char byte = 0;
  run_until(host.loop, [&] { return ::recv(second->get(), &byte, 1, MSG_PEEK) == 1; });
  sound.reset();
  run_until(host.loop, [&] {
    host.turn(0s);
    return any_says(host.log, "sound: node a: torchrun's agent has ended");
  });
}

TEST_CASE("who waits in a meeting that ends by a fault of ours gets the store's answer", "[net][torchrun]") {
  Host host;
  const UniqueFd waiting = connect_to(host.port);
  std::optional<UniqueFd> other = connect_to(host.port);
  send_all(waiting, test::validate);
  send_all(*other, test::validate);
  TorchrunState state = state_of(1, "a");
  state.round = 1;
  const std::string first = text_of(state);
  host.write_whole(*other, "job", "", first);
  state.participants[{"b", 1, 0}] = 1;
  state.last_heartbeats[{"b", 1, 0}] = UtcTime{} + 1h;
  host.write_whole(waiting, "job", first, text_of(state));
  char byte = 0;
  REQUIRE(::recv(waiting.get(), &byte, 1, MSG_PEEK) == -1);  // until there is something to do
  host.on_log = [](const std::string&) { throw std::runtime_error{"a fault of ours"}; };
  other.reset();
  run_until(host.loop, [&] {
    host.turn(0s);
    return !host.faults.empty();
  });
  run_until(host.loop, [&] { return ::recv(waiting.get(), &byte, 1, MSG_PEEK) == 1; });
}

TEST_CASE("a fault where a meeting begins ends nobody else", "[net][torchrun]") {
  Host host;
  const UniqueFd client = connect_to(host.port);
  send_all(client, test::validate);
  for (std::size_t i = 0; i < meetings_max; ++i) (void)host.host.store(RunId{fmt::format("job{}", i)});
  host.on_log = [](const std::string&) { throw std::runtime_error{"a fault of ours"}; };
  host.meet(client, "one more");
  run_until(host.loop, [&] { return !host.log.empty(); });
  send_all(client, test::request(Query::ping, {}, {}, 7));
  run_until(host.loop, [&] { return host.server.status().requests == 2; });
  host.turn(0s);
  REQUIRE(host.faults == std::vector<std::string>{"one more: a fault of ours"});
}

TEST_CASE("a coordinator outlives a fault in what it does for torchrun's agents", "[net][coordinator]") {
  boost::asio::io_context loop;
  std::vector<std::string> log;
  Coordinator coordinator{loop,
                          [&](const LogLine& line) {
                            log.push_back(line.job + ": " + line.text);
                            if (line.text.find("agent has ended") != std::string::npos)
                              throw std::runtime_error{"a fault of ours"};
                          },
                          test::long_running()};
  StoreServer server{loop, Host::options()};
  const Port port = *server.listen();
  coordinator.admit_torchrun(server, {});
  std::optional<UniqueFd> client = connect_to(port);
  send_all(*client, test::validate +
                        test::request(Query::compare_set, {"/torch.rendezvous.job"}, {"", text_of(state_of(1, "a"))}));
  run_until(loop, [&] { return coordinator.jobs().size() == 1; });
  client.reset();
  run_until(loop, [&] { return any_says(log, "job: internal fault of the coordinator: a fault of ours"); });
  REQUIRE(coordinator.jobs().empty());
}

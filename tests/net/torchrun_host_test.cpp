#include "rendezvous/net/coordinator/torchrun_host.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <thread>

#include "rendezvous/core/text/base64.hpp"
#include "rendezvous/core/torchrun_wire/torchrun_state.hpp"
#include "rendezvous/net/coordinator/held_requests.hpp"
#include "rendezvous/net/io/listen.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "rendezvous/net/store/store_server.hpp"
#include "tests/net/torchrun_hosts.hpp"
#include "tests/support/no_threads.hpp"
#include "tests/support/store_harness.hpp"
#include "tests/support/store_peers.hpp"

using namespace torchup;
using test::connect_to, test::Host, test::run_until, test::send_all;
using namespace std::chrono_literals;

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

TEST_CASE("a meeting that comes to life again while it is being forgotten stays", "[net][torchrun]") {
  Host host;
  std::optional<UniqueFd> client = connect_to(host.port);
  send_all(*client, test::validate);
  host.meet(*client, "job");
  run_until(host.loop, [&] { return host.host.jobs().size() == 1; });
  client.reset();
  run_until(host.loop, [&] { return host.server.status().connections == 0; });
  for (int i = 0; i < 100'000; ++i) (void)host.server.store().set("/other" + std::to_string(i), Value{});
  const UniqueFd other = connect_to(host.port);
  send_all(other, test::validate);
  run_until(host.loop, [&] { return host.server.status().connections == 1; });
  host.turn(0s);
  host.turn(meeting_kept);  // begins to look at all keys, and is not done
  REQUIRE(host.host.jobs().size() == 1);
  const Value* const there = host.server.store().find("/torch.rendezvous.job");
  host.meet(other, "job");
  if (there) host.write(other, "job", std::string{there->view()}, std::string{there->view()});
  run_until(host.loop, [&] { return host.host.attended(RunId{"job"}); });
  bool swept = false;
  boost::asio::post(host.loop, [&] { swept = true; });
  run_until(host.loop, [&] { return swept; });
  for (int i = 0; i < 1000; ++i) host.loop.poll();
  REQUIRE(host.host.attended(RunId{"job"}));
  REQUIRE(host.host.jobs().size() == 1);
}

TEST_CASE("meetings are not forgotten one by one", "[net][torchrun]") {
  Host host;
  const auto meet_and_go = [&](const std::string& run_id, Duration at) {
    std::optional<UniqueFd> client = connect_to(host.port);
    send_all(*client, test::validate);
    host.meet(*client, run_id);
    run_until(host.loop, [&] { return host.host.find(RunId{run_id}) != nullptr; });
    client.reset();
    run_until(host.loop, [&] { return host.server.status().connections == 0; });
    host.turn(at);
  };
  (void)host.server.store().set("/other", Value{});
  meet_and_go("first", 0s);
  meet_and_go("second", 1s);
  meet_and_go("third", 2s);
  host.turn(meeting_kept);
  REQUIRE(host.host.jobs().size() == 2);
  host.turn(meeting_kept + 2s);
  REQUIRE(host.host.jobs().size() == 2);
  host.turn(meeting_kept + meetings_sweep_pace);
  REQUIRE(host.host.jobs().empty());
  REQUIRE(host.server.store().key_count() == 1);
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
  constexpr std::size_t value_bytes = held_bytes_of_one_max - 1024, most = held_bytes_max / value_bytes;
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
  SECTION("beyond what one may have it is answered at once") {
    read_all(clients[0]);
    std::string request =
        test::request(Query::compare_set, {"/torch.rendezvous.job"}, {"x", std::string(held_bytes_of_one_max, 'y')});
    run_until(host.loop, [&] {
      const ssize_t sent = ::send(clients[0].get(), request.data(), request.size(), MSG_NOSIGNAL);
      if (sent > 0) request.erase(0, static_cast<std::size_t>(sent));
      return answered(clients[0]);
    });
  }
  SECTION("beyond what all may have it is answered at once") {
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

/// A meeting whose workers' store takes its time to be emptied: roles of round 1 wait.
struct EmptyingHost : Host {
  explicit EmptyingHost(const std::string& id) : run_id{id} {
    send_all(first, test::validate);
    complete_round(0);
    TorchrunStore& ours = host.store(RunId{run_id});
    (void)ours.set(fmt::format("torch.rendezvous.{}.0/MASTER_ADDR", run_id), "127.0.0.1");
    (void)ours.set(fmt::format("torch.rendezvous.{}.0/MASTER_PORT", run_id), fmt::format("{}", workers.port.value()));
    complete_round(1);
  }
  void complete_round(std::int64_t round) {
    TorchrunState state;
    state.round = round;
    state.complete = true;
    state.participants[{"a", 1, 0}] = 0;
    state.last_heartbeats[{"a", 1, 0}] = UtcTime{} + 1h;
    const std::string next = to_base64(write_torchrun_state(state));
    write(first, run_id, text, next);
    run_until(loop, [&] {
      const Value* const value = server.store().find("/torch.rendezvous." + run_id);
      return value && value->view() == next;
    });
    text = next;
    turn(std::chrono::seconds{round});
  }
  [[nodiscard]] std::string role(int rank) const {
    return fmt::format("/torch.rendezvous.{}.1/torchelastic/role_info/{}", run_id, rank);
  }
  [[nodiscard]] bool passed_on(int rank) { return server.store().find(role(rank)) != nullptr; }
  void tell(const UniqueFd& client, int rank, std::size_t bytes) {
    std::string request = test::request(Query::set, {role(rank)}, {std::string(bytes, 'x')});
    const auto before = server.status().requests;
    run_until(loop, [&] {
      const ssize_t sent = ::send(client.get(), request.data(), request.size(), MSG_NOSIGNAL);
      if (sent > 0) request.erase(0, static_cast<std::size_t>(sent));
      return server.status().requests > before;
    });
  }
  /// Until the workers' store is empty, or does not answer.
  template <class Condition>
  void turn_until(Condition condition) {
    Duration at = 2s;
    run_until(loop, [&] {
      turn(at += 1ms);
      return condition();
    });
  }

  std::string run_id, text;
  Listeners workers = *listen_on("127.0.0.1", Port{0}, 90s);
  UniqueFd first = connect_to(port);
};

}  // namespace

TEST_CASE("roles that wait for the workers' store cost each client so much", "[net][torchrun]") {
  EmptyingHost host{"job"};
  const UniqueFd greedy = connect_to(host.port), modest = connect_to(host.port);
  for (const UniqueFd* client : {&greedy, &modest}) send_all(*client, test::validate);
  host.tell(greedy, 1, held_bytes_of_one_max * 2 / 3);
  host.tell(greedy, 2, held_bytes_of_one_max * 2 / 3);
  host.tell(modest, 3, 100);
  REQUIRE_FALSE(host.passed_on(1));
  REQUIRE(host.passed_on(2));
  REQUIRE_FALSE(host.passed_on(3));
  host.turn_until([&] { return host.passed_on(1) && host.passed_on(3); });
}

TEST_CASE("a role that waits goes with its client, whatever meeting that was of", "[net][torchrun]") {
  EmptyingHost host{"job"};
  std::optional<UniqueFd> client = connect_to(host.port);
  const UniqueFd other = connect_to(host.port);
  send_all(*client, test::validate);
  send_all(other, test::validate);
  SECTION("of none") {}
  SECTION("of another") {
    host.meet(*client, "another");
    run_until(host.loop, [&] { return host.host.jobs().size() == 2; });
  }
  host.tell(*client, 1, 100);
  host.tell(other, 2, 100);
  client.reset();
  run_until(host.loop, [&] { return host.server.status().connections == 2; });
  host.turn_until([&] { return host.passed_on(2); });
  REQUIRE_FALSE(host.passed_on(1));
}

TEST_CASE("who has a part in a meeting is no agent of another", "[net][torchrun]") {
  Host host;
  const UniqueFd client = connect_to(host.port);
  send_all(client, test::validate);
  host.meet(client, "job");
  TorchrunState state;
  state.round = 1;  // an agent that is in it waits for the others
  state.participants[{"a", 1, 0}] = 0;
  state.last_heartbeats[{"a", 1, 0}] = UtcTime{} + 1h;
  host.write(client, "another", "", to_base64(write_torchrun_state(state)));
  run_until(host.loop, [&] { return host.host.find(RunId{"another"}) != nullptr; });
  REQUIRE_FALSE(host.host.attended(RunId{"another"}));
  char bytes[65536];
  while (::recv(client.get(), bytes, sizeof bytes, 0) > 0) {
  }
  send_all(client, test::request(Query::get, {"/torch.rendezvous.another"}));
  run_until(host.loop, [&] { return ::recv(client.get(), bytes, 1, MSG_PEEK) == 1; });
}

TEST_CASE("rounds that follow each other fast cost one thread", "[net][torchrun]") {
  const auto threads = [] {
    const auto list = std::filesystem::directory_iterator{"/proc/self/task"};
    return std::distance(begin(list), end(list));
  };
  std::thread{[] {}}.join();  // with the first, a sanitizer starts one of its own
  const auto before = threads();
  EmptyingHost host{"job"};
  for (std::int64_t round = 2; round < 50; ++round) host.complete_round(round);
  REQUIRE(threads() <= before + 1);
}

TEST_CASE("where the system gives no thread, roles wait until it gives one", "[net][torchrun]") {
  std::optional<test::NoThreads> none{std::in_place};
  EmptyingHost host{"job"};
  const UniqueFd client = connect_to(host.port);
  send_all(client, test::validate);
  host.tell(client, 1, 100);
  host.turn(2s);
  REQUIRE_FALSE(host.passed_on(1));
  none.reset();
  host.turn_until([&] { return host.passed_on(1); });
}

TEST_CASE("a workers' store of ours serves whom the daemon's serves", "[net][torchrun]") {
  std::string asked_about;
  Host host{{.bind = "127.0.0.1",
             .admits =
                 [&](const std::string& address) {
                   asked_about = address;
                   return false;
                 },
             .common_place = true}};
  const auto place = host.host.store(RunId{"job"}).common_place();
  REQUIRE((place && *place));
  const UniqueFd client = connect_to((*place)->port);
  send_all(client, test::validate + test::request(Query::ping, {}, {}, 7));
  run_until(host.loop, [&] { return test::at_end(client); });
  REQUIRE(asked_about == "127.0.0.1");
}

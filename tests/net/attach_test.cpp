#include "rendezvous/net/agent/attach.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <csignal>
#include <list>

#include "agents.hpp"
#include "tests/support/no_threads.hpp"
#include "tests/support/store_harness.hpp"
#include "tests/support/store_peers.hpp"

using namespace torchup;
using namespace std::chrono_literals;
namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

/// Held until this process ends by a socket that does not listen: the kernel gives it to nobody who asks for any port,
/// and who asks for it by its number, as a host does, may listen there.
Port free_port() {
  static asio::io_context loop;
  static std::list<tcp::acceptor> held;
  tcp::acceptor& port = held.emplace_back(loop, tcp::v4());
  port.set_option(tcp::acceptor::reuse_address{true});
  port.bind({asio::ip::address_v4::loopback(), 0});
  return Port{port.local_endpoint().port()};
}

std::unique_ptr<AgentLink> host_at(asio::io_context& loop, Port port, AgentLink::Handler handler) {
  return attach(loop, {.run_id = RunId{"job"}, .endpoint = Endpoint{"127.0.0.1", port}, .is_host = true},
                std::move(handler));
}

std::string page(asio::io_context& loop, Port port, const std::string& path) {
  const UniqueFd client = test::connect_to(port);
  test::send_all(client, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  std::string answer;
  REQUIRE(run_until(loop, [&] {
    char buffer[4096];
    ssize_t got = 0;
    while ((got = ::recv(client.get(), buffer, sizeof buffer, 0)) > 0)
      answer.append(buffer, static_cast<std::size_t>(got));
    return got == 0;
  }));
  return answer;
}

/// What a process of its own does, for descriptors are counted by process: clients of the store, then agents that join
/// no job, then agents that are to be welcome. How many of these were.
int play_crowd(Port port) {
  std::vector<int> peers;
  const auto say = [&](const std::string& words, std::size_t answer_size) {
    const int peer = ::socket(AF_INET, SOCK_STREAM, 0);
    const timeval patience{10, 0};
    ::setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port.value());
    for (int tries = 0; tries < 20'000; ++tries) {  // until it listens
      if (::connect(peer, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) break;
      ::usleep(1000);
    }
    (void)!::send(peer, words.data(), words.size(), MSG_NOSIGNAL);
    std::string answer(answer_size, '\0');
    answer.resize(
        static_cast<std::size_t>(std::max<ssize_t>(0, ::recv(peer, answer.data(), answer_size, MSG_WAITALL))));
    peers.push_back(peer);
    return answer;
  };
  const auto hello = [](const std::string& run_id) {
    return std::string{agent_preface} + encode(AgentFrame{Hello{.run_id = RunId{run_id}}});
  };
  for (int i = 0; i < 160; ++i) say(test::validate + test::request(Query::ping, {}, {}, i), 4);
  for (int i = 0; i < 60; ++i) say(hello("nobody's " + std::string(1, static_cast<char>('A' + i % 26))), 5);
  int welcome = 0;
  for (int i = 0; i < 5; ++i) {
    const std::string answer = say(hello("good"), 5);
    welcome += answer.size() == 5 && answer[4] == 66;
  }
  return welcome;
}

}  // namespace

TEST_CASE("of agents on one machine with one endpoint the first hosts and the others connect", "[net][attach]") {
  asio::io_context loop;
  const Port port = free_port();
  std::vector<std::string> log;
  const auto make = [&](AgentLink::Handler handler) {
    return attach(loop,
                  {.run_id = RunId{"job"},
                   .endpoint = Endpoint{"localhost", port},
                   .join_timeout = 10s,
                   .log = [&](const LogLine& line) { log.push_back(line.text); }},
                  std::move(handler));
  };
  Agent a{make}, b{make};
  run_round(loop, a, b, {.min_nodes = 2, .max_nodes = 2});
  REQUIRE(std::count_if(log.begin(), log.end(),
                        [](const auto& line) { return line.find("hosted here") != std::string::npos; }) == 1);
  a.link->send(WorkersSucceeded{Round{0}});
  b.link->send(WorkersSucceeded{Round{0}});
  REQUIRE(run_until(loop, [&] { return a.last<End>() && b.last<End>(); }));
}

TEST_CASE("where the port is taken nodes meet at a further one, whoever has the first", "[net][attach]") {
  asio::io_context loop;
  const Port further = free_port();
  const auto at = [&](Port port, const std::string& run_id, bool is_host) {
    return [&, port, run_id, is_host](AgentLink::Handler handler) {
      return attach(loop,
                    {.run_id = RunId{run_id},
                     .endpoint = Endpoint{"127.0.0.1", port},
                     .further_ports = {further},
                     .is_host = is_host,
                     .join_timeout = 30s},
                    std::move(handler));
    };
  };
  SECTION("a program that says nothing") {
    const tcp::acceptor silent{loop, tcp::endpoint{asio::ip::address_v4::loopback(), 0}};
    const Port taken{silent.local_endpoint().port()};
    Agent a{at(taken, "job", true)}, b{at(taken, "job", false)};
    run_round(loop, a, b, {.min_nodes = 2, .max_nodes = 2});
  }
  SECTION("another job") {
    const Port taken = free_port();
    Agent other{at(taken, "other", true)};
    other.link->send(join_of("c", {}));
    REQUIRE(run_until(loop, [&] { return other.last<HostStore>() != nullptr; }));
    Agent a{at(taken, "job", true)}, b{at(taken, "job", false)};
    run_round(loop, a, b, {.min_nodes = 2, .max_nodes = 2});
  }
}

TEST_CASE("whoever hosts a short job stays to tell nodes that come only now", "[net][attach]") {
  asio::io_context loop;
  const Port port = free_port();
  const auto at = [&](bool is_host) {
    return [&, is_host](AgentLink::Handler handler) {
      return attach(
          loop,
          {.run_id = RunId{"job"}, .endpoint = Endpoint{"127.0.0.1", port}, .is_host = is_host, .join_timeout = 30s},
          std::move(handler));
    };
  };
  const JobTerms terms{.min_nodes = 2, .max_nodes = 2, .hostlist = "a,b,c"};
  Agent a{at(true)}, b{at(false)};
  run_round(loop, a, b, terms);
  a.link->send(WorkersSucceeded{Round{0}});
  b.link->send(WorkersSucceeded{Round{0}});
  REQUIRE(run_until(loop, [&] { return a.last<End>() && b.last<End>(); }));
  bool done = false;
  a.link->finish(30s, [&] { done = true; });
  b.link.reset();
  REQUIRE_FALSE(run_until(
      loop, [&] { return done; }, 200ms));
  Agent c{at(false)};
  c.link->send(join_of("c", terms));
  REQUIRE(run_until(loop, [&] { return c.last<End>() != nullptr; }));
  REQUIRE(c.last<End>()->verdict.exit_code == 0);
  c.link.reset();
  REQUIRE(run_until(
      loop, [&] { return done; }, 10s));
}

TEST_CASE("an agent that finds all its ports taken says which they are", "[net][attach]") {
  asio::io_context loop;
  const tcp::acceptor first{loop, tcp::endpoint{asio::ip::address_v4::loopback(), 0}},
      second{loop, tcp::endpoint{asio::ip::address_v4::loopback(), 0}};
  Agent a{[&](AgentLink::Handler handler) {
    return attach(loop,
                  {.run_id = RunId{"job"},
                   .endpoint = Endpoint{"127.0.0.1", Port{first.local_endpoint().port()}},
                   .further_ports = {Port{second.local_endpoint().port()}},
                   .listener_on = [](Port port) { return fmt::format("whoever has {}", port.value()); },
                   .is_host = true},
                  std::move(handler));
  }};
  REQUIRE(run_until(loop, [&] { return a.lost() != nullptr; }));
  REQUIRE(a.lost()->exit_code == 67);
  for (const tcp::acceptor* const port : {&first, &second}) {
    const std::string number = std::to_string(port->local_endpoint().port());
    REQUIRE(a.lost()->reason.find(number + " by whoever has " + number) != std::string::npos);
  }
}

TEST_CASE("an agent whose port was taken hosts after all when its holder goes without an answer", "[net][attach]") {
  asio::io_context loop;
  auto former = std::make_unique<tcp::acceptor>(loop, tcp::endpoint{asio::ip::address_v4::loopback(), 0});
  const Port port{former->local_endpoint().port()};
  Agent a{[&](AgentLink::Handler handler) {
    return attach(loop, {.run_id = RunId{"job"}, .endpoint = Endpoint{"127.0.0.1", port}, .join_timeout = 60s},
                  std::move(handler));
  }};
  a.link->send(join_of("a", {}));
  REQUIRE_FALSE(run_until(
      loop, [&] { return a.last<HostStore>() != nullptr; }, 100ms));
  former.reset();
  REQUIRE(run_until(loop, [&] { return a.last<HostStore>() != nullptr; }));
}

TEST_CASE("an agent that must host waits a little for its port", "[net][attach]") {
  asio::io_context loop;
  auto former = std::make_unique<tcp::acceptor>(loop, tcp::endpoint{asio::ip::address_v4::loopback(), 0});
  const Endpoint endpoint{"127.0.0.1", Port{former->local_endpoint().port()}};
  Agent a{[&](AgentLink::Handler handler) {
    return attach(loop, {.run_id = RunId{"job"}, .endpoint = endpoint, .is_host = true}, std::move(handler));
  }};
  a.link->send(join_of("a", {}));
  const auto told_why = [&] {
    return std::any_of(a.heard.begin(), a.heard.end(), [&](const LinkEvent& event) {
      const auto* message = std::get_if<CoordinatorMessage>(&event);
      const auto* waiting = message ? std::get_if<Waiting>(message) : nullptr;
      return waiting && waiting->roster.find(to_string(endpoint)) != std::string::npos;
    });
  };
  REQUIRE(run_until(loop, told_why));
  SECTION("which is free again") {
    former.reset();
    REQUIRE(run_until(
        loop, [&] { return a.last<HostStore>() != nullptr; }, 3s));
  }
  SECTION("which somebody keeps") {
    REQUIRE(run_until(loop, [&] { return a.lost() != nullptr; }));
    REQUIRE(a.lost()->exit_code == 67);
    REQUIRE(a.lost()->reason == "the rendezvous cannot be hosted here: cannot listen on " + to_string(endpoint) +
                                    ": Address already in use");
  }
  SECTION("or whose user gives up") {
    a.link->send(Leave{.exit_code = 130, .reason = "SIGINT"});
    REQUIRE(run_until(
        loop, [&] { return a.last<End>() != nullptr; }, 4s));
    REQUIRE_FALSE(run_until(
        loop, [&] { return a.lost() != nullptr; }, 500ms));
  }
}

TEST_CASE("an agent that hosts gives newcomers the descriptors of agents that do not join", "[net][attach]") {
  const Port port = free_port();
  const pid_t crowd = ::fork();
  if (crowd == 0) ::_exit(play_crowd(port));
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = before;
  few.rlim_cur = 256;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  std::vector<UniqueFd> others;  // an agent has pipes and files of its workers open
  for (int i = 0; i < 60; ++i) others.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  asio::io_context loop;
  int status = 0;
  {
    Agent a{[&](AgentLink::Handler handler) { return host_at(loop, port, std::move(handler)); }};
    a.link->send(join_of("a", {.min_nodes = 2, .max_nodes = 2}));
    const bool ended = run_until(
        loop, [&] { return ::waitpid(crowd, &status, WNOHANG) == crowd; }, 25s);
    if (!ended) ::kill(crowd, SIGKILL), ::waitpid(crowd, &status, 0);
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 5);
}

TEST_CASE("an agent that hosts has torchupd's pages", "[net][attach]") {
  asio::io_context loop;
  const Port port = free_port();
  Agent a{[&](AgentLink::Handler handler) { return host_at(loop, port, std::move(handler)); }};
  a.link->send(join_of("a", {.min_nodes = 2, .max_nodes = 2}));
  REQUIRE(run_until(loop, [&] { return !a.heard.empty(); }));  // it waits for the other
  const std::string health = page(loop, port, "/healthz"), status = page(loop, port, "/status");
  REQUIRE(health.starts_with("HTTP/1.1 200 "));
  REQUIRE(health.ends_with("\r\n\r\nok\n"));
  REQUIRE(status.starts_with("HTTP/1.1 200 "));
  REQUIRE(status.find(R"("host":"a")") != std::string::npos);
  REQUIRE(page(loop, port, "/metrics").find("\ntorchup_store_connections 0\n") != std::string::npos);
  REQUIRE(page(loop, port, "/nothing").starts_with("HTTP/1.1 404 "));
}

TEST_CASE("an agent that gets no thread for a look-up tries again", "[net][attach]") {
  asio::io_context loop;
  const Port port = free_port();
  std::optional<test::NoThreads> none{std::in_place};
  const auto endpoint = Endpoint{"127.0.0.1", port};
  Agent a{[&](AgentLink::Handler handler) {
    return attach(loop, {.run_id = RunId{"job"}, .endpoint = endpoint, .is_host = false}, std::move(handler));
  }};
  a.link->send(join_of("a", {.min_nodes = 2, .max_nodes = 2}));
  REQUIRE_FALSE(run_until(
      loop, [&] { return a.lost() != nullptr; }, 200ms));
  none.reset();
  Agent host{[&](AgentLink::Handler handler) { return host_at(loop, port, std::move(handler)); }};
  host.link->send(join_of("host", {.min_nodes = 2, .max_nodes = 2}));
  REQUIRE(run_until(loop, [&] { return a.last<HostStore>() || host.last<HostStore>(); }));
}

TEST_CASE("one node needs no socket", "[net][attach]") {
  asio::io_context loop;
  Agent a{[&](AgentLink::Handler handler) { return attach(loop, {.run_id = RunId{"job"}}, std::move(handler)); }};
  a.link->send(join_of("a", {}));
  REQUIRE(run_until(loop, [&] { return a.last<HostStore>() != nullptr; }));
  a.link->send(StoreReady{Round{0}, Port{1}});
  REQUIRE(run_until(loop, [&] { return a.last<Placed>() != nullptr; }));
  REQUIRE(a.last<Placed>()->placement.master_addr == "127.0.0.1");
}

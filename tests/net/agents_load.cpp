// Many agents at once, from one process: they connect, join one job, and are placed. Prints one line of JSON: seconds
// from the first connection to the last placement, and what one agent sent and received for it.
//
//   agents_load ADDRESS PORT AGENTS [RANKS_PER_AGENT]
//   agents_load ADDRESS PORT AGENTS RANKS_PER_AGENT end|silence COUNT [LEASE_S]
//   agents_load ADDRESS PORT AGENTS RANKS_PER_AGENT hold [RUN_ID]
//
// The third form prints its line and stays, until stdin or the job ends: its agents send keep-alives each second, with
// reports of workers that take three steps a second, as often as agents do.
//
// The second form then loses COUNT agents, one after the other: the connection of each ends, or it falls silent (lease
// 1 s unless another is given, keep-alives every fifth of it). The line then also has for each loss the seconds until
// the last of the others, which join again as soon as they are told to stop, has its new place.
//
// Every placement is checked: group ranks and first ranks are unique and dense. Waiting lines are counted apart, since
// they depend on time.

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/core/link/agent_codec.hpp"
#include "rendezvous/core/link/operations_pacing.hpp"
#include "rendezvous/core/ops/time_ledger.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

using namespace torchup;

namespace {

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "agents_load: %s\n", what.c_str());
  std::exit(1);
}

struct Agent {
  UniqueFd socket;
  std::string input, join;
  bool connected = false;
  bool placed = false;  ///< in the round that is being formed
  bool lost = false;
  ReportPacing reports = {};
};

/// What is done once all are placed.
struct Then {
  int losses = 0;       ///< so many are lost, one after the other
  bool silent = false;  ///< not by the end of their connections
  bool hold = false;    ///< all stay
  int lease_s = 1;      ///< of those who may fall silent
  std::string run_id = "load";
};

using Clock = std::chrono::steady_clock;

struct Totals {
  std::uint64_t sent_bytes = 0, sent_frames = 0, received_bytes = 0, received_frames = 0, waiting_frames = 0;
};

class Load {
 public:
  Load(const std::string& address, std::uint16_t port, int agents, int ranks, Then then)
      : agents_(static_cast<std::size_t>(agents)), ranks_{ranks}, then_{std::move(then)}, epoll_{epoll_create1(
                                                                                              EPOLL_CLOEXEC)} {
    address_.sin_family = AF_INET;
    address_.sin_port = htons(port);
    if (inet_pton(AF_INET, address.c_str(), &address_.sin_addr) != 1) die("a numeric IPv4 address is needed");
    if (then_.losses < 0 || then_.losses >= agents) die("there must be fewer losses than agents");
    terms_.max_nodes = agents;
    terms_.min_nodes = agents - then_.losses;
    // Without keep-alives the lease must outlast the run, and a round waits for whoever is silent.
    terms_.lease = then_.silent ? Duration{std::chrono::seconds{then_.lease_s}} : std::chrono::minutes{2};
    if (then_.silent) alive_interval_ = terms_.lease / 5;
    if (then_.hold) alive_interval_ = std::chrono::seconds{1};
    group_ranks_.resize(agents_.size());
  }

  void run() {
    const auto begin = std::chrono::steady_clock::now();
    // As a cluster's agents do, all come at once; only so many handshakes are under way as the backlog takes.
    while (placed_ < agents_.size()) {
      while (begun_ < agents_.size() && begun_ - connected_ < handshakes_max) start(begun_++);
      wait();
      if (std::chrono::steady_clock::now() - begin > std::chrono::minutes{2})
        die("not all were placed within two minutes");
    }
    began_ = Clock::now();
    const std::chrono::duration<double> took = began_ - begin;
    check_all_taken();
    const Totals joining = totals_;
    std::string seconds;
    for (int number = 0; number < then_.losses; ++number) {
      seconds +=
          fmt::format("{}{:.6f}", number == 0 ? "" : ", ", lose(agents_.size() - 1 - static_cast<std::size_t>(number)));
    }
    totals_ = joining;
    std::printf(
        "{\"agents\": %zu, \"ranks\": %zu, \"seconds\": %.4f, \"sent_bytes\": %llu, \"sent_frames\": %llu, "
        "\"received_bytes\": %llu, \"received_frames\": %llu, \"waiting_frames\": %llu, \"losses\": [%s]}\n",
        agents_.size(), agents_.size() * static_cast<std::size_t>(ranks_), took.count(), number(totals_.sent_bytes),
        number(totals_.sent_frames), number(totals_.received_bytes), number(totals_.received_frames),
        number(totals_.waiting_frames), seconds.c_str());
    std::fflush(stdout);
    if (then_.hold) hold();
  }

 private:
  static constexpr std::size_t handshakes_max = 256;
  static unsigned long long number(std::uint64_t value) { return value; }

  void check_all_taken() const {
    for (std::size_t group_rank = 0; group_rank < agents_.size() - lost_; ++group_rank) {
      if (!group_ranks_[group_rank]) die("a group rank was given to nobody");
    }
  }

  void hold() {
    char ignored[256];
    while (!over_) {
      wait(20);
      pollfd input{STDIN_FILENO, POLLIN, 0};
      if (::poll(&input, 1, 0) > 0 && ::read(STDIN_FILENO, ignored, sizeof ignored) <= 0) return;
    }
  }

  /// Of its agent, whose workers began when it was placed.
  NodeReport report_at(TimePoint now) const {
    const auto lasted = now - began_;
    const std::int64_t step = lasted / std::chrono::milliseconds{333};
    NodeReport report;
    report.ranks.assign(static_cast<std::size_t>(ranks_), 'r');
    report.beats = static_cast<std::uint64_t>(step * ranks_);
    report.steps = StepReport{step, step, 3000, lasted % std::chrono::milliseconds{333}};
    report.spent[static_cast<std::size_t>(Spent::useful)] =
        ranks_ * std::chrono::duration_cast<std::chrono::milliseconds>(lasted).count();
    return report;
  }

  /// Seconds from the agent's end, or its last sign of life, to the last of the others' new place.
  double lose(std::size_t index) {
    // A moment of calm, in which the coordinator hears of all.
    const auto calm_until = Clock::now() + std::chrono::milliseconds{700};
    while (Clock::now() < calm_until) wait(1);
    for (Agent& agent : agents_) agent.placed = false;
    group_ranks_.assign(agents_.size(), false);
    placed_ = 0;
    ++lost_;
    Agent& agent = agents_[index];
    agent.lost = true;
    if (then_.silent) send(index, encode(AgentFrame{KeepAlive{++keep_alives_}}), 1);
    const auto begin = Clock::now();
    if (!then_.silent) agent.socket.reset();
    while (placed_ < agents_.size() - lost_) {
      wait(0);  // asleep we would have to be woken by the coordinator, as no agent on another machine has
      if (Clock::now() - begin > std::chrono::seconds{30}) die("not all were placed again within 30 s");
    }
    const std::chrono::duration<double> took = Clock::now() - begin;
    check_all_taken();
    return took.count();
  }

  /// Of all who should give signs of life, those whose turn it is: they are spread over the interval.
  void keep_alive() {
    if (alive_interval_ == Duration{0}) return;
    const TimePoint now = Clock::now();
    const auto slot = static_cast<std::size_t>((now - origin_) * static_cast<int>(agents_.size()) / alive_interval_);
    if (alive_slot_ == 0) alive_slot_ = slot;
    for (std::size_t turns = 0; alive_slot_ < slot && turns < agents_.size(); ++alive_slot_, ++turns) {
      const std::size_t index = alive_slot_ % agents_.size();
      Agent& agent = agents_[index];
      if (!agent.connected || agent.lost) continue;
      KeepAlive alive{.number = ++keep_alives_};
      if (then_.hold && began_ != TimePoint{}) {
        agent.reports.set(report_at(now));
        alive.node = agent.reports.take(static_cast<int>(agents_.size()), now);
      }
      send(index, encode(AgentFrame{std::move(alive)}), 1);
    }
    alive_slot_ = slot;
  }

  void start(std::size_t index) {
    Agent& agent = agents_[index];
    agent.socket = UniqueFd{::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    if (!agent.socket) die(std::string{"socket: "} + std::strerror(errno));
    const int one = 1;
    ::setsockopt(agent.socket.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLET, .data = {.u64 = index}};
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, agent.socket.get(), &event);
    if (::connect(agent.socket.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_) != 0 &&
        errno != EINPROGRESS) {
      die(std::string{"connect: "} + std::strerror(errno));
    }
  }

  void wait(int milliseconds = 1000) {
    keep_alive();
    epoll_event events[512];
    const int count = ::epoll_wait(epoll_.get(), events, 512, then_.silent ? std::min(milliseconds, 1) : milliseconds);
    for (int i = 0; i < count; ++i) {
      const std::size_t index = events[i].data.u64;
      Agent& agent = agents_[index];
      if (!agent.connected && (events[i].events & EPOLLOUT) != 0) {
        agent.connected = true;
        ++connected_;
        greet(index);
      }
      if ((events[i].events & EPOLLIN) != 0) read(index);
    }
  }

  void greet(std::size_t index) {
    // Names of one length, so that the bytes of a join do not depend on the number of agents.
    char name[16];
    std::snprintf(name, sizeof name, "node%06zu", index);
    Join join;
    join.node = NodeId{name};
    join.host = name;
    join.addresses = {"10.123.123.123"};
    join.local_world_size = ranks_;
    join.terms = terms_;
    send(index,
         std::string{agent_preface} + encode(AgentFrame{Hello{.run_id = RunId{then_.run_id}}}) +
             encode(AgentFrame{join}),
         2);
    agents_[index].join = encode(AgentFrame{join});
  }

  void send(std::size_t index, const std::string& bytes, std::uint64_t frames) {
    if (::send(agents_[index].socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(bytes.size())) {
      die(std::string{"send: "} + std::strerror(errno));
    }
    totals_.sent_bytes += bytes.size();
    totals_.sent_frames += frames;
  }

  void read(std::size_t index) {
    Agent& agent = agents_[index];
    char buffer[4096];
    for (;;) {
      const ssize_t got = ::recv(agent.socket.get(), buffer, sizeof buffer, 0);
      if (got < 0 && errno == EAGAIN) break;
      if (got <= 0 && over_) break;
      if (got <= 0) die("the coordinator closed a connection");
      agent.input.append(buffer, static_cast<std::size_t>(got));
      if (static_cast<std::size_t>(got) < sizeof buffer) break;  // all that there was
    }
    std::string_view input = agent.input;
    for (;;) {
      const std::size_t before = input.size();
      const auto frame = take_coordinator_frame(input);
      if (!frame) die(frame.error().message());
      if (!frame->has_value()) break;
      if (std::get_if<KeepAliveAnswer>(&**frame)) continue;
      if (std::get_if<Waiting>(&**frame)) {
        ++totals_.waiting_frames;
        continue;
      }
      totals_.received_bytes += before - input.size();
      ++totals_.received_frames;
      hear(index, **frame);
    }
    agent.input.erase(0, agent.input.size() - input.size());
  }

  void hear(std::size_t index, const CoordinatorFrame& frame) {
    if (const auto* refused = std::get_if<Refused>(&frame)) die("refused: " + refused->reason);
    if (const auto* host = std::get_if<HostStore>(&frame))
      send(index, encode(AgentFrame{StoreReady{host->round, Port{29500}}}), 1);
    if (std::get_if<StopWorkers>(&frame) && !agents_[index].lost) send(index, agents_[index].join, 1);
    if (std::get_if<End>(&frame)) over_ = true;
    const auto* placed = std::get_if<Placed>(&frame);
    if (agents_[index].lost || !placed || std::exchange(agents_[index].placed, true)) return;
    const auto group_rank = static_cast<std::size_t>(placed->placement.group_rank.value());
    if (group_rank >= agents_.size() || group_ranks_[group_rank]) die("a group rank was given twice");
    if (placed->placement.first_rank.value() != placed->placement.group_rank.value() * ranks_) die("ranks have gaps");
    group_ranks_[group_rank] = true;
    ++placed_;
  }

  std::vector<Agent> agents_;
  std::vector<bool> group_ranks_;
  int ranks_;
  Then then_;
  UniqueFd epoll_;
  sockaddr_in address_{};
  JobTerms terms_;
  Totals totals_;
  std::size_t begun_ = 0, connected_ = 0, placed_ = 0, lost_ = 0;
  std::uint64_t keep_alives_ = 0;
  Duration alive_interval_{0};  ///< 0: nobody gives signs of life
  TimePoint origin_ = Clock::now();
  std::size_t alive_slot_ = 0;
  TimePoint began_{};
  bool over_ = false;  ///< the job
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view how = argc > 5 ? argv[5] : "";
  const bool loses = how == "end" || how == "silence";
  if (argc < 4 || argc > 8 || (argc > 5 && !loses && how != "hold") || (loses && argc < 7) || (!loses && argc > 7)) {
    die("usage: agents_load ADDRESS PORT AGENTS [RANKS_PER_AGENT [end|silence COUNT [LEASE_S] | hold [RUN_ID]]]");
  }
  Then then{.losses = loses ? std::atoi(argv[6]) : 0, .silent = how == "silence", .hold = how == "hold"};
  if (then.hold && argc > 6) then.run_id = argv[6];
  if (argc > 7 && (then.lease_s = std::atoi(argv[7])) < 1) die("a lease is at least a second");
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  Load load{argv[1], static_cast<std::uint16_t>(std::atoi(argv[2])), std::atoi(argv[3]),
            argc > 4 ? std::atoi(argv[4]) : 8, std::move(then)};
  load.run();
}

// The round machine under simulated time, clocks and networks. Nothing here sleeps or opens anything.
//
//   rendezvous_simulation histories COUNT [SEED]   random histories of 2 to 8 agents, checked against invariants
//   rendezvous_simulation keep-alives AGENTS MINUTES
//                                                  keep-alives once a second, 1 % of the agents leave and return each
//                                                  minute
//
// A history that breaks an invariant is named by its seed; running with COUNT 1 and that seed shows it again, with -v
// in full.

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/core/job_codec.hpp"
#include "rendezvous/core/rendezvous.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

bool verbose = false;
std::uint64_t current_seed = 0;

void check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(current_seed), what.c_str());
  std::exit(1);
}

/// One job, its coordinator, a network that delays, cuts and swallows, and agents that keep to the protocol.
class History {
 public:
  explicit History(std::uint64_t seed) : random_{seed} {
    terms_.min_nodes = pick(1, 4);
    terms_.max_nodes = terms_.min_nodes + pick(0, 4);
    if (terms_.min_nodes % 2 == 0 && pick(0, 4) == 0) terms_.nodes_multiple_of = 2;
    terms_.max_restarts = pick(0, 3);
    terms_.join_timeout = 60s;
    terms_.last_call = 2s;
    terms_.lease = 2s;
    max_size_ = terms_.max_nodes - terms_.max_nodes % terms_.nodes_multiple_of;
    const int nodes = std::min(8, terms_.max_nodes + pick(0, 1));
    for (int node = 0; node < nodes; ++node) start_agent("host" + std::to_string(node), at(pick(0, 3000)));
    for (int fault = pick(0, 6); fault > 0; --fault) plan_fault();
    if (pick(0, 1) == 0) {
      for (int restart = pick(1, 2); restart > 0; --restart) plan_restart();
    }
    save();
    schedule(at(faults_end_ms), [this] { calm(); });
    schedule(at(finish_ms), [this] { finish_allowed_ = true; });
  }

  void run() {
    while (!events_.empty() && events_.top().time <= at(end_ms)) {
      const Event event = events_.top();
      events_.pop();
      // The shell wakes at each deadline.
      for (auto due = deadline(); due && *due < event.time; due = deadline()) {
        now_ = std::max(now_, *due);
        step(Tick{});
      }
      now_ = event.time;
      event.what();
    }
    check_end();
  }

 private:
  static constexpr int faults_end_ms = 20'000;
  static constexpr int finish_ms = 40'000;
  static constexpr int end_ms = 140'000;  // a join timeout after that, and then some

  struct Agent {
    std::string host;
    int life = 0;
    int incarnation = 0;
    bool running = true;   ///< the process lives
    bool stopped = false;  ///< SIGSTOP
    bool cut_off = false;  ///< what it sends and is sent is swallowed
    std::optional<Peer> peer;
    std::uint64_t line = 0;  ///< which of its connections; older ones are dead
    bool told = false;       ///< it has joined in this incarnation
    bool joined = false;
    Resume::Stage stage = Resume::Stage::ready;
    std::optional<Placement> placement;
    std::optional<StoreReady> store;
    WorkersFailed failed;
    bool has_workers = false;
    TimePoint heard_of{};
    std::optional<TimePoint> broke_at;
    TimePoint out_since{};
    bool refused = false;  ///< the last attempt to connect found nobody listening
    std::optional<TimePoint> refused_at, returned_at;
    std::optional<Verdict> verdict;
    std::optional<int> job;  ///< the one that it was first heard in; a run id may have several, one after the other
    bool left = false;
    std::vector<std::function<void()>> unread;  ///< what arrives while it is stopped
  };
  struct Event {
    TimePoint time;
    std::uint64_t order;
    std::function<void()> what;
    bool operator<(const Event& other) const { return std::tie(time, order) > std::tie(other.time, other.order); }
  };

  static TimePoint at(int milliseconds) { return TimePoint{} + std::chrono::milliseconds{milliseconds}; }
  int pick(int least, int most) { return std::uniform_int_distribution<int>{least, most}(random_); }
  void schedule(TimePoint time, std::function<void()> what) { events_.push({time, order_++, std::move(what)}); }
  void after(Duration delay, std::function<void()> what) { schedule(now_ + delay, std::move(what)); }
  Duration latency() { return std::chrono::microseconds{pick(50, 20'000)}; }
  void say(const std::string& line) const {
    if (verbose) std::printf("%8.3f %s\n", std::chrono::duration<double>(now_ - TimePoint{}).count(), line.c_str());
  }

  // ---- coordinator's side

  std::optional<TimePoint> deadline() const { return rendezvous_ ? rendezvous_->deadline() : std::nullopt; }

  /// As the shell keeps it: nothing is told that is not saved, the rest is saved now and then.
  void save() { saved_ = encode_job({RunId{"job"}, rendezvous_->snapshot(now_)}); }

  /// kill -9 of the coordinator, and its next life.
  void plan_restart() {
    schedule(at(pick(0, faults_end_ms - 7000)), [this] {
      if (!rendezvous_) return;
      say("the coordinator is killed");
      rendezvous_.reset();
      agent_of_.clear();
      open_.clear();
      for (std::size_t index = 0; index < agents_.size(); ++index) {
        Agent& agent = *agents_[index];
        if (!agent.running || agent.verdict || !agent.peer) continue;
        agent.peer.reset();
        ++agent.line;
        agent.out_since = now_;
        if (pick(0, 2) == 0) agent.broke_at = now_;  // a reset, not an end of file
        if (agent.cut_off || agent.stopped) {
          reconnect(index);
        } else {
          attempt_refused(index);
        }
      }
      after(std::chrono::milliseconds{pick(1, 5000)}, [this] {
        say("the coordinator starts again");
        const auto saved = decode_job(saved_);
        check(saved.has_value() && encode_job(*saved) == saved_, "the saved job cannot be read back");
        rendezvous_.emplace(RendezvousSettings{}, saved->snapshot, now_);
        check(rendezvous_->snapshot(now_) == saved->snapshot, "the restored job is another one");
      });
    });
  }
  void attempt_refused(std::size_t index) {
    Agent& agent = *agents_[index];
    agent.refused = true;
    agent.refused_at = now_;
    agent.returned_at.reset();
    agent.broke_at.reset();
    reconnect(index);
  }

  void step(const RendezvousEvent& event) {
    const std::uint64_t revision = rendezvous_->revision();
    const JobSnapshot before = rendezvous_->snapshot(now_);
    std::vector<RendezvousAction> actions = rendezvous_->step(event, now_);
    check(rendezvous_->revision() != revision || rendezvous_->snapshot(now_) == before, "a change was not counted");
    if (std::any_of(actions.begin(), actions.end(), decides) || pick(0, 3) == 0) save();
    for (RendezvousAction& action : actions) {
      if (auto* note = std::get_if<Note>(&action)) {
        say("    " + to_text(*note));
        if (std::holds_alternative<JobBegunAnew>(*note)) ++job_;
      }
      check(!std::get_if<Refuse>(&action), "an agent that fits was refused");
      auto* tell = std::get_if<Tell>(&action);
      if (!tell) continue;
      const auto found = agent_of_.find(tell->peer);
      // What is told on a connection that the agent has given up is lost.
      if (found == agent_of_.end() || agents_[found->second]->peer != tell->peer) continue;
      deliver(found->second, std::move(tell->message));
    }
  }

  void deliver(std::size_t index, CoordinatorMessage message) {
    Agent& agent = *agents_[index];
    if (const auto* placed = std::get_if<Placed>(&message)) check_placement(placed->placement);
    const std::uint64_t line = agent.line;
    in_order(agent_inbox_[index], [this, index, line, message] {
      Agent& receiver = *agents_[index];
      if (!receiver.running || receiver.line != line || receiver.cut_off) return;
      const auto read = [this, index, line, message] {
        if (agents_[index]->running && agents_[index]->line == line) hear(index, message);
      };
      if (receiver.stopped) {
        receiver.unread.push_back(read);
      } else {
        read();
      }
    });
  }

  /// Bytes of one direction of one agent stay in order.
  void in_order(TimePoint& last, std::function<void()> what) {
    last = std::max(last + 1us, now_ + latency());
    schedule(last, std::move(what));
  }

  // ---- agent's side

  void start_agent(const std::string& host, TimePoint when) {
    const std::size_t index = agents_.size();
    agents_.push_back(std::make_unique<Agent>());
    agent_inbox_.emplace_back();
    coordinator_inbox_.emplace_back();
    agents_.back()->host = host;
    agents_.back()->life = lives_[host]++;
    schedule(when, [this, index] {
      say(agents_[index]->host + " starts");
      if (rendezvous_) {
        connect(index);
      } else {
        ++agents_[index]->line;
        reconnect(index);
      }
      join(index);
      keep_alive(index);
      fence_timer(index);
    });
  }

  void connect(std::size_t index) {
    Agent& agent = *agents_[index];
    ++agent.line;
    const Peer peer{next_peer_++};
    agent.peer = peer;
    agent_of_[peer] = index;
    agent.refused = false;
    if (!agent.returned_at) agent.returned_at = now_;
    if (!agent.placement) agent.heard_of = now_;
    // The connection and what is said first arrive together.
    const std::uint64_t line = agent.line;
    in_order(coordinator_inbox_[index], [this, index, line, peer] {
      if (agents_[index]->line != line || !agents_[index]->running) return;
      step(Connected{peer, "10.0.0.1", "10.0.0.254", false});
      open_.insert(peer);
    });
    if (agent.told) send_event(index, Resumed{peer, restatement(agent)});
    send_keep_alive(index);
  }

  Resume restatement(const Agent& agent) const {
    return {join_of(agent), agent.stage, agent.placement, agent.store, agent.failed};
  }

  Join join_of(const Agent& agent) const {
    Join join;
    join.node = NodeId{agent.host + "_" + std::to_string(agent.life) + "_" + std::to_string(agent.incarnation)};
    join.host = agent.host;
    join.local_world_size = 2;
    join.terms = terms_;
    return join;
  }

  /// What an agent sends is lost when its connection is, or it is cut off.
  void send_event(std::size_t index, RendezvousEvent event) {
    const Agent& agent = *agents_[index];
    if (!agent.peer) return;
    const std::uint64_t line = agent.line;
    in_order(coordinator_inbox_[index], [this, index, line, event = std::move(event)] {
      if (agents_[index]->line != line || !agents_[index]->running || agents_[index]->cut_off) return;
      step(event);
      if (!agents_[index]->job) agents_[index]->job = job_;
    });
  }
  void send(std::size_t index, AgentMessage message) {
    if (agents_[index]->peer) send_event(index, Said{*agents_[index]->peer, std::move(message)});
  }

  void join(std::size_t index) {
    Agent& agent = *agents_[index];
    agent.joined = agent.told = true;
    agent.stage = Resume::Stage::ready;
    agent.placement.reset();
    send(index, join_of(agent));
  }

  /// What an agent does by itself waits while it is stopped.
  void when_awake(std::size_t index, Duration delay, std::function<void()> what) {
    after(delay, [this, index, what = std::move(what)] {
      const Agent& agent = *agents_[index];
      if (!agent.running || agent.verdict) return;
      if (agent.stopped) return when_awake(index, 10ms, what);
      what();
    });
  }

  void send_keep_alive(std::size_t index) {
    const std::uint64_t line = agents_[index]->line;
    const TimePoint sent = now_;
    in_order(coordinator_inbox_[index], [this, index, line, sent] {
      Agent& sender = *agents_[index];
      if (sender.line != line || !sender.running || sender.cut_off) return;
      if (!rendezvous_) return;
      step(Alive{*sender.peer});
      in_order(agent_inbox_[index], [this, index, line, sent] {
        Agent& receiver = *agents_[index];
        if (receiver.line != line || receiver.cut_off || receiver.stopped) return;
        receiver.heard_of = sent;
        receiver.broke_at.reset();
        receiver.refused_at.reset();
      });
    });
  }

  void keep_alive(std::size_t index) {
    Agent& agent = *agents_[index];
    if (!agent.running || agent.verdict) return;
    if (!agent.stopped && agent.peer) send_keep_alive(index);
    after(terms_.lease / 5, [this, index] { keep_alive(index); });
  }

  void fence_timer(std::size_t index) {
    Agent& agent = *agents_[index];
    if (!agent.running || agent.verdict) return;
    if (!agent.stopped) fence_if_due(index);
    after(10ms, [this, index] { fence_timer(index); });
  }

  void fence_if_due(std::size_t index) {
    Agent& agent = *agents_[index];
    TimePoint limit = agent.heard_of + terms_.lease * 9 / 10;
    if (agent.refused_at) {
      TimePoint back_by = *agent.refused_at + RendezvousSettings{}.return_limit * 9 / 10;
      if (agent.returned_at) back_by = std::min<TimePoint>(back_by, *agent.returned_at + terms_.lease * 9 / 10);
      limit = std::max(limit, back_by);
    }
    if (agent.refused && !agent.peer) limit = agent.out_since + RendezvousSettings{}.patience;
    if (agent.broke_at)
      limit = std::min<TimePoint>(limit, *agent.broke_at + std::min<Duration>(1s, terms_.lease / 3) * 9 / 10);
    if (!agent.joined || (!agent.placement && !agent.peer) || now_ < limit) return;
    say(agent.host + " fences itself");
    agent.broke_at.reset();
    agent.refused_at.reset();
    if (agent.placement) reincarnate(index);
    break_line(index, true);
    reconnect(index);
  }

  /// Workers are killed at once; the next join is a new node's.
  void reincarnate(std::size_t index) {
    Agent& agent = *agents_[index];
    agent.has_workers = false;
    agent.broke_at.reset();
    ++agent.incarnation;
    agent.told = agent.joined = false;
    agent.stage = Resume::Stage::ready;
    agent.placement.reset();
    agent.store.reset();
    when_awake(index, 20ms, [this, index] {
      if (!agents_[index]->joined) join(index);
    });
  }

  void reconnect(std::size_t index) {
    const std::uint64_t line = agents_[index]->line;
    after(std::chrono::milliseconds{pick(1, 300)}, [this, index, line] {
      const Agent& agent = *agents_[index];
      if (!agent.running || agent.verdict || agent.line != line) return;
      if (agent.cut_off) agents_[index]->refused = false;
      if (agent.cut_off || agent.stopped) return reconnect(index);
      if (!rendezvous_) return attempt_refused(index);
      connect(index);
    });
  }

  /// The coordinator sees the end of the connection, unless the agent is cut off.
  void break_line(std::size_t index, bool end_of_file) {
    Agent& agent = *agents_[index];
    if (!agent.peer) return;
    const Peer peer = *agent.peer;
    agent.peer.reset();
    ++agent.line;
    agent.out_since = now_;
    const bool seen = !agent.cut_off;
    after(seen ? latency() : Duration{terms_.lease * 3}, [this, peer, end_of_file, seen] {
      agent_of_.erase(peer);
      if (open_.erase(peer) && rendezvous_) step(Gone{peer, end_of_file && seen});
    });
  }

  void hear(std::size_t index, const CoordinatorMessage& message) {
    Agent& agent = *agents_[index];
    fence_if_due(index);
    if (const auto* host = std::get_if<HostStore>(&message)) {
      if (!agent.joined) return;
      agent.store = StoreReady{host->round, Port{4000}};
      when_awake(index, std::chrono::milliseconds{pick(0, 50)},
                 [this, index, ready = *agent.store] { send(index, ready); });
    } else if (const auto* placed = std::get_if<Placed>(&message)) {
      if (!agent.joined || agent.stage != Resume::Stage::ready) return;
      agent.placement = placed->placement;
      agent.stage = Resume::Stage::running;
      start_workers(index);
    } else if (const auto* stop = std::get_if<StopWorkers>(&message)) {
      if (stop->cause == StopCause::fenced) return reincarnate(index);
      if (!agent.placement || agent.placement->round != stop->round) return;
      agent.stage = Resume::Stage::stopping;
      const Round round = stop->round;
      const int incarnation = agent.incarnation;
      when_awake(index, std::chrono::milliseconds{pick(0, 500)}, [this, index, round, incarnation] {
        Agent& stopping = *agents_[index];
        if (stopping.incarnation != incarnation || !stopping.placement || stopping.placement->round != round) {
          return;
        }
        stopping.has_workers = false;
        join(index);
      });
    } else if (const auto* end = std::get_if<End>(&message)) {
      agent.has_workers = false;
      agent.verdict = end->verdict;
      say(agent.host + " ends with " + std::to_string(end->verdict.exit_code));
      break_line(index, true);
    }
  }

  void start_workers(std::size_t index) {
    Agent& agent = *agents_[index];
    agent.has_workers = true;
    check_workers(index);
    work(index, agent.placement->round, agent.incarnation);
  }

  /// Workers end well when they may, and sometimes badly before.
  void work(std::size_t index, Round round, int incarnation) {
    after(std::chrono::milliseconds{pick(100, 4000)}, [this, index, round, incarnation] {
      Agent& agent = *agents_[index];
      if (!agent.running || agent.verdict || agent.incarnation != incarnation || !agent.has_workers ||
          agent.stage != Resume::Stage::running || agent.placement->round != round) {
        return;
      }
      if (agent.stopped) return work(index, round, incarnation);
      if (!finish_allowed_ && pick(0, 40) == 0) {
        agent.stage = Resume::Stage::failed;
        agent.failed = {.round = round};
        agent.failed.failures.push_back({.rank = agent.placement->first_rank, .exit_code = 1, .host = agent.host});
        return send(index, agent.failed);
      }
      if (!finish_allowed_) return work(index, round, incarnation);
      agent.has_workers = false;
      agent.stage = Resume::Stage::succeeded;
      send(index, WorkersSucceeded{round});
    });
  }

  // ---- faults

  void plan_fault() {
    const int kind = pick(0, 5);
    const std::size_t index = static_cast<std::size_t>(pick(0, static_cast<int>(agents_.size()) - 1));
    const Duration lasts = std::chrono::milliseconds{pick(10, 6000)};
    schedule(at(pick(0, faults_end_ms - 7000)), [this, kind, index, lasts] {
      Agent& agent = *agents_[index];
      if (!agent.running || agent.verdict) return;
      switch (kind) {
        case 0:
          say(agent.host + " is killed");
          agent.running = agent.has_workers = false;
          break_line(index, pick(0, 1) == 0);
          if (pick(0, 3) > 0) start_agent(agent.host, now_ + lasts);
          return;
        case 1:
          say(agent.host + " is stopped");
          agent.stopped = true;
          after(lasts, [this, index] { wake(index); });
          return;
        case 2:
          say(agent.host + " is cut off");
          agent.cut_off = true;
          after(lasts, [this, index] { restore(index); });
          return;
        case 3:
          say(agent.host + ": its connection breaks");
          agent.broke_at = now_;
          break_line(index, false);
          reconnect(index);
          return;
        case 4:
          if (pick(0, 3) > 0) return;
          say(agent.host + " leaves");
          agent.left = true;
          send(index, Leave{.ends_job = false, .exit_code = 143, .reason = "terminated"});
          return;
        default:
          say("a further node comes");
          start_agent("new" + std::to_string(agents_.size()), now_);
      }
    });
  }

  void wake(std::size_t index) {
    Agent& agent = *agents_[index];
    if (!agent.running || !std::exchange(agent.stopped, false)) return;
    say(agent.host + " goes on");
    fence_if_due(index);  // before anything that lies unread
    for (const auto& read : std::exchange(agent.unread, {})) read();
  }
  void restore(std::size_t index) {
    Agent& agent = *agents_[index];
    if (!std::exchange(agent.cut_off, false) || !agent.running || agent.verdict) return;
    say(agent.host + " is back on the network");
    // What was sent meanwhile is lost with the old connection, as after a retransmission timeout.
    if (!agent.peer) return;
    agent.broke_at = now_;
    break_line(index, false);
    reconnect(index);
  }
  void calm() {
    for (std::size_t index = 0; index < agents_.size(); ++index) {
      wake(index);
      restore(index);
    }
  }

  // ---- what must hold

  void check_placement(const Placement& placement) {
    check(placement.group_world_size >= terms_.min_nodes && placement.group_world_size <= terms_.max_nodes &&
              placement.group_world_size % terms_.nodes_multiple_of == 0,
          "a round of " + std::to_string(placement.group_world_size) + " nodes");
    check(placement.world_size == 2 * placement.group_world_size, "the world size does not add up");
    check(placement.first_rank.value() == 2 * placement.group_rank.value(), "ranks are not dense");
    check(placement.group_rank.value() < placement.group_world_size, "a group rank beyond the round");
    check(placement.restart_count <= terms_.max_restarts, "more restarts than allowed");
    check(placement.round >= newest_round_, "round numbers go back");
    newest_round_ = placement.round;
  }

  /// When workers of a round start, no agent that can act has workers of another one, and no rank is taken twice.
  void check_workers(std::size_t index) {
    const Placement& mine = *agents_[index]->placement;
    for (std::size_t other = 0; other < agents_.size(); ++other) {
      const Agent& agent = *agents_[other];
      if (other == index || !agent.has_workers || !agent.running || agent.stopped || !agent.placement) continue;
      check(agent.placement->round == mine.round,
            agent.host + " and " + agents_[index]->host + " have workers of two rounds");
      check(agent.placement->group_rank != mine.group_rank, "one group rank for two nodes");
    }
  }

  void check_end() {
    std::map<int, Verdict> verdicts;  // by job
    int waiting = 0;
    for (const auto& agent : agents_) {
      if (!agent->running) continue;
      if (!agent->verdict) {
        ++waiting;
        continue;
      }
      if (agent->left && agent->verdict->exit_code == 143) continue;  // it has its own
      const Verdict& verdict = verdicts.try_emplace(*agent->job, *agent->verdict).first->second;
      check(verdict == *agent->verdict,
            agent->host + ": two verdicts: " + verdict.reason + " and " + agent->verdict->reason);
    }
    check(waiting == 0, "after all that an agent still waits, in phase " +
                            std::to_string(static_cast<int>(rendezvous_->phase())) + ": " + rendezvous_->roster(now_));
  }

  std::mt19937_64 random_;
  JobTerms terms_;
  int max_size_ = 0;
  std::optional<Rendezvous> rendezvous_{std::in_place};  ///< empty while the coordinator is not running
  std::string saved_;
  TimePoint now_{};
  std::priority_queue<Event> events_;
  std::uint64_t order_ = 0;
  std::uint32_t next_peer_ = 0;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::map<std::string, int> lives_;
  std::vector<TimePoint> agent_inbox_, coordinator_inbox_;
  std::map<Peer, std::size_t> agent_of_;
  std::set<Peer> open_;
  Round newest_round_{0};
  bool finish_allowed_ = false;
  int job_ = 0;  ///< how many have begun after the first
};

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec) + static_cast<double>(usage.ru_utime.tv_usec) / 1e6;
}

int run_histories(int count, std::uint64_t seed) {
  std::printf("histories %d from seed %llu\n", count, static_cast<unsigned long long>(seed));
  for (int i = 0; i < count; ++i) {
    current_seed = seed + static_cast<std::uint64_t>(i);
    History history{current_seed};
    history.run();
  }
  std::printf("all hold; %.1f s CPU\n", cpu_seconds());
  return 0;
}

int run_keep_alives(int agents, int minutes) {
  JobTerms terms;
  terms.min_nodes = agents / 2;
  terms.max_nodes = agents;
  terms.join_timeout = std::chrono::hours{1};
  terms.last_call = 60s;
  RendezvousSettings settings;
  settings.agents_max = agents + 1;
  Rendezvous rendezvous{settings};
  TimePoint now{};

  const auto count = static_cast<std::uint32_t>(agents);
  std::vector<std::uint32_t> life(count, 0);
  std::vector<char> present(count, 0);
  std::vector<std::uint32_t> to_join;  // told to stop; joins a second later
  std::uint64_t keep_alives = 0, messages = 0, rounds = 0, lost = 0;
  std::optional<std::pair<std::uint32_t, Round>> store;

  const auto step = [&](const RendezvousEvent& event) {
    for (const RendezvousAction& action : rendezvous.step(event, now)) {
      const auto* tell = std::get_if<Tell>(&action);
      if (!tell) continue;
      ++messages;
      if (const auto* host = std::get_if<HostStore>(&tell->message)) store = {tell->peer.value(), host->round};
      if (const auto* stop = std::get_if<StopWorkers>(&tell->message)) {
        check(stop->cause != StopCause::fenced, "an agent that kept alive was expelled");
        to_join.push_back(tell->peer.value());
      }
      check(!std::get_if<End>(&tell->message), "the job ended");
    }
  };
  const auto join = [&](std::uint32_t agent) {
    Join said;
    said.node = NodeId{"n" + std::to_string(agent) + "_" + std::to_string(life[agent])};
    said.host = "n" + std::to_string(agent);
    said.local_world_size = 8;
    said.terms = terms;
    step(Said{Peer{agent}, said});
  };
  const auto arrive = [&](std::uint32_t agent) {
    ++life[agent];
    present[agent] = 1;
    step(Connected{Peer{agent}, "10.0.0.1", "10.0.0.2", false});
    join(agent);
  };

  std::mt19937 random{1};
  std::vector<std::uint32_t> away;
  for (std::uint32_t agent = 0; agent < count; ++agent) arrive(agent);
  for (int second = 1; second <= 60 * minutes; ++second) {
    // Keep-alives are spread over the second.
    const Duration gap = std::chrono::nanoseconds{std::chrono::seconds{1}} / agents;
    const TimePoint begin = TimePoint{} + std::chrono::seconds{second};
    for (std::uint32_t agent = 0; agent < count; ++agent) {
      now = begin + agent * gap;
      if (!present[agent]) continue;
      ++keep_alives;
      step(Alive{Peer{agent}});
    }
    for (const std::uint32_t agent : std::exchange(to_join, {})) {
      if (present[agent]) join(agent);
    }
    if (store) {
      const auto [agent, round] = *std::exchange(store, {});
      step(Said{Peer{agent}, StoreReady{round, Port{4000}}});
      ++rounds;
    }
    if (second % 60 == 30) {
      for (int i = 0; i < agents / 100; ++i) {
        const auto agent = static_cast<std::uint32_t>(random() % count);
        if (!std::exchange(present[agent], 0)) continue;
        step(Gone{Peer{agent}, true});
        away.push_back(agent);
        ++lost;
      }
    }
    if (second % 60 == 50) {
      for (const std::uint32_t agent : std::exchange(away, {})) arrive(agent);
    }
  }
  check(rounds >= static_cast<std::uint64_t>(minutes), "too few rounds: the run shows nothing");
  std::printf(
      "%d agents, %d minutes: %llu keep-alives, %llu nodes lost and back, %llu rounds, %llu messages, %.1f s CPU\n",
      agents, minutes, static_cast<unsigned long long>(keep_alives), static_cast<unsigned long long>(lost),
      static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(messages), cpu_seconds());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  std::erase_if(words, [](const std::string& word) { return word == "-v" && (verbose = true); });
  if (words.size() >= 2 && words[0] == "histories") {
    return run_histories(std::stoi(words[1]), words.size() > 2 ? std::stoull(words[2]) : 1);
  }
  if (words.size() == 3 && words[0] == "keep-alives") return run_keep_alives(std::stoi(words[1]), std::stoi(words[2]));
  std::fprintf(stderr, "usage: %s histories COUNT [SEED] | keep-alives AGENTS MINUTES [-v]\n", argv[0]);
  return 2;
}

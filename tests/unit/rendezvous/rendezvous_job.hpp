#pragma once

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <map>
#include <sstream>
#include <string>

#include "rendezvous/core/membership/job_codec.hpp"
#include "rendezvous/core/round/rendezvous.hpp"

/// A round machine with scripted agents, for its tests: whatever it does comes back as text, one line per action.
namespace torchup::rendezvous_job {

using namespace std::chrono_literals;

inline std::string text(const CoordinatorMessage& message) {
  std::ostringstream out;
  if (const auto* host = std::get_if<HostStore>(&message)) out << "host store of round " << host->round.value();
  if (const auto* placed = std::get_if<Placed>(&message)) {
    const Placement& p = placed->placement;
    out << "round " << p.round.value() << ": node " << p.group_rank.value() << " of " << p.group_world_size
        << ", ranks from " << p.first_rank.value() << " of " << p.world_size << ", at " << p.master_addr << ":"
        << p.master_port.value() << ", restarts " << p.restart_count;
  }
  if (const auto* stop = std::get_if<StopWorkers>(&message)) {
    const char* causes[] = {"failure", "membership", "fenced"};
    out << "stop round " << stop->round.value() << " (" << causes[static_cast<int>(stop->cause)]
        << "): " << stop->reason;
  }
  if (const auto* end = std::get_if<End>(&message))
    out << "end " << end->verdict.exit_code << ": " << end->verdict.reason;
  if (const auto* waiting = std::get_if<Waiting>(&message)) out << "waiting: " << waiting->roster;
  return out.str();
}

/// A rendezvous and agents a, b, c, … with one connection each. Every call returns what the coordinator did, one line
/// per action, without its notes.
struct Job {
  explicit Job(JobTerms job_terms, RendezvousSettings settings = {})
      : terms{std::move(job_terms)}, rendezvous{settings} {}

  std::string step(const RendezvousEvent& event) {
    std::string lines;
    for (const RendezvousAction& action : rendezvous.step(event, now)) {
      if (const auto* tell = std::get_if<Tell>(&action))
        lines += name_of.at(tell->peer) + " " + text(tell->message) + "\n";
      if (const auto* refuse = std::get_if<Refuse>(&action)) {
        lines += fmt::format("{} refused {}: {}\n", name_of.at(refuse->peer), refuse->exit_code, refuse->reason);
      }
    }
    return lines;
  }

  Peer connect(const std::string& name, const std::string& observed = "10.0.0.1", bool in_process = false) {
    const Peer peer{next_peer++};
    peer_of.insert_or_assign(name, peer);
    name_of.insert_or_assign(peer, name);
    step(Connected{peer, observed, "10.0.0.254", in_process});
    return peer;
  }
  Join join_of(const std::string& name, int workers = 2) const {
    Join join;
    join.node = NodeId{"node-" + name};
    join.host = name;
    join.local_world_size = workers;
    join.terms = terms;
    return join;
  }
  std::string join(const std::string& name, int workers = 2) {
    if (!peer_of.contains(name)) connect(name);
    return say(name, join_of(name, workers));
  }
  std::string say(const std::string& name, AgentMessage message) {
    return step(Said{peer_of.at(name), std::move(message)});
  }
  std::string gone(const std::string& name, bool end_of_file = true) {
    const Peer peer = peer_of.at(name);
    peer_of.erase(name);
    return step(Gone{peer, end_of_file});
  }
  std::string alive(const std::string& name) { return step(Alive{peer_of.at(name)}); }
  std::string at(TimePoint time) {
    now = time;
    return step(Tick{});
  }
  /// Lets time pass to `time` as a shell does, which wakes at each deadline; all but `silent` stay alive.
  std::string pass(TimePoint time, const std::string& silent = "-") {
    std::string lines;
    while (now < time) {
      TimePoint next = std::min(time, now + terms.lease / 10);
      if (const auto due = rendezvous.deadline(); due && *due < next) next = *due;
      now = next;
      const auto peers = peer_of;
      for (const auto& [name, peer] : peers) {
        if (name != silent) lines += step(Alive{peer});
      }
      lines += step(Tick{});
    }
    return lines;
  }
  std::string fail(const std::string& name, int round, int rank, int exit_code = 3) {
    WorkersFailed failed{.round = Round{round}};
    failed.failures.push_back({.rank = Rank{rank}, .exit_code = exit_code, .host = name});
    return say(name, failed);
  }

  std::string saved() const { return encode_job({RunId{"job"}, rendezvous.snapshot(now)}); }
  /// The coordinator is killed and, after `pause`, started again with what it saved.
  void restart(Duration pause = 1s) { restart_from(saved(), pause); }
  void restart_from(const std::string& saved, Duration pause = 1s) {
    now += pause;
    rendezvous = Rendezvous{RendezvousSettings{}, decode_job(saved)->snapshot, now};
    peer_of.clear();
  }
  std::string resume(const std::string& name, Resume::Stage stage, std::optional<Placement> placement = {}) {
    connect(name);
    return step(Resumed{peer_of.at(name), {.join = join_of(name), .stage = stage, .placement = placement}});
  }
  /// The agent is a new one, or lost its place: it opens a connection and joins, in its `life`th life.
  std::string join_anew(const std::string& name, int life = 0, std::optional<Placement> former = {}) {
    connect(name);
    Join said = join_of(name);
    said.node = NodeId{said.node.value() + "_" + std::to_string(life)};
    said.former = former;
    return say(name, said);
  }
  /// All that are connected hang up.
  void all_gone() {
    const auto peers = peer_of;
    for (const auto& [name, peer] : peers) gone(name);
  }

  JobTerms terms;
  Rendezvous rendezvous;
  TimePoint now{};
  std::uint32_t next_peer = 0;
  std::map<std::string, Peer> peer_of;
  std::map<Peer, std::string> name_of;
};

/// A job of a, b (and c) whose round 0 runs, at time 0.
inline Job running_job(int nodes, JobTerms terms) {
  Job job{std::move(terms)};
  for (int i = 0; i < nodes; ++i) job.join(std::string(1, static_cast<char>('a' + i)));
  if (job.terms.max_nodes > nodes) job.pass(job.now + job.terms.last_call);
  job.say("a", StoreReady{Round{0}, Port{4000}});
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::running);
  return job;
}

inline constexpr TimePoint t0{};

}  // namespace torchup::rendezvous_job

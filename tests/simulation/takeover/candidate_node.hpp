#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../world.hpp"
#include "etcd_model.hpp"
#include "rendezvous/core/link/coordinator_link.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "rendezvous/core/seat/candidacy.hpp"
#include "rendezvous/core/seat/proof.hpp"
#include "wires.hpp"

namespace torchup::simulation {

/// A rule that is switched off, so that histories must find out.
enum class Without : std::uint8_t {
  nothing,
  commit,    ///< decisions are told before they are written
  age,       ///< answers say that their proof is of now
  echo,      ///< what was sent to a member counts as if it had been echoed
  decision,  ///< members prove a round that a decision has ended
  witness,   ///< members are given up though none of the round has come back
  waiting,   ///< who does not come back is given up after a second
  fence,     ///< agents never stop believing
};

class CandidateNode;

/// What all nodes of a history share, and what must hold in it: never workers of two rounds at once on nodes that can
/// act, and one verdict.
struct TakeoverWorld {
  TakeoverWorld(World& the_world, std::size_t count, JobTerms the_terms, Without rule)
      : world{the_world}, etcd{the_world, count}, wires{the_world, count, the_terms.lease + 2s}, terms{std::move(the_terms)},
        without{rule}, working(count) {}

  void workers_start(std::size_t node, Round round);
  void check() const;
  void ends(const Verdict& verdict);

  World& world;
  EtcdModel etcd;
  Wires wires;
  JobTerms terms;
  Without without;
  struct Working {
    std::optional<Round> round = {};
    const Process* process = nullptr;
  };
  std::vector<Working> working;  ///< by node, in truth
  std::vector<CandidateNode*> nodes = {};
  std::optional<Verdict> verdict = {};
  bool workers_may_fail = true, workers_may_finish = false;
  std::uint64_t takeovers = 0, rounds = 0, fences = 0;
};

/// One node's process: an agent that is a candidate too, as launcher and net have it.
class CandidateNode {
 public:
  CandidateNode(TakeoverWorld& around, std::size_t node, int life, double rate);
  void begin();
  void kill();
  void stop() { process_.stop(); }
  void go_on();
  [[nodiscard]] bool alive() const { return process_.alive(); }
  [[nodiscard]] bool over() const { return over_; }
  [[nodiscard]] bool serves() const { return serves_now_ && rendezvous_.has_value(); }
  [[nodiscard]] Process& process() { return process_; }
  [[nodiscard]] std::string name() const;

 private:
  // The agent.
  void step(const link::Event& event);
  void perform(const link::Dial& dial);
  void perform(const link::Write& write);
  void perform(const link::Close& close);
  void perform(const link::SetPatience&) {}
  void perform(const link::Tell& tell);
  void perform(const link::MeetForeigner&) {}
  void perform(const link::NobodyListens&) {}
  void perform(const link::Attends& attends) { seek_later(candidacy::Attached{Term{attends.term}}); }
  void perform(const link::Doubts&) { seek_later(candidacy::Doubted{}); }
  void perform(const link::SawEnd& saw) { seek_later(candidacy::HolderEnded{Term{saw.term}}); }
  void obey(const HostStore& host);
  void obey(const Placed& placed);
  void obey(const StopWorkers& stop);
  void obey(const End& end);
  void obey(const auto&) {}
  void join();
  void work(Round round, int number);
  void end_workers() { around_.working[node_].round.reset(); }

  // The candidate.
  void seek(const candidacy::Event& event);
  void seek_later(candidacy::Event event);
  void perform(const candidacy::Look& look);
  void perform(const candidacy::Grant& grant);
  void perform(const candidacy::Take& take);
  void perform(const candidacy::Renew& renew);
  void perform(const candidacy::Revoke& revoke);
  void perform(const candidacy::Vacate& vacate);
  void perform(const candidacy::Serve& serve);
  void perform(const candidacy::Confirm& confirm) { proof_.seated(confirm.sent); }
  void perform(const candidacy::Yield& yield);
  void perform(const candidacy::Attend& attend);

  // The coordinator.
  struct Session {
    Wires::LinePtr line;
    std::function<void(CoordinatorFrame)> deliver;
    std::optional<Peer> peer = {};
    bool welcome = false;
  };
  void accept(const Wires::LinePtr& line, std::function<void(CoordinatorFrame)> deliver);
  void heard(const Wires::LinePtr& line, const AgentFrame& frame);
  void closed(const Wires::LinePtr& line, bool end_of_file);
  void decide(const RendezvousEvent& event);
  void update_proof();
  void answer(Session& session, const KeepAlive& alive);
  void write(const Session& session, CoordinatorFrame frame);
  void tell(std::vector<RendezvousAction> actions);
  void keep(std::vector<RendezvousAction> actions);
  void save();
  void look_at_state();
  void kept(std::int64_t changed);
  void end_tenure(const Elsewhere& elsewhere);
  [[nodiscard]] std::optional<TimePoint> due() const;

  TakeoverWorld& around_;
  World& world_;
  std::size_t node_;
  int life_;
  Process process_;
  std::optional<CoordinatorLink> link_;
  std::map<LineId, Wires::LinePtr> lines_;
  int workers_number_ = 0;
  bool over_ = false;

  std::optional<Candidacy> candidacy_;
  bool port_open_ = false;
  std::optional<EtcdModel::Seat> former_;
  std::optional<EtcdModel::State> read_;

  bool serves_now_ = false;
  Term term_{0};
  Elsewhere elsewhere_;
  std::optional<Rendezvous> rendezvous_;
  Proof proof_;
  std::optional<Round> proof_round_;
  struct Older {
    bool operator()(const Wires::Line* left, const Wires::Line* right) const { return left->number < right->number; }
  };
  std::map<Wires::Line*, Session, Older> sessions_;
  std::vector<Wires::Line*> by_peer_;
  struct Held {
    std::uint64_t revision;
    std::vector<RendezvousAction> actions;
  };
  std::deque<Held> held_;
  std::uint64_t saved_ = 0, writing_revision_ = 0;
  bool writing_ = false;
  std::string bytes_;
  std::uint64_t serial_ = 0, tenure_ = 0;
  std::int64_t head_ = 0;
};

}  // namespace torchup::simulation

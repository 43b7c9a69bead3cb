#include "rendezvous/core/round/notes.hpp"

#include <catch2/catch.hpp>

using namespace torchup;
using namespace std::chrono_literals;

TEST_CASE("every note of a job is a line that names the node, the number and the reason", "[unit][rendezvous]") {
  const std::pair<Note, std::string> lines[] = {
      {NodeJoined{"n1", 8, 2}, "node n1 joins with 8 workers; nodes: 2"},
      {NodeRefused{"n1", "--nnodes is 2:2 here and 2:4 in the job"},
       "node n1 refused: --nnodes is 2:2 here and 2:4 in the job"},
      {NodePutAside{"n1", 3}, "node n1 was lost 3 times lately: put aside"},
      {NodeUnfit{"n1", "GPU 3 is lost (Xid 79)"}, "node n1 is unfit: GPU 3 is lost (Xid 79)"},
      {NodeCutOff{"n1", 1500ms}, "node n1: the connection broke, it has 1.5 s to come back"},
      {NodeLost{"n1", "has ended"}, "node n1 has ended"},
      {NodesDiffer{"torch: 2 on a; 3 on b"}, "the nodes differ: torch: 2 on a; 3 on b"},
      {RoundFormed{Round{4}, 2, 16, "n0"}, "round 4: 2 nodes, 16 workers; n0 opens the worker store"},
      {RoundStopped{Round{4}, StopCause::worker_failure, "rank 3 on n1 exited with 3"},
       "round 4 ends: rank 3 on n1 exited with 3"},
      {FailureInDoubt{"n2"}, "a worker failed while node n2 is silent: is that the cause?"},
      {RestartGivenBack{"n2"}, "the restart is not counted: node n2 was lost before the failure"},
      {RosterChanged{"1 of 2 nodes: a"}, "waiting: 1 of 2 nodes: a"},
      {JobRestored{Round{7}, 3}, "restored in round 7; nodes that are awaited: 3"},
      {AllBack{}, "all nodes that are left are back"},
      {RoundGoesOn{Round{7}, 3}, "round 7 goes on: all 3 nodes are back"},
      {SnapshotOutdated{"n1", Round{9}}, "node n1 tells of round 9, which the saved state knows nothing of"},
      {CoordinatorSlept{}, "the coordinator was asleep: all agents get a new lease"},
      {TorchrunCame{}, "a torchrun agent has come: the job goes on by torchrun's rules"},
      {JobBegunAnew{}, "the run id is used again: another job begins"},
      {JobEndRequested{"n1", "interrupted"}, "node n1 ends the job: interrupted"},
      {JobConcluded{66, "too few nodes"}, "the job ends with 66: too few nodes"},
      {LookVoid{"a rank has made progress"}, "a look at all ranks tells nothing: a rank has made progress"},
      {HangNoted{64s, "stuck", RankSet{{Rank{3}, Rank{4}}}, "none"},
       "no progress for 64 s: stuck, ranks 3-4; action: none"},
      {HangOver{182s}, "it goes on after 182 s"},
      {StragglerNoted{"rank 3 (nodeb) is late"}, "rank 3 (nodeb) is late"},
      {LateAwaited{{"n3", "n4"}}, "stays a while to tell who comes only now: n3, n4"},
      {OrderReceived{"drain", "user ada (uid 1000)"}, "order by user ada (uid 1000): drain"},
  };
  STATIC_REQUIRE(std::variant_size_v<Note> == std::size(lines));
  for (std::size_t i = 0; i < std::size(lines); ++i) {
    REQUIRE(lines[i].first.index() == i);
    REQUIRE(to_text(lines[i].first) == lines[i].second);
  }
  REQUIRE(to_text(Note{HangNoted{64s, "network", {}, "abort"}}) == "no progress for 64 s: network; action: abort");
}

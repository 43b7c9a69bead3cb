// Whatever agents say: the machine stays whole, counts without overflow, and allocates by no number that it was told.
#include <limits>
#include <random>

#include "rendezvous/core/link/agent_codec.hpp"
#include "rendezvous_job.hpp"

using namespace torchup;
using namespace torchup::rendezvous_job;

namespace {

constexpr int int_max = std::numeric_limits<int>::max();
constexpr int int_min = std::numeric_limits<int>::min();
constexpr std::int64_t long_max = std::numeric_limits<std::int64_t>::max();

Placement place(const std::function<void(Placement&)>& change) {
  Placement made{.round = Round{4}, .group_world_size = 2, .world_size = 4, .role_world_size = 4};
  change(made);
  return made;
}

}  // namespace

TEST_CASE("a place that no job can have is refused, and the job goes on", "[unit][rendezvous]") {
  const std::pair<Placement, std::string> places[] = {
      {place([](Placement& p) { p.restart_count = -1; }), "the restart count is -1"},
      {place([](Placement& p) { p.restart_count = int_max; }), "the restart count is 2147483647"},
      {place([](Placement& p) { p.restart_count = restarts_max + 1; }), "the restart count is 1048577"},
      {place([](Placement& p) { p.membership_changes = int_max; }), "the number of membership changes is 2147483647"},
      {place([](Placement& p) { p.membership_changes = -7; }), "the number of membership changes is -7"},
      {place([](Placement& p) { p.round = Round{long_max}; }), "the round is 9223372036854775807"},
      {place([](Placement& p) { p.round = Round{round_told_max + 1}; }), "the round is 2305843009213693953"},
      {place([](Placement& p) { p.round = Round{-1}; }), "the round is -1"},
      {place([](Placement& p) { p.group_world_size = 0; }), "the group world size is 0"},
      {place([](Placement& p) { p.group_world_size = int_max; }), "the group world size is 2147483647"},
      {place([](Placement& p) { p.group_rank = GroupRank{2}; }), "the group rank is 2"},
      {place([](Placement& p) { p.group_rank = GroupRank{-1}; }), "the group rank is -1"},
      {place([](Placement& p) { p.world_size = int_max; }), "the world size is 2147483647"},
      {place([](Placement& p) { p.world_size = -1; }), "the world size is -1"},
      {place([](Placement& p) { p.first_rank = Rank{int_max}; }), "the first rank is 2147483647"},
      {place([](Placement& p) { p.first_role_rank = Rank{-1}; }), "the first rank of the role is -1"},
      {place([](Placement& p) { p.role_world_size = 5; }), "the role's world size is 5"},
  };
  const auto stage = GENERATE(Resume::Stage::running, Resume::Stage::stopping, Resume::Stage::failed);
  for (const auto& [told, why] : places) {
    CAPTURE(why);
    Job job{{.min_nodes = 2, .max_nodes = 2, .max_restarts = 3}};
    REQUIRE(job.resume("x", stage, told).starts_with("x refused 68: " + why + ", which is not within"));
    REQUIRE(job.join_anew("y", 1, told).starts_with("y refused 68: " + why + ", which is not within"));
    job.gone("x");
    job.gone("y");
    job.join("a");
    REQUIRE(job.join("b") == "a host store of round 0\n");
    // A member that says so is refused as well; it is lost when its connection closes.
    REQUIRE(job.resume("a", stage, told).starts_with("a refused 68"));
  }
}

TEST_CASE("the largest numbers that a job can have are counted with", "[unit][rendezvous]") {
  const Placement largest = place([](Placement& p) {
    p.round = Round{round_told_max};
    p.restart_count = restarts_max;
    p.membership_changes = membership_changes_max;
  });
  Job job{{.min_nodes = 2, .max_nodes = 2, .max_restarts = restarts_max}};
  job.resume("a", Resume::Stage::stopping, largest);
  job.resume("b", Resume::Stage::stopping, largest);
  job.join("b");
  REQUIRE(job.join("a") == "a host store of round 2305843009213693953\n");
  job.say("a", StoreReady{Round{round_told_max + 1}, Port{1}});
  REQUIRE(job.rendezvous.restart_count() == restarts_max);
  job.restart();  // its snapshot is small and readable
  REQUIRE(job.rendezvous.restart_count() == restarts_max);
  REQUIRE(encode_job({RunId{"job"}, job.rendezvous.snapshot(job.now)}).size() < 4096);
}

TEST_CASE("terms, sizes and codes that no job can have are refused", "[unit][rendezvous]") {
  const auto refused = [](const std::function<void(Join&)>& change) {
    Job job{{.min_nodes = 1, .max_nodes = 9}};
    job.connect("x");
    Join join = job.join_of("x");
    change(join);
    const std::string said = job.say("x", join);
    REQUIRE(job.step(Tick{}).empty());
    return said.substr(0, said.find(", which"));
  };
  const auto head = std::string{"x refused 68: "};
  REQUIRE(refused([](Join& j) { j.terms.nodes_multiple_of = 0; }) == head + "--nnodes-multiple-of is 0");
  REQUIRE(refused([](Join& j) { j.terms.min_nodes = 0; }) == head + "the smallest number of nodes is 0");
  REQUIRE(refused([](Join& j) { j.terms.max_nodes = 0; }) == head + "the largest number of nodes is 0");
  REQUIRE(refused([](Join& j) { j.terms.max_restarts = -1; }) == head + "--max-restarts is -1");
  REQUIRE(refused([](Join& j) { j.terms.lease = 99ms; }).starts_with(head + "the lease is 0"));
  REQUIRE(refused([](Join& j) { j.terms.join_timeout = Duration::max(); }).starts_with(head + "the join timeout is"));
  REQUIRE(refused([](Join& j) { j.terms.last_call = -1s; }).starts_with(head + "the last call is"));
  REQUIRE(refused([](Join& j) { j.local_world_size = int_max; }) == head + "the local world size is 2147483647");
  REQUIRE(refused([](Join& j) { j.local_world_size = 0; }) == head + "the local world size is 0");
  REQUIRE(refused([](Join& j) { j.local_world_size = local_workers_max; }).empty());
  REQUIRE(refused([](Join& j) { j.local_world_size = local_workers_max + 1; }) ==
          head + "the local world size is 16385");

  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2});
  REQUIRE(job.say("b", Leave{.exit_code = 256}).starts_with("b refused 68: the exit code is 256"));
  REQUIRE(job.say("b", Leave{.exit_code = 1, .stop_signal = 65}).starts_with("b refused 68: the signal is 65"));
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::running);
}

TEST_CASE("a node id stays on its host", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2, .max_restarts = 2});
  job.fail("b", 0, 2);
  job.pass(job.now + 100ms);
  Join moved = job.join_of("b");
  moved.host = "elsewhere";
  REQUIRE(job.say("b", moved) == "b refused 68: its node id is that of an agent on b\n");
  job.gone("b");
  job.connect("z");
  REQUIRE(job.step(Resumed{job.peer_of.at("z"), {.join = moved}}).find("refused") == std::string::npos);
  job.join("a");
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::hosting);
  SECTION("restated as well") {
    job.connect("y");
    Join again = job.join_of("a");
    again.host = "elsewhere";
    REQUIRE(job.step(Resumed{job.peer_of.at("y"), {.join = again}}) ==
            "y refused 68: its node id is that of an agent on a\n");
  }
}

TEST_CASE("a node id is one agent's, for as long as that is heard", "[unit][rendezvous]") {
  Job job{{.min_nodes = 3, .max_nodes = 3, .lease = 10s}};
  job.join("a");
  const Peer first = job.peer_of.at("a");
  job.connect("twin", "10.0.0.2");
  const Join same = job.join_of("a");
  REQUIRE(job.say("twin", same) ==
          "twin refused 68: its node id node-a is that of an agent that is there, by a connection from 10.0.0.1; this "
          "one comes from 10.0.0.2\n");
  REQUIRE(job.rendezvous.member_count() == 1);
  REQUIRE(job.step(Said{first, same}).empty());  // the same, twice
  SECTION("one whose connection broke comes back by another") { job.gone("a", false); }
  SECTION("one that is silent does, too") { job.pass(job.now + 4s, "a"); }
  REQUIRE(job.say("twin", same).find("refused") == std::string::npos);
  REQUIRE(job.rendezvous.member_count() == 1);
}

TEST_CASE("a node that joins again must still fit", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2, .max_restarts = 2});
  job.fail("b", 0, 2);
  job.pass(job.now + 100ms);
  Join other = job.join_of("b");
  other.terms.lease = 5s;
  REQUIRE(job.say("b", other) == "b refused 68: the lease is 5 s here and 10 s in the job\n");
  other = job.join_of("b");
  other.terms.hang_timeout = {.mode = HangTimeout::Mode::given, .silence = 20s};
  REQUIRE(job.say("b", other) == "b refused 68: --hang-timeout is 20 s here and auto in the job\n");
  other.terms.hang_timeout = {.mode = HangTimeout::Mode::given, .silence = 20s, .start = 300s};
  REQUIRE(job.say("b", other) == "b refused 68: --hang-timeout is 20 s,300 s here and auto in the job\n");
  other.terms.hang_timeout = {.mode = HangTimeout::Mode::off};
  REQUIRE(job.say("b", other) == "b refused 68: --hang-timeout is off here and auto in the job\n");
  other = job.join_of("b");
  other.terms.on_hang = OnHang::abort;
  REQUIRE(job.say("b", other) == "b refused 68: --on-hang is abort here and report in the job\n");
  other = job.join_of("b");
  other.terms.straggler_window = 0s;
  REQUIRE(job.say("b", other) == "b refused 68: --straggler-window is 0 s here and 60 s in the job\n");
}

TEST_CASE("an ended job stays ended, whatever its members say", "[unit][rendezvous]") {
  Job job = running_job(3, {.min_nodes = 3, .max_nodes = 3});
  job.say("a", Leave{.exit_code = 130, .reason = "interrupted"});
  Resume as_another{.join = job.join_of("b"), .stage = Resume::Stage::running, .placement = place([](Placement&) {})};
  job.step(Resumed{job.peer_of.at("a"), as_another});  // one member takes another's connection
  job.say("c", job.join_of("c"));
  job.fail("b", 0, 2);
  job.say("b", WorkersSucceeded{Round{0}});
  job.pass(job.now + 20s, "b");
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::ended);
  REQUIRE(job.rendezvous.verdict()->exit_code == 130);
}

TEST_CASE("what two nodes tell of one round must fit together", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2}};
  const Placement first = place([](Placement&) {});
  job.resume("a", Resume::Stage::running, first);
  const std::string fenced = "b stop round 4 (fenced): its place contradicts what other nodes tell of the round\n";
  const auto second = [&](const std::function<void(Placement&)>& change) {
    Placement told = first;
    told.group_rank = GroupRank{1};
    told.first_rank = Rank{2};
    change(told);
    return job.resume("b", Resume::Stage::running, told);
  };
  REQUIRE(second([](Placement& p) { p.group_rank = GroupRank{0}; }) == fenced);
  REQUIRE(second([](Placement& p) { p.first_rank = Rank{1}; }) == fenced);
  REQUIRE(second([](Placement& p) { p.first_rank = Rank{3}; }) == fenced);
  REQUIRE(second([](Placement& p) { p.world_size = 5; }) == fenced);
  REQUIRE(second([](Placement& p) { p.master_port = Port{9}; }) == fenced);
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::restoring);
  REQUIRE(second([](Placement&) {}).empty());
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::running);
}

TEST_CASE("the least exit code is told as a signal", "[unit][rendezvous]") {
  Job job = running_job(1, {.max_restarts = 1});
  REQUIRE(job.fail("a", 0, 0, int_min).find("was ended by signal 2147483648") != std::string::npos);
}

/// Messages of any kind with numbers from all corners, on connections that come and go, said as any node: after each
/// step what holds of every job holds, and the snapshot reads back.
TEST_CASE("no sequence of messages harms the machine", "[unit][rendezvous]") {
  std::uint64_t rounds = 0, ends = 0, refusals = 0;
  for (std::uint32_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    std::mt19937 random{seed};
    const auto pick = [&](int least, int most) { return std::uniform_int_distribution<int>{least, most}(random); };
    const auto number = [&] {
      static constexpr int corners[] = {int_min, -1, 0, 1, 2, 3, 4, 1 << 20, 1'000'000'000, 1'000'000'001, int_max};
      return pick(0, 3) > 0 ? pick(0, 3) : corners[pick(0, 10)];
    };
    Rendezvous rendezvous{{.agents_max = 6}};
    TimePoint now = t0;
    const JobTerms terms{.min_nodes = pick(1, 2), .max_nodes = 3, .max_restarts = pick(0, 3), .last_call = 1s};
    const auto join = [&] {
      Join made;
      made.node = NodeId{"n" + std::to_string(pick(0, 4)) + "_" + std::to_string(pick(0, 1))};
      made.host = "h" + std::to_string(pick(0, 4));
      if (pick(0, 9) > 0) made.host = "h" + made.node.value().substr(1, 1);
      made.local_world_size = pick(0, 9) > 0 ? 2 : number();
      made.terms = terms;
      if (pick(0, 19) == 0) made.terms.max_nodes = number();
      return made;
    };
    const auto placement = [&] {
      const int size = pick(1, 3), rank = pick(0, size - 1);
      Placement made{.round = Round{pick(0, 3)},
                     .group_rank = GroupRank{rank},
                     .group_world_size = size,
                     .first_rank = Rank{2 * rank},
                     .world_size = 2 * size,
                     .role_world_size = 2 * size};
      made.restart_count = number();
      made.membership_changes = pick(0, 9) > 0 ? 1 : number();
      if (pick(0, 9) == 0) made.round = Round{pick(0, 1) ? long_max : number()};
      if (pick(0, 9) == 0) made.group_world_size = number();
      return made;
    };
    const auto round = [&] { return pick(0, 3) > 0 ? rendezvous.round() : Round{number()}; };
    const auto message = [&]() -> AgentMessage {
      switch (pick(0, 6)) {
        case 0:
          return StoreReady{round(), Port{static_cast<std::uint16_t>(pick(0, 3))}};
        case 1:
          return WorkersFailed{round(), {{.rank = Rank{pick(0, 9)}, .exit_code = pick(-64, 255)}}, pick(0, 3) > 0};
        case 2:
          return WorkersSucceeded{round()};
        case 3:
          if (pick(0, 4) > 0) return StoreReady{rendezvous.round(), Port{1}};
          return Leave{
              .ends_job = pick(0, 3) == 0, .exit_code = pick(0, 9) > 0 ? 1 : number(), .kill_now = pick(0, 1) == 0};
        default: {
          Join made = join();
          if (pick(0, 3) == 0) made.former = placement();
          return made;
        }
      }
    };
    std::vector<bool> open(8, false);
    for (int event = 0; event < 250; ++event) {
      const Peer peer{static_cast<std::uint32_t>(pick(0, 7))};
      std::vector<RendezvousAction> actions;
      if (!open[peer.value()]) {
        open[peer.value()] = true;
        actions = rendezvous.step(Connected{peer, "10.0.0.1", "10.0.0.254"}, now);
      } else if (pick(0, 19) == 0) {
        open[peer.value()] = false;
        actions = rendezvous.step(Gone{peer, pick(0, 1) == 0}, now);
      } else if (pick(0, 5) == 0) {
        Resume resume{.join = join(), .stage = static_cast<Resume::Stage>(pick(0, 4))};
        if (pick(0, 4) > 0) resume.placement = placement();
        if (pick(0, 1) == 0) resume.store = StoreReady{round(), Port{static_cast<std::uint16_t>(pick(0, 3))}};
        if (resume.placement) resume.failed = {resume.placement->round, {{.exit_code = pick(-64, 255)}}, true};
        actions = rendezvous.step(Resumed{peer, resume}, now);
      } else if (pick(0, 5) == 0) {
        now += std::chrono::milliseconds{pick(0, 1) ? pick(0, 50) : pick(0, 20'000)};
        actions = rendezvous.step(Tick{}, now);
      } else {
        actions = rendezvous.step(Said{peer, message()}, now);
      }
      for (const RendezvousAction& action : actions) {
        refusals += std::holds_alternative<Refuse>(action);
        const Tell* tell = std::get_if<Tell>(&action);
        if (!tell) continue;
        REQUIRE(open.at(tell->peer.value()));
        ends += std::holds_alternative<End>(tell->message);
        const Placed* placed = std::get_if<Placed>(&tell->message);
        if (!placed) continue;
        ++rounds;
        const Placement& p = placed->placement;
        REQUIRE(p.group_rank.value() >= 0);
        REQUIRE(p.group_rank.value() < p.group_world_size);
        REQUIRE(p.group_world_size <= terms.max_nodes);
        REQUIRE(p.first_rank.value() >= 0);
        REQUIRE(p.first_rank.value() < p.world_size);
        REQUIRE(p.restart_count >= 0);
        REQUIRE(p.membership_changes >= 0);
      }
      REQUIRE((rendezvous.phase() == Rendezvous::Phase::ended) == rendezvous.verdict().has_value());
      REQUIRE(rendezvous.member_count() <= 6);
      const JobSnapshot snapshot = rendezvous.snapshot(now);
      const auto read = decode_job(encode_job({RunId{"job"}, snapshot}));
      INFO((read ? "" : read.error().context));
      REQUIRE(read.has_value());
      REQUIRE(read->snapshot == snapshot);
      if (event % 50 == 49) {
        rendezvous = Rendezvous{{.agents_max = 6}, snapshot, now};
        REQUIRE(rendezvous.snapshot(now) == snapshot);
        open.assign(8, false);
      }
      (void)rendezvous.roster(now);
      (void)rendezvous.view(now);
    }
  }
  REQUIRE(rounds > 75);
  REQUIRE(ends > 100);
  REQUIRE(refusals > 100);
}

TEST_CASE("a connection speaks for one node at a time", "[unit][rendezvous]") {
  Job job{{.min_nodes = 3, .max_nodes = 3}};
  job.join("x");
  const Placement somewhere = place([](Placement&) {});
  job.step(Resumed{job.peer_of.at("x"),
                   {.join = job.join_of("y"), .stage = Resume::Stage::running, .placement = somewhere}});
  REQUIRE(job.rendezvous.member_count() == 1);
  job.gone("x");
  REQUIRE(job.rendezvous.member_count() == 0);
}

TEST_CASE("what one node says at length is told to the others in short", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .same_world = SameWorld::warn, .hostlist = "a,b"}};
  job.join("a");
  SECTION("why it was refused") {
    const std::size_t held_before = job.rendezvous.held_bytes();
    Join other = job.join_of("x");
    other.terms.hostlist = std::string(64000, 'n');
    job.connect("x");
    REQUIRE(job.say("x", other).starts_with("x refused 68: the host list is nnn"));
    const std::string roster = job.pass(job.now + 2s);
    REQUIRE(roster.find("refused: x (the host list is nnn") != std::string::npos);
    REQUIRE(roster.size() < 1000);
    const auto nodes = job.rendezvous.view(job.now).nodes;
    const auto refused = std::ranges::find(nodes, "refused", &JobView::Node::state);
    REQUIRE(refused != nodes.end());
    REQUIRE(refused->reason.size() == refusal_kept_bytes_max);
    REQUIRE(job.rendezvous.held_bytes() > held_before + refusal_kept_bytes_max - 1);
  }
  SECTION("how it differs") {
    Join other = job.join_of("b");
    for (int i = 0; i < 200; ++i) other.facts.push_back({fmt::format("fact {}", i), std::string(200, 'v')});
    job.connect("b");
    const std::string told = job.say("b", other);
    REQUIRE(told.find("b waiting: warning: the nodes differ: fact 0: ") != std::string::npos);
    REQUIRE(told.size() < 2 * (differences_told_bytes_max + 100));
  }
}

TEST_CASE("an agent of a newer release begins no job that this one does not understand", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2}};
  job.join("a");
  job.gone("a", false);
  Join newer = job.join_of("a");
  newer.node = NodeId{"node-a_2_0"};
  newer.terms.rank_order = RankOrder::unknown;
  job.connect("a");
  REQUIRE(job.say("a", newer).find("a refused 68: this coordinator does not know the order of ranks") == 0);
  REQUIRE(decode_job(job.saved()).has_value());
}

// What people order of a job.
#include "tests/unit/operations/ordering.hpp"

using namespace torchup;
using namespace torchup::rendezvous_job;

TEST_CASE("an order is recorded before anything follows from it", "[unit][orders]") {
  Ordering it = ordering(2, 1, 2);
  const Order order =
      GENERATE(Order{order::Stop{}}, Order{order::Restart{}}, Order{order::Drain{"b"}}, Order{order::Resize{1, 1}});
  REQUIRE(it.order(order));
  const auto* note = std::get_if<Note>(&it.actions.front());
  REQUIRE(note);
  REQUIRE(*note == Note{OrderReceived{std::string{verb_of(order)}, by}});
  REQUIRE(decides(it.actions.front()));
  REQUIRE(it.told() == 2);
}

TEST_CASE("a restart is planned, and costs nothing of the budget", "[unit][orders]") {
  Ordering it = ordering(2, 2, 2);
  REQUIRE(it.order(order::Restart{}));
  REQUIRE(it.stops().size() == 2);
  for (const auto& [name, stop] : it.stops()) {
    REQUIRE(stop == StopWorkers{Round{0}, StopCause::membership_change, "restarted by user ada (uid 1000)", true});
  }
  SECTION("while nodes stop, nothing more can be planned") {
    REQUIRE_FALSE(it.order(order::Restart{}));
    REQUIRE(it.answer.text.find("(phase: gathering)") != std::string::npos);
    REQUIRE_FALSE(it.order(order::Drain{"a"}));
    REQUIRE_FALSE(it.order(order::Resize{1, 2}));
    REQUIRE(it.order(order::Stop{}));
  }
  SECTION("the next round is as good as the first") {
    it.settle();
    REQUIRE(it.job.rendezvous.phase() == Rendezvous::Phase::running);
    REQUIRE(it.view().round == Round{1});
    REQUIRE(it.view().restart_count == 0);
    REQUIRE(it.view().membership_changes == 1);
    for (int failure = 1; failure <= 3; ++failure) {
      it.job.fail("a", failure, 0);
      it.job.pass(it.job.now + 100ms);
      for (const char* name : {"a", "b"}) it.job.join(name);
      it.begin();
    }
    REQUIRE(it.job.rendezvous.phase() == Rendezvous::Phase::running);  // all three restarts were there
  }
}

TEST_CASE("ranks are where they were until there is another round", "[unit][orders]") {
  Ordering it = ordering(2, 1, 3);
  it.job.join("c");  // it stands by
  const std::string both = "a 0, b 2, c -";
  REQUIRE(it.first_ranks() == both);
  SECTION("while workers stop, by plan or for a failure, and behind that") {
    if (GENERATE(false, true)) {
      REQUIRE(it.order(order::Restart{}));
    } else {
      it.job.fail("b", 0, 2);
      it.job.pass(it.job.now + 100ms);
    }
    REQUIRE(it.states() == "a stopping, b stopping, c ready");
    REQUIRE(it.first_ranks() == both);
    it.job.join("a");
    REQUIRE(it.states() == "a ready, b stopping, c ready");
    REQUIRE(it.first_ranks() == both);
    it.job.join("b");
    it.begin();
    REQUIRE(it.first_ranks() == "a 0, b 2, c 4");
  }
  SECTION("also where the coordinator has begun anew and hears of them by those who stop") {
    it.job.rendezvous = Rendezvous{RendezvousSettings{}};
    it.job.peer_of.clear();
    const Placement place{
        .round = Round{0}, .group_rank = GroupRank{1}, .group_world_size = 2, .first_rank = Rank{2}, .world_size = 4};
    it.job.resume("b", Resume::Stage::stopping, place);
    it.job.join("c");
    REQUIRE(it.first_ranks() == "b 2, c -");
  }
  SECTION("and who is taken out has none in the next one") {
    REQUIRE(it.order(order::Drain{"b"}));
    REQUIRE(it.first_ranks() == both);
    it.settle();
    REQUIRE(it.first_ranks() == "a 0, b -, c 2");
  }
}

TEST_CASE("what ends a planned stop early is no reason to end the job", "[unit][orders]") {
  Ordering it = ordering(2, 2, 2);
  const Leave saved{.ends_job = true, .exit_code = 75, .reason = "rank 0 has saved", .stop_signal = 0, .saved = true};
  SECTION("a worker that has saved its state before its agent heard of the stop") {
    it.order(order::Restart{});
    REQUIRE(it.job.say("a", saved).empty());
    it.settle();
    REQUIRE(it.job.rendezvous.phase() == Rendezvous::Phase::running);
  }
  SECTION("also where the coordinator was started again meanwhile") {
    it.order(order::Restart{});
    it.job.restart();
    const Placement place{.round = Round{0}, .group_world_size = 2, .world_size = 4};
    REQUIRE(it.job.resume("a", Resume::Stage::running, place).find("a stop round 0") == 0);
    REQUIRE(it.job.say("a", saved).empty());
    REQUIRE(it.job.rendezvous.phase() == Rendezvous::Phase::gathering);
  }
  SECTION("but without a plan it ends the job") { REQUIRE(it.job.say("a", saved).find("end 75") != std::string::npos); }
  SECTION("and so does a user who has no time") {
    it.order(order::Restart{});
    Leave killed = saved;
    killed.kill_now = true;
    REQUIRE(it.job.say("a", killed).find("end 75") != std::string::npos);
  }
  SECTION("and a planned stop covers its own round alone") {
    it.order(order::Restart{});
    it.settle();
    it.job.fail("b", 1, 2);
    it.job.pass(it.job.now + 100ms);
    REQUIRE(it.job.say("a", saved).find("end 75") != std::string::npos);
  }
}

TEST_CASE("a stop ends the job as it was asked to", "[unit][orders]") {
  Ordering it = ordering(2, 1, 2);
  SECTION("with the code of a signal") {
    REQUIRE(it.order(order::Stop{}));
    REQUIRE(it.view().verdict ==
            Verdict{.exit_code = 143, .reason = "stopped by user ada (uid 1000)", .reporter = "a"});
    SECTION("said twice it is the same; and sooner, where somebody has no time") {
      REQUIRE(it.order(order::Stop{}));
      REQUIRE(it.told() == 0);
      REQUIRE(it.order(order::Stop{.now = true}));
      REQUIRE(it.told() == 2);
      REQUIRE(it.view().verdict->kill_now);
    }
    SECTION("until nobody is there any more") {
      it.job.all_gone();
      REQUIRE_FALSE(it.order(order::Stop{}));
      REQUIRE(it.answer.text.find("(phase: ended)") != std::string::npos);
    }
    SECTION("and nothing else can be ordered then, not even what would change nothing") {
      for (const Order& order : {Order{order::Restart{}}, Order{order::Drain{"a"}}, Order{order::Undrain{"a"}},
                                 Order{order::Resize{1, 1}}, Order{order::Resize{1, 2}}, Order{order::Resize{0, 1}}}) {
        REQUIRE_FALSE(it.order(order));
        REQUIRE(it.answer.text == "the job has ended: stopped by user ada (uid 1000) (phase: ended)");
      }
    }
  }
  SECTION("after its workers have saved, to be started again") {
    REQUIRE(it.order(order::Stop{.save = true}));
    const Verdict verdict = *it.view().verdict;
    REQUIRE((verdict.exit_code == 75 && verdict.stop_signal == 0 && verdict.save));
  }
  SECTION("at once") {
    REQUIRE(it.order(order::Stop{.now = true}));
    REQUIRE(it.view().verdict->kill_now);
  }
  SECTION("who is killed does not save") { REQUIRE_FALSE(it.order(order::Stop{.save = true, .now = true})); }
}

TEST_CASE("nothing is ordered of a job that nobody has joined", "[unit][orders]") {
  Ordering it{Job{elastic(1, 2)}};
  for (const Order& order : {Order{order::Stop{}}, Order{order::Restart{}}, Order{order::Resize{1, 1}}}) {
    REQUIRE_FALSE(it.order(order));
  }
}

TEST_CASE("a drained node has no place until it is undrained", "[unit][orders]") {
  Ordering it = ordering(3, 2, 3);
  const std::string name = GENERATE(as<std::string>{}, "b", "node-b", "1");  // host, node id, group rank
  REQUIRE(it.order(order::Drain{name}));
  REQUIRE(it.stops().size() == 3);
  REQUIRE(it.stops().at("a").reason == "node b is drained by user ada (uid 1000)");
  REQUIRE(it.stops().at("a").save);
  REQUIRE(it.stops().at("b").stands_by);
  REQUIRE_FALSE(it.stops().at("a").stands_by);
  REQUIRE(it.states() == "a stopping, b draining, c stopping");
  it.settle();
  REQUIRE(it.states() == "a seated, b drained, c seated");
  REQUIRE(it.view().world_size == 4);
  REQUIRE(it.view().membership_changes == 1);
  SECTION("not for being there, nor by joining again") {
    it.job.pass(it.job.now + 30s);
    it.job.join("b");
    it.job.pass(it.job.now + 30s);
    REQUIRE(it.view().round == Round{1});
    REQUIRE(it.states() == "a seated, b drained, c seated");
  }
  SECTION("nor as another node, after it lost its place") {
    it.job.gone("b", false);
    it.job.pass(it.job.now + 15s);
    it.job.join_anew("b", 1);
    it.job.pass(it.job.now + 15s);
    REQUIRE(it.view().round == Round{1});
  }
  SECTION("nor when another node is lost: the job waits") {
    it.job.gone("c");
    it.job.join("a");
    REQUIRE(it.job.rendezvous.phase() == Rendezvous::Phase::gathering);
    REQUIRE(it.job.rendezvous.roster(it.job.now).find("drained: b") != std::string::npos);
    REQUIRE(it.job.pass(it.job.now + 61s).find("a end 66") != std::string::npos);
  }
  SECTION("nor by a coordinator that starts again") {
    it.job.restart();
    const Placement place{.round = Round{1}, .group_world_size = 2, .world_size = 4};
    it.job.resume("a", Resume::Stage::running, place);
    it.job.resume("b", Resume::Stage::ready);
    it.job.resume("c", Resume::Stage::running, place);
    it.job.pass(it.job.now + 15s);
    REQUIRE(it.states() == "a seated, b drained, c seated");
  }
  SECTION("drained again it is the same") {
    REQUIRE(it.order(order::Drain{"b"}));
    REQUIRE(it.stops().empty());
  }
  SECTION("then it comes back, by plan") {
    REQUIRE(it.order(order::Undrain{"b"}));
    REQUIRE(it.stops().size() == 2);
    REQUIRE(it.stops().at("c").reason == "node b is undrained by user ada (uid 1000)");
    REQUIRE(it.stops().at("c").save);
    it.settle();
    REQUIRE(it.states() == "a seated, b seated, c seated");
    REQUIRE(it.view().restart_count == 0);
    REQUIRE(it.view().membership_changes == 2);
  }
  SECTION("also of a drained node nothing is ordered when the job has ended") {
    REQUIRE(it.order(order::Stop{}));
    REQUIRE_FALSE(it.order(order::Drain{"b"}));
    REQUIRE(it.answer.text.find("(phase: ended)") != std::string::npos);
  }
  SECTION("that a node which is not drained is undrained changes nothing") {
    REQUIRE(it.order(order::Undrain{"c"}));
    REQUIRE(it.stops().empty());
  }
}

TEST_CASE("an agent that starts again on a drained host is a node like any other", "[unit][orders]") {
  Ordering it{Job{elastic(1, 2)}};
  it.job.join_anew("a");
  it.job.join_anew("b");
  it.begin();
  REQUIRE(it.order(order::Drain{"b"}));
  Join again = it.job.join_of("a");
  again.node = NodeId{"node-a_0"};
  it.job.say("a", again);
  it.job.gone("b");  // its process has ended
  it.begin();
  it.job.connect("b");
  Join other = it.job.join_of("b");
  other.node = NodeId{"another-b_0"};
  it.job.say("b", other);
  it.job.pass(it.job.now + 1s);
  REQUIRE(it.view().membership_changes == 2);  // drained, joining
}

TEST_CASE("who cannot be spared is not drained", "[unit][orders]") {
  SECTION("the job needs it") {
    Ordering it = ordering(2, 2, 3);
    REQUIRE_FALSE(it.order(order::Drain{"b"}));
    REQUIRE(it.answer.text == "the job needs 2 to 3 nodes, and without b it would have 1 (phase: running)");
    REQUIRE(it.states() == "a seated, b seated");
  }
  SECTION("nobody knows it") {
    Ordering it = ordering(2, 1, 2);
    REQUIRE_FALSE(it.order(order::Drain{"z"}));
    REQUIRE_FALSE(it.order(order::Undrain{"7"}));
  }
  SECTION("a node that stands by can always be") {
    Ordering it = ordering(2, 2, 2);
    it.job.join("c");
    REQUIRE(it.order(order::Drain{"c"}));
    REQUIRE(it.stops().empty());
    REQUIRE(it.states() == "a seated, b seated, c drained");
    it.job.gone("b");
    it.job.join("a");
    REQUIRE(it.job.rendezvous.phase() == Rendezvous::Phase::gathering);
  }
  SECTION("its work is done in part") {
    Ordering it = ordering(3, 1, 3);
    it.job.say("a", WorkersSucceeded{Round{0}});
    for (const Order& order :
         {Order{order::Restart{}}, Order{order::Drain{"b"}}, Order{order::Drain{"a"}}, Order{order::Resize{1, 2}}}) {
      REQUIRE_FALSE(it.order(order));
    }
  }
}

TEST_CASE("a node is drained before the round runs", "[unit][orders]") {
  Ordering it{Job{elastic(1, 2)}};
  it.job.join("a");
  it.job.join("b");
  REQUIRE(it.job.rendezvous.phase() == Rendezvous::Phase::hosting);
  REQUIRE(it.order(order::Drain{"a"}));
  REQUIRE(it.stops().empty());
  it.job.pass(it.job.now + 2s);
  it.begin();
  REQUIRE(it.states() == "a drained, b seated");
  REQUIRE(it.view().membership_changes == 0);
}

TEST_CASE("several agents on a host are told apart", "[unit][orders]") {
  Job job{elastic(1, 2)};
  for (const char* name : {"a", "b"}) {
    job.connect(name);
    Join join = job.join_of(name);
    join.host = "h";
    job.say(name, join);
  }
  job.say("a", StoreReady{Round{0}, Port{4000}});
  Ordering it{std::move(job)};
  REQUIRE_FALSE(it.order(order::Drain{"h"}));
  REQUIRE(it.order(order::Drain{"node-b"}));
}

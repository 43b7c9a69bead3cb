#include "rendezvous/core/round/job_watch.hpp"

#include "watched_job.hpp"

using namespace torchup;
using namespace torchup::watched_job;
using namespace std::chrono_literals;

namespace {

const std::string stuck_3 =
    "note: no progress for 64 s: stuck, ranks 3; action: none\n"
    "a found 0 stuck 3, none; looks at 0 1 2 3\nb found 0 stuck 3, none; looks at 2 3\n";

}  // namespace

TEST_CASE("when all are silent all are examined, and all are told the verdict", "[unit][rendezvous][diagnosis]") {
  Watched job;
  REQUIRE(job.report("a", silent(64s)) == "");
  REQUIRE(job.report("b", silent(64s)) == examine_0);
  REQUIRE(job.watch.deadline() == t0 + look_wait_max);
  REQUIRE(job.answer_both(0) == stuck_3);
  REQUIRE(job.watch.deadline() == std::nullopt);
  REQUIRE(job.report("b", silent(1s)) ==
          "note: it goes on after 64 s\na 0 is over after 64 s\nb 0 is over after 64 s\n");
}

TEST_CASE("who does not answer is unknown after five seconds", "[unit][rendezvous][diagnosis]") {
  Watched job;
  REQUIRE(job.report_all(silent(64s)) == examine_0);
  REQUIRE(job.answer("a", 0, {waiting(0), waiting(1)}) == "");
  REQUIRE(job.at(t0 + look_wait_max - 1ns) == "");
  // As far as anybody knows both of b's ranks have not begun what the others wait in; and nobody says that they stand.
  REQUIRE(job.at(t0 + look_wait_max) ==
          "note: no progress for 64 s: busy, ranks 2-3; action: none\n"
          "a found 0 busy 2-3, none; looks at 0 1 2 3\nb found 0 busy 2-3, none; looks at 2 3\n");
  REQUIRE(job.answer("b", 0, {waiting(2), stuck(3)}) == "");
}

TEST_CASE("an action is told with the ranks that each node is to end", "[unit][rendezvous][diagnosis]") {
  JobTerms terms = two_nodes;
  terms.on_hang = OnHang::abort;
  Watched job{2, terms};
  REQUIRE(job.report_all(silent(64s)) == examine_0);
  REQUIRE(job.answer_both(0) ==
          "note: no progress for 64 s: stuck, ranks 3; action: abort\n"
          "a found 0 stuck 3, abort of 3; looks at 0 1 2 3\nb found 0 stuck 3, abort of 3; looks at 2 3\n");
}

TEST_CASE("a node that is told in brief ends its own ranks and hears of the culprits",
          "[unit][rendezvous][diagnosis]") {
  JobTerms terms{.min_nodes = 3, .max_nodes = 3, .on_hang = OnHang::restart, .straggler_window = 0s};
  Watched job{3, terms};
  REQUIRE(job.report_all(silent(64s)) == examine_0 + "c examine 0\n");
  const auto in = [](int rank) { return looks::in(looks::still(rank), "0", "0-5", 7); };
  job.answer("a", 0, {in(0), in(1)});
  job.answer("b", 0, {in(2), looks::at(looks::still(3), "0", "0-5", 6)});
  REQUIRE(job.answer("c", 0, {in(4), in(5)}) ==
          "note: no progress for 64 s: stuck, ranks 3; action: restart\n"
          "a found 0 stuck 3, restart of 3; looks at 0 1 2 3 4 5\n"
          "b found 0 stuck 3, restart of 3; looks at 2 3\n"
          "c found 0 stuck 3, restart; looks at 3 4 5\n");
}

TEST_CASE("a look that sees progress is void, and only the log hears of it", "[unit][rendezvous][diagnosis]") {
  Watched job;
  REQUIRE(job.report_all(silent(64s)) == examine_0);
  job.answer("a", 0, {waiting(0), waiting(1)});
  RankLook progressed = waiting(2);
  progressed.progressed = true;
  REQUIRE(job.answer("b", 0, {progressed, stuck(3)}) ==
          "note: a look at all ranks tells nothing: a rank has made progress\n");
}

TEST_CASE("an attempt's watch ends with its round, and the next begins with nothing", "[unit][rendezvous][diagnosis]") {
  Watched job;
  REQUIRE(job.report_all(silent(64s)) == examine_0);
  const std::string ended = "note: a look at all ranks tells nothing: the attempt has ended\n";
  SECTION("a worker failed") {
    job.job.terms.max_restarts = 0;
    job.job.fail("b", 0, 3);
    REQUIRE(job.step(watch::RoundStepped{}) == "");  // it is not decided yet
    job.job.pass(job.job.now + 100ms);
    REQUIRE(job.step(watch::RoundStepped{}) == ended);
    REQUIRE(job.answer_both(0) == "");
  }
  SECTION("a node was lost, and another comes") {
    const Peer former = job.peer("b");
    job.job.gone("b");
    REQUIRE(job.step(watch::RoundStepped{}) == ended);
    REQUIRE(job.step(watch::Answered{former, {0, "", true}}) == "");
    job.job.join("a");
    job.job.join_anew("b");
    job.job.say("a", StoreReady{Round{1}, Port{4000}});
    REQUIRE(job.job.rendezvous.running() == Round{1});
    REQUIRE(job.step(watch::RoundStepped{}) == "");
    REQUIRE(job.answer_both(0) == "");  // to the look of the round before
    REQUIRE(job.report("a", silent(64s)) == "");
    REQUIRE(job.report("b", silent(64s)) == "a examine 1\nb examine 1\n");
  }
}

TEST_CASE("a coordinator without memory has no watch before the round is whole and all have told",
          "[unit][rendezvous][diagnosis]") {
  const auto place = [](int group_rank) {
    return Placement{Round{5},  GroupRank{group_rank}, 2, Rank{2 * group_rank}, 4, Rank{2 * group_rank}, 4, "10.0.0.1",
                     Port{4000}};
  };
  Job restored{two_nodes};
  restored.resume("a", Resume::Stage::running, place(0));
  REQUIRE(restored.rendezvous.phase() == Rendezvous::Phase::restoring);
  Watched job{std::move(restored)};
  REQUIRE(job.report("a", silent(64s)) == "");
  REQUIRE(job.ask("a") == "");
  job.job.resume("b", Resume::Stage::running, place(1));
  REQUIRE(job.job.rendezvous.phase() == Rendezvous::Phase::running);
  REQUIRE(job.step(watch::RoundStepped{}) == "");
  REQUIRE(job.report("b", silent(64s)) == "");
  REQUIRE(job.report("a", silent(64s)) == examine_0);
}

TEST_CASE("answers of strangers, unasked ones and late ones are passed over", "[unit][rendezvous][diagnosis]") {
  Watched job;
  job.job.connect("x");
  const auto strangers = [&] {
    REQUIRE(job.report("x", silent(0s)) == "");
    REQUIRE(job.answer("x", 0, {stuck(0), stuck(1)}) == "");
    REQUIRE(job.ask("x") == "");
    REQUIRE(job.step(watch::Arrived{job.peer("x"), {encode_window({})}}) == "");
  };
  strangers();
  REQUIRE(job.answer_both(0) == "");  // nobody asked
  REQUIRE(job.step(watch::Arrived{job.peer("a"), {encode_window({})}}) == "");
  REQUIRE(job.report("a", silent(64s)) + job.report("b", silent(64s)) == examine_0);
  strangers();
  REQUIRE(job.answer_both(1) == "");
  REQUIRE(job.watch.held_bytes() == 0);
  REQUIRE(job.answer("a", 0, {waiting(0), waiting(1)}) == "");
  REQUIRE(job.watch.held_bytes() > 0);
  REQUIRE(job.answer_both(0) == stuck_3);
  REQUIRE(job.watch.held_bytes() == 0);
  REQUIRE(job.answer_both(0) == "");
}

TEST_CASE("a member that is no part of the round is none of the watch", "[unit][rendezvous][diagnosis]") {
  Watched job;
  job.job.join("c");  // stands by: the round is full
  REQUIRE(job.step(watch::RoundStepped{}) == "");
  REQUIRE(job.report("a", silent(64s)) + job.report("b", silent(64s)) == examine_0);
  REQUIRE(job.report("c", silent(0s)) == "");
  REQUIRE(job.ask("c") == "");
  REQUIRE(job.answer("c", 0, {stuck(0)}) == "");
  REQUIRE(job.answer_both(0) == stuck_3);
}

TEST_CASE("endless parts of an answer end where an agent of ours ends", "[unit][rendezvous][diagnosis]") {
  JobTerms terms = two_nodes;
  Job large{terms};
  const int workers = static_cast<int>(look_part_bytes_max / (look_bytes_max + 4)) + 1;  // two parts
  large.join("a", workers);
  large.join("b", 2);
  large.say("a", StoreReady{Round{0}, Port{4000}});
  Watched job{std::move(large)};
  REQUIRE(look_parts_max(workers) == 2);
  REQUIRE(job.report_all(silent(64s)) == examine_0);
  REQUIRE(job.answer("b", 0, {looks::still(workers), looks::still(workers + 1)}) == "");
  REQUIRE(job.answer("a", 0, {looks::still(0)}, false) == "");
  SECTION("as many as it may have") { REQUIRE(job.answer("a", 0, {looks::still(1)}, false) != ""); }
  SECTION("one that says it is the last") { REQUIRE(job.answer("a", 0, {}, true) != ""); }
  SECTION("one that cannot be understood") {
    REQUIRE(job.step(watch::Answered{job.peer("a"), {0, "\x01", false}}) != "");
  }
  REQUIRE(job.answer("a", 0, {looks::still(2)}, false) == "");
}

TEST_CASE("no member is told more than its connection holds in one turn", "[unit][rendezvous][diagnosis]") {
  Job large{two_nodes};
  const int of_a = 700, all = static_cast<int>(told_looks_max);
  large.join("a", of_a);
  large.join("b", all - of_a);
  large.say("a", StoreReady{Round{0}, Port{4000}});
  Watched job{std::move(large)};
  REQUIRE(job.report_all(silent(64s)) == examine_0);
  std::map<Peer, std::size_t> bytes;
  const auto answer = [&](const std::string& name, int first, int end) {
    std::vector<RankLook> looks;
    for (int rank = first; rank < end; ++rank) {
      looks.push_back(looks::in(looks::still(rank), "0", "0-1023", 7));
      looks.back().frames.assign(5, {std::string(look_function_bytes_max, 'f'), std::string(look_file_bytes_max, 'p')});
    }
    const auto parts = pack_looks(looks);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const watch::Answered part{job.peer(name), {0, parts[i], i + 1 == parts.size()}};
      for (const RendezvousAction& action : job.watch.step(part, job.job.rendezvous, job.job.now)) {
        const auto* tell = std::get_if<Tell>(&action);
        const auto* told = tell ? std::get_if<HangTold>(&tell->message) : nullptr;
        if (told) bytes[tell->peer] += told->part.size();
      }
    }
  };
  answer("a", 0, of_a);
  answer("b", of_a, all);
  REQUIRE(bytes[job.peer("a")] <= found_told_in_one_turn_max);
  REQUIRE(bytes[job.peer("a")] + 2 * look_bytes_max > found_told_in_one_turn_max);
  REQUIRE(bytes[job.peer("b")] > 0);
  REQUIRE(bytes[job.peer("b")] <= found_told_in_one_turn_max);
}

TEST_CASE("a person who asks is shown all ranks within two seconds", "[unit][rendezvous][diagnosis]") {
  Watched job;
  REQUIRE(job.ask("b") == "a examine 0 asked\nb examine 0 asked\n");
  REQUIRE(job.watch.deadline() == t0 + 2s);
  SECTION("with what has come by then") {
    job.answer("b", 0, {waiting(2), stuck(3)});
    REQUIRE(job.at(t0 + 2s - 1ns) == "");
    REQUIRE(job.at(t0 + 2s).starts_with("a shown 0 "));
  }
  SECTION("who asks sees the whole page, as the first node does") {
    REQUIRE(job.answer_both(0) ==
            "a shown 0 stuck 3, none; looks at 0 1 2 3\nb shown 0 stuck 3, none; looks at 0 1 2 3\n");
    SECTION("and the next one no sooner than two seconds later") {
      job.job.now = t0 + 1s;
      REQUIRE(job.ask("a") == "");
      REQUIRE(job.ask("b") == "");
      REQUIRE(job.watch.deadline() == t0 + asked_look_pace);
      REQUIRE(job.at(t0 + asked_look_pace - 1ns) == "");
      REQUIRE(job.at(t0 + asked_look_pace) == "a examine 1 asked\nb examine 1 asked\n");
      REQUIRE(job.watch.deadline() == t0 + 2 * asked_look_pace);
    }
    SECTION("or at once, when nobody has asked for so long") {
      job.job.now = t0 + asked_look_pace;
      REQUIRE(job.ask("a") == "a examine 1 asked\nb examine 1 asked\n");
    }
  }
}

TEST_CASE("a node that has succeeded and gone is not waited for", "[unit][rendezvous][diagnosis]") {
  Watched job;
  REQUIRE(job.report("a", silent(0s)) == "");
  REQUIRE(job.report("b", silent(64s)) == "");
  job.job.say("a", WorkersSucceeded{Round{0}});
  job.job.gone("a");
  REQUIRE(job.job.rendezvous.phase() == Rendezvous::Phase::running);
  REQUIRE(job.step(watch::RoundStepped{}) == "");
  const auto due = job.watch.deadline();
  REQUIRE(due <= t0 + 1s);
  REQUIRE(job.at(*due) == "b examine 0\n");  // a's silence does not count any more
  // The page is the next node's to print.
  REQUIRE(job.answer("b", 0, {waiting(2), stuck(3)}) ==
          "note: no progress for 64 s: stuck, ranks 3; action: none\n"
          "b found 0 stuck 3, none; looks at 0 1 2 3\n");
}

TEST_CASE("where torchrun's agents have a part nobody watches over the whole", "[unit][rendezvous][diagnosis]") {
  Watched job;
  REQUIRE(job.report_all(silent(64s)) == examine_0);
  REQUIRE(job.step(watch::OthersDecide{}) == "note: a look at all ranks tells nothing: the attempt has ended\n");
  REQUIRE(job.step(watch::OthersDecide{}) == "");
  REQUIRE(job.watch.deadline() == std::nullopt);
}

TEST_CASE("another job of the same run id counts from nought, with its own limits", "[unit][rendezvous][diagnosis]") {
  Watched job;
  REQUIRE(job.report_all(silent(64s)) == examine_0);
  REQUIRE(job.answer_both(0) == stuck_3);
  job.job.say("a", WorkersSucceeded{Round{0}});
  job.job.say("b", WorkersSucceeded{Round{0}});
  REQUIRE(job.job.rendezvous.phase() == Rendezvous::Phase::ended);
  REQUIRE(job.step(watch::RoundStepped{}) == "");
  job.job.all_gone();
  job.job.terms.hang_timeout = {.mode = HangTimeout::Mode::given, .silence = 5s};
  job.job.join_anew("a");
  job.job.join_anew("b");
  job.job.say("a", StoreReady{job.job.rendezvous.round(), Port{4000}});
  REQUIRE(job.job.rendezvous.phase() == Rendezvous::Phase::running);
  REQUIRE(job.step(watch::RoundStepped{}) == "");
  REQUIRE(job.report_all(silent(6s)) == examine_0);
  REQUIRE(job.answer_both(0).find("a found 0 stuck 3") != std::string::npos);
}

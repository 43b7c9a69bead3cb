#include "launcher/core/text/status_line.hpp"

#include <catch2/catch.hpp>

#include "launcher/core/record/status_facts.hpp"

using namespace std::chrono_literals;

namespace torchup {
namespace {

const std::string away = "\r\x1b[K";

TEST_CASE("the status line says for whom a job waits, and how long", "[unit][operations]") {
  StatusFacts facts;
  const TimePoint begin{};
  REQUIRE(status_text(facts, begin).empty());
  apply(facts, event::Waiting{"1 of 2 nodes: node1; not heard of: node2"}, begin);
  REQUIRE(status_text(facts, begin + 35s) == "1 of 2 nodes: node1; not heard of: node2 (0:35)");
  apply(facts, event::Waiting{"1 of 2 nodes: node1; unfit: node3"}, begin + 1h);
  REQUIRE(status_text(facts, begin + 1h + 2min + 3s) == "1 of 2 nodes: node1; unfit: node3 (1:02:03)");
  apply(facts, event::Waiting{.roster = "no answer from node1:29400", .of_link = true}, begin);
  REQUIRE(status_text(facts, begin).starts_with("no answer from node1:29400"));
  apply(facts, event::Waiting{"a\x1b[2Jb"}, begin);
  REQUIRE(status_text(facts, begin).starts_with("a\\x1b[2Jb"));
}

TEST_CASE("the status line says how far a job is", "[unit][operations]") {
  StatusFacts facts;
  const TimePoint now{};
  apply(facts, event::Waiting{"1 of 2 nodes"}, now);
  apply(facts, event::RoundCompleted{{.group_world_size = 1, .world_size = 1}}, now);
  REQUIRE(status_text(facts, now) == "1 rank on 1 node");
  apply(facts, event::RoundCompleted{{.group_world_size = 2, .world_size = 16, .restart_count = 1}}, now);
  REQUIRE(status_text(facts, now) == "16 ranks on 2 nodes, 1 restart");
  see(facts, {.least = 41190, .most = 41200, .milli_per_second = 3140});
  REQUIRE(status_text(facts, now) == "16 ranks on 2 nodes, step 41200, 3.1 steps/s, 1 restart");
  apply(facts, event::Waiting{.roster = "no answer from node1:29400", .of_link = true}, now);  // they run on
  REQUIRE(status_text(facts, now) == "16 ranks on 2 nodes, step 41200, 3.1 steps/s, 1 restart");
  apply(facts, event::RoundCompleted{{.group_world_size = 2, .world_size = 16, .restart_count = 2}}, now);
  REQUIRE(status_text(facts, now) == "16 ranks on 2 nodes, 2 restarts");  // of the attempt before no step is left
  SECTION("nothing between two attempts") {
    apply(facts, event::AttemptEnded{"a worker failed"}, now);
    see(facts, {.least = 41190, .most = 41200, .milli_per_second = 3140});
    REQUIRE(status_text(facts, now).empty());
  }
  SECTION("nothing at the end") {
    apply(facts, event::JobEnded{}, now);
    REQUIRE(status_text(facts, now).empty());
  }
}

TEST_CASE("the status line never reaches the terminal's last column", "[unit][operations]") {
  REQUIRE(cut_to_columns("12345", 80) == "12345");
  REQUIRE(cut_to_columns("12345", 6) == "12345");
  REQUIRE(cut_to_columns("12345", 5) == "1234");
  REQUIRE(cut_to_columns("12345", 1).empty());
  REQUIRE(cut_to_columns("12345", 0).empty());
  REQUIRE(cut_to_columns("\u4e16\u754c!", 5) == "\u4e16\u754c");  // two columns each
  REQUIRE(cut_to_columns("\u4e16\u754c!", 4) == "\u4e16");
}

TEST_CASE("the status line is drawn when nobody has written for two seconds", "[unit][operations]") {
  const TimePoint begin{};
  StatusLine line{/*colour=*/false, begin};
  REQUIRE(line.deadline() == begin + 2s);
  REQUIRE(line.draw("a", begin + 2s - 1ns).empty());
  REQUIRE(line.draw("a", begin + 2s) == away + "a");
  REQUIRE(line.deadline() == begin + 3s);
  REQUIRE(line.draw("a", begin + 3s).empty());  // it stands there
  REQUIRE(line.draw("b", begin + 4s) == away + "b");
  SECTION("and goes before others write") {
    REQUIRE(line.before("x\n", begin + 5s) == away + "x\n");
    REQUIRE(line.before("y\n", begin + 5s) == "y\n");
    REQUIRE(line.deadline() == begin + 7s);
    REQUIRE(line.draw("b", begin + 7s) == away + "b");
  }
  SECTION("and goes before they write in another way") {
    REQUIRE(line.make_way("x", begin + 5s) == away);
    REQUIRE(line.make_way("\n", begin + 6s).empty());
    REQUIRE(line.deadline() == begin + 8s);
  }
  SECTION("and leaves nothing at the end") {
    REQUIRE(line.erase() == away);
    REQUIRE(line.erase().empty());
  }
  SECTION("and goes where there is nothing to say") {
    REQUIRE(line.draw("", begin + 5s) == away);
    REQUIRE(line.draw("", begin + 6s).empty());
  }
}

TEST_CASE("no status line where somebody's line is open", "[unit][operations]") {
  const TimePoint begin{};
  StatusLine line{/*colour=*/false, begin};
  const std::string open = GENERATE("Loading... ", " 10%|#    | 1/10\r", "\x1b[1A", "(Pdb) ");
  REQUIRE(line.before(open, begin) == open);
  REQUIRE(!line.deadline());
  REQUIRE(line.draw("a", begin + 1h).empty());
  REQUIRE(line.before("done\n", begin + 1h) == "done\n");
  REQUIRE(line.deadline() == begin + 1h + 2s);
  REQUIRE(line.draw("a", begin + 1h + 2s) == away + "a");
}

TEST_CASE("the status line is grey where colours are wanted", "[unit][operations]") {
  StatusLine line{/*colour=*/true, TimePoint{}};
  REQUIRE(line.draw("a", TimePoint{} + 2s) == away + "\x1b[90ma\x1b[0m");
}

}  // namespace
}  // namespace torchup

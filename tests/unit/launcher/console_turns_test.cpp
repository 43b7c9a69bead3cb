#include "launcher/core/agent/console_turns.hpp"

#include <catch2/catch.hpp>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

const LineRules whole{.form = LineRules::Form::whole_lines};
LineRules prefixed(std::string prefix) { return {.form = LineRules::Form::prefixed, .prefix = std::move(prefix)}; }

/// A console and what it shows.
struct Screen {
  ConsoleTurns turns;
  std::string text;
  std::string duplicates;
  TimePoint now{};

  void feed(ConsoleTurns::Source source, std::string_view bytes) { turns.feed(source, bytes, now, text, duplicates); }
  void end(ConsoleTurns::Source source) { turns.end(source, text, duplicates); }
  /// Lets time pass, with a look whenever one is due.
  void wait(Duration duration) {
    const TimePoint until = now + duration;
    for (int looks = 0; turns.deadline() && *turns.deadline() <= until; ++looks) {
      REQUIRE(looks < 100);  // it must not ask to be looked at for ever
      now = std::max(now, *turns.deadline());
      turns.tick(now, text);
    }
    now = until;
  }
  std::string shown() { return std::exchange(text, {}); }
};

const std::string over_long(console_line_bytes_max + 1, 'x');

}  // namespace

TEST_CASE("lines of several sources are shown as they become complete", "[unit][turns]") {
  Screen screen;
  const auto a = screen.turns.add(whole);
  const auto b = screen.turns.add(prefixed("[b]"));
  screen.feed(a, "one\nhal");
  screen.feed(b, "two\nother");
  CHECK(screen.shown() == "one\n[b]two\n");
  screen.feed(a, "f\n");
  screen.feed(b, " half\n");
  CHECK(screen.shown() == "half\n[b]other half\n");
  CHECK_FALSE(screen.turns.deadline());
}

TEST_CASE("a half line is shown once nobody has written for a while", "[unit][turns]") {
  Screen screen;
  const bool with_prefix = GENERATE(false, true);
  const std::string prefix = with_prefix ? "[a]" : "";
  const auto a = screen.turns.add(with_prefix ? prefixed(prefix) : whole);
  const auto b = screen.turns.add(whole);
  screen.feed(a, "Loading... ");
  screen.wait(half_line_silence - 1ms);
  CHECK(screen.shown().empty());
  screen.feed(b, "line\n");  // that is no silence
  screen.wait(half_line_silence - 1ms);
  CHECK(screen.shown() == "line\n");
  screen.wait(1ms);
  CHECK(screen.shown() == prefix + "Loading... ");
  CHECK_FALSE(screen.turns.deadline());

  SECTION("its rest follows at once, in the same line") {
    screen.feed(a, ".");
    CHECK(screen.shown() == ".");
    screen.feed(a, " done\nnext\n");
    CHECK(screen.shown() == " done\n" + prefix + "next\n");
    screen.feed(b, "b\n");
    CHECK(screen.shown() == "b\n");
  }
  SECTION("others wait for its rest") {
    screen.feed(b, "b\n");
    CHECK(screen.shown().empty());
    screen.feed(a, "done\n");
    CHECK(screen.shown() == "done\nb\n");
  }
  SECTION("but not for ever") {
    screen.wait(2s);
    screen.feed(b, "b\n");
    screen.wait(0ms);
    CHECK(screen.shown() == "\nb\n");
    screen.feed(a, "done\n");
    CHECK(screen.shown() == prefix + "done\n");
  }
  SECTION("its source's end ends nothing but the line") {
    screen.end(a);
    CHECK(screen.shown() == (with_prefix ? "\n" : ""));
    screen.feed(b, "b\n");
    CHECK(screen.shown() == (with_prefix ? "b\n" : "\nb\n"));
  }
  SECTION("what the launcher says stands in a line of its own") {
    screen.turns.own("torchup: note\n", screen.text);
    CHECK(screen.shown() == "\ntorchup: note\n");
    screen.feed(a, "done\n");
    CHECK(screen.shown() == prefix + "done\n");
  }
}

TEST_CASE("a line that was interrupted behind its last character is not shown again", "[unit][turns]") {
  Screen screen;
  const auto a = screen.turns.add(prefixed("[a]"));
  screen.feed(a, "all of it");
  screen.wait(1s);
  screen.turns.own("note\n", screen.text);
  screen.feed(a, "\nnext\n");
  CHECK(screen.shown() == "[a]all of it\nnote\n[a]next\n");
}

TEST_CASE("half lines of several sources are shown one after the other", "[unit][turns]") {
  Screen screen;
  const auto a = screen.turns.add(whole);
  const auto b = screen.turns.add(whole);
  screen.feed(b, "b?");
  screen.feed(a, "a?");
  screen.wait(half_line_silence);
  CHECK(screen.shown() == "a?");
  screen.wait(hold_limit);
  CHECK(screen.shown() == "\nb?");
  screen.wait(10s);
  CHECK(screen.shown().empty());
}

TEST_CASE("a progress bar that stands still is shown, and others are drawn over it", "[unit][turns]") {
  Screen screen;
  const auto a = screen.turns.add(whole);
  const auto b = screen.turns.add(whole);
  screen.feed(a, "\r 10%");
  CHECK(screen.shown() == "\r");
  screen.wait(1s);
  CHECK(screen.shown() == " 10%");
  screen.feed(a, "\r 20%");
  screen.wait(2s);
  CHECK(screen.shown() == "\r 20%");
  screen.feed(b, "line\n");
  screen.wait(0ms);
  CHECK(screen.shown() == "\rline\n");
}

TEST_CASE("a half line is shown up to its last whole character", "[unit][turns]") {
  Screen screen;
  const auto a = screen.turns.add(prefixed("[a]"));
  screen.feed(a, "x\xe2\x82");
  screen.wait(1s);
  CHECK(screen.shown() == "[a]x");
  screen.feed(a, "\xac\n");
  CHECK(screen.shown() == "\u20ac\n");
}

TEST_CASE("a filter looks at whole lines, however they were shown", "[unit][turns]") {
  Screen screen;
  LineRules rules = prefixed("[a]");
  rules.duplicate_prefix = "[a]";
  rules.filters = {"an apple"};
  const auto a = screen.turns.add(rules);
  screen.feed(a, "an ap");
  screen.wait(1s);
  screen.feed(a, "ple\npear\n");
  CHECK(screen.shown() == "[a]an apple\n[a]pear\n");
  CHECK(screen.duplicates == "[a]an apple\n");
}

TEST_CASE("on a terminal half lines of a teed bar keep its pace", "[unit][turns]") {
  Screen screen;
  LineRules rules = prefixed(">");
  rules.terminal = true;
  const auto a = screen.turns.add(rules);
  screen.feed(a, "\r 1%");
  screen.feed(a, "\r 2%");
  CHECK(screen.shown() == "> 1%\n");
  screen.wait(progress_interval - 1ms);
  CHECK(screen.shown().empty());
  screen.wait(1ms);
  CHECK(screen.shown() == "> 2%");
}

TEST_CASE("an over-long line is shown as it comes, nobody between", "[unit][turns]") {
  Screen screen;
  const auto a = screen.turns.add(prefixed("[a]"));
  const auto b = screen.turns.add(whole);
  const auto c = screen.turns.add(whole);
  screen.feed(a, over_long);
  screen.feed(c, "c\n");
  screen.feed(b, "b\n");
  screen.feed(b, over_long);
  CHECK(screen.shown() == "[a]" + over_long);
  screen.feed(a, "y\n");
  // The others in the order in which they were added; b's over-long line is now the open one.
  CHECK(screen.shown() == "y\nb\n" + over_long);
  screen.feed(b, "\n");
  CHECK(screen.shown() == "\nc\n");
}

TEST_CASE("what waits for a turn is limited", "[unit][turns]") {
  Screen screen;
  const auto a = screen.turns.add(whole);
  const auto b = screen.turns.add(whole);
  screen.feed(a, over_long);
  const std::string line = std::string(63, 'l') + "\n";
  for (std::size_t held = 0; held < held_bytes_max; held += line.size()) screen.feed(b, line);
  CHECK(screen.turns.may_feed(b));
  screen.feed(b, line);
  CHECK_FALSE(screen.turns.may_feed(b));
  screen.feed(a, "\n");
  CHECK(screen.turns.may_feed(b));
  CHECK(screen.shown().size() == over_long.size() + 1 + held_bytes_max + line.size());
}

TEST_CASE("a source that ends in another's line is shown in its turn, then forgotten", "[unit][turns]") {
  Screen screen;
  const auto a = screen.turns.add(whole);
  const auto b = screen.turns.add(prefixed("[b]"));
  const auto c = screen.turns.add(whole);
  screen.feed(a, over_long);
  screen.feed(b, "last words");
  screen.end(b);
  screen.feed(c, "open");
  screen.end(c);
  CHECK(screen.shown() == over_long);
  screen.end(a);
  CHECK(screen.shown() == "\n[b]last words\nopen");
  screen.turns.own("report\n", screen.text);
  CHECK(screen.shown() == "\nreport\n");
  CHECK_FALSE(screen.turns.deadline());
}

TEST_CASE("who could not be read was not silent", "[unit][turns]") {
  Screen screen;
  const auto a = screen.turns.add(whole);
  screen.feed(a, "half");
  screen.now += 10s;  // the console was full
  screen.turns.stood_still(screen.now);
  screen.wait(half_line_silence - 1ms);
  CHECK(screen.shown().empty());
  screen.feed(a, " and whole\n");
  CHECK(screen.shown() == "half and whole\n");
}

TEST_CASE("a source that is alone passes everything at once", "[unit][turns]") {
  Screen screen;
  const auto a = screen.turns.add(LineRules{});
  screen.feed(a, "x");
  CHECK(screen.shown() == "x");
  CHECK_FALSE(screen.turns.deadline());
  screen.turns.own("note\n", screen.text);
  CHECK(screen.shown() == "\nnote\n");
  screen.feed(a, "y\n");
  screen.turns.own("note\n", screen.text);
  CHECK(screen.shown() == "y\nnote\n");
}

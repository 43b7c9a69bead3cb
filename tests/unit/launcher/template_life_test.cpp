#include "launcher/core/agent/template_life.hpp"

#include <catch2/catch.hpp>
#include <csignal>
#include <optional>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

using State = TemplateLife::State;
const TimePoint t0{};

/// What people read of it.
std::string text(const std::optional<EventBody>& event) { return event ? to_text(*event)->text : ""; }

TemplateLife serving() {
  TemplateLife life{{"torch", "my.models"}, true};
  life.begins(t0);
  life.has_pid(42);
  REQUIRE(life.says("importing torch", t0).has_value() == false);
  REQUIRE(life.says("ready", t0 + 2500ms) == EventBody{event::TemplateReady{42, {"torch", "my.models"}, 2.5}});
  return life;
}

}  // namespace

TEST_CASE("a template serves when it has imported everything", "[unit][preload]") {
  REQUIRE(TemplateLife{{"torch"}, true}.state() == State::absent);
  TemplateLife life = serving();
  REQUIRE(life.state() == State::serving);
  SECTION("what it says then is nobody's word") {
    REQUIRE(!life.says("failed x", t0));
    REQUIRE(!life.says("ready", t0));
    REQUIRE(!life.takes_too_long());
    REQUIRE(life.state() == State::serving);
  }
}

TEST_CASE("a template that does not come to serve is the last one", "[unit][preload]") {
  TemplateLife life{{"torch", "bad", "slow"}, true};
  life.begins(t0);
  REQUIRE(life.state() == State::loading);
  SECTION("it says why") {
    const auto given_up = life.says("failed torch has started a thread\x1b", t0);
    REQUIRE(text(given_up) == "--preload: torch has started a thread\\x1b; workers are started without it");
    // Its words are not among ours, which everybody sees.
    REQUIRE(given_up == EventBody{event::PreloadGivenUp{"the process for the imports cannot be forked",
                                                        "torch has started a thread\\x1b"}});
    REQUIRE(!life.ended(1));
  }
  SECTION("it dies while it imports") {
    REQUIRE(!life.says("importing bad", t0));
    REQUIRE(text(life.ended(-SIGSEGV)) ==
            "--preload: the process for the imports was ended by SIGSEGV while importing bad; workers are started "
            "without it");
  }
  SECTION("it dies with a word of its own on what it imports, which is none of ours") {
    REQUIRE(!life.says("importing secret", t0));
    REQUIRE(text(life.ended(3)) ==
            "--preload: the process for the imports ended with exit code 3; workers are started without it");
  }
  SECTION("it exits before it imports anything") {
    REQUIRE(text(life.ended(3)) ==
            "--preload: the process for the imports ended with exit code 3; workers are started without it");
  }
  SECTION("it takes too long") {
    REQUIRE(!life.says("importing slow", t0));
    REQUIRE(text(life.takes_too_long()) ==
            "--preload: the import of slow takes over 120 s; workers are started without it");
    REQUIRE(!life.ended(-SIGKILL));
  }
  SECTION("it cannot be started") {
    REQUIRE(text(life.not_started("python3: Permission denied")) ==
            "--preload: no process for the imports: python3: Permission denied; workers are started without it");
  }
  REQUIRE(life.state() == State::given_up);
}

TEST_CASE("a template that is lost has one successor", "[unit][preload]") {
  TemplateLife life = serving();
  const auto lost = life.ended(-SIGKILL);
  REQUIRE(text(lost) ==
          "--preload: the process with the imports was ended by SIGKILL; a further attempt gets another one");
  REQUIRE(life.state() == State::absent);
  life.begins(t0);
  REQUIRE(life.says("ready", t0).has_value());
  life.is_silent();
  REQUIRE(text(life.ended(-SIGKILL)) ==
          "--preload: the process with the imports does not answer, and is the second of this job; workers are started "
          "without it");
  REQUIRE(life.state() == State::given_up);
}

TEST_CASE("an end that may be a sweep's says nothing of the modules", "[unit][preload]") {
  TemplateLife life{{"torch"}, true};
  life.begins(t0);
  life.may_be_swept();
  SECTION("it has a successor") {
    REQUIRE(text(life.ended(GENERATE(-SIGTERM, -SIGKILL))).find("; a further attempt gets another one") !=
            std::string::npos);
    REQUIRE(life.state() == State::absent);
    life.begins(t0);
    SECTION("which has all its rights") {
      REQUIRE(life.says("ready", t0));
      REQUIRE(life.ended(-SIGKILL));
      REQUIRE(life.state() == State::absent);
    }
    SECTION("which nobody has swept") {
      REQUIRE(life.ended(-SIGKILL));
      REQUIRE(life.state() == State::given_up);
    }
  }
  SECTION("another end is its own") {
    REQUIRE(life.ended(GENERATE(1, -SIGSEGV)));
    REQUIRE(life.state() == State::given_up);
  }
  SECTION("one that has said a word was known") {
    REQUIRE(!life.says("importing torch", t0));
    REQUIRE(life.ended(-SIGKILL));
    REQUIRE(life.state() == State::given_up);
  }
}

TEST_CASE("a native program is a template from its worker_main on", "[unit][preload]") {
  TemplateLife life{{"program"}, false};
  life.begins(t0);
  life.has_pid(42);
  SECTION("it ends on its way") {
    REQUIRE(text(life.ended(0)) ==
            "--preload: the program ended with exit code 0 before it came to worker_main; workers are started without "
            "it");
  }
  SECTION("it dies on its way") {
    REQUIRE(text(life.ended(-SIGSEGV)) ==
            "--preload: the program was ended by SIGSEGV before it came to worker_main; workers are started without "
            "it");
  }
  SECTION("it takes too long") {
    REQUIRE(text(life.takes_too_long()) ==
            "--preload: the program takes over 120 s to its worker_main; workers are started without it");
  }
  SECTION("it cannot be started") {
    REQUIRE(text(life.not_started("a.out: Permission denied")) ==
            "--preload: no process for the program: a.out: Permission denied; workers are started without it");
  }
  SECTION("it is lost later") {
    REQUIRE(life.says("ready", t0 + 300ms) == EventBody{event::TemplateReady{42, {"program"}, 0.3}});
    REQUIRE(text(life.ended(-SIGKILL)) ==
            "--preload: the process with the program was ended by SIGKILL; a further attempt gets another one");
    REQUIRE(life.state() == State::absent);
    return;
  }
  REQUIRE(life.state() == State::given_up);
}

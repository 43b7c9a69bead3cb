// One scripted line for all that may become of it, hence longer than 400 lines.
#include "rendezvous/core/link/coordinator_link.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

constexpr Duration lease = 10s;
const Placement place{.round = Round{3}, .group_world_size = 2, .world_size = 4, .master_addr = "10.0.0.1"};

/// A link under a clock of its own, and what it wanted so far.
struct Linked {
  explicit Linked(bool token = false, Duration join_timeout = 60s) : link{settings(token, join_timeout), TimePoint{}} {}

  static CoordinatorLinkSettings settings(bool token, Duration join_timeout) {
    CoordinatorLinkSettings made{
        .endpoint = {"10.0.0.9", Port{29400}}, .run_id = RunId{"job"}, .join_timeout = join_timeout};
    made.has_token = token;
    return made;
  }
  void step(const link::Event& event) {
    for (link::Action& action : link.step(event, now)) {
      if (const auto* dial = std::get_if<link::Dial>(&action)) dialled = dial->line;
      if (const auto* tell = std::get_if<link::Tell>(&action)) {
        const auto* message = std::get_if<CoordinatorMessage>(&tell->event);
        if (!message || !std::holds_alternative<Waiting>(*message)) told.push_back(tell->event);
      }
      actions.push_back(std::move(action));
    }
  }
  /// As a shell does, which wakes at each deadline.
  void pass(TimePoint until) {
    while (true) {
      const auto due = link.deadline();
      if (!due || *due > until) break;
      now = std::max(now, *due);
      step(link::Wake{});
      if (refusing && dialled) step(link::DialFailed{*std::exchange(dialled, {}), true, "refused"});
    }
    now = until;
  }
  LineId connect() {
    if (!dialled) step(link::Wake{});
    for (int i = 0; i < 3 && !dialled; ++i) pass(link.deadline().value());  // after its delay
    REQUIRE(dialled);
    const LineId line = *std::exchange(dialled, {});
    step(link::Dialled{line});
    return line;
  }
  LineId welcome(bool embedded = false) {
    const LineId line = connect();
    step(link::Heard{line, Welcome{.embedded = embedded}});
    return line;
  }
  void answer(LineId line) { step(link::Heard{line, KeepAliveAnswer{last_keep_alive()}}); }
  [[nodiscard]] std::uint64_t last_keep_alive() const {
    std::uint64_t number = 0;
    for (const link::Action& action : actions) {
      const auto* write = std::get_if<link::Write>(&action);
      if (const auto* alive = write ? std::get_if<KeepAlive>(&write->frame) : nullptr) number = alive->number;
    }
    return number;
  }
  Join join_of() const {
    Join join;
    join.node = NodeId{"n_" + std::to_string(link.incarnation())};
    join.terms.lease = lease;
    return join;
  }
  /// In a round, its last sign of life answered now.
  LineId run(bool embedded = false) {
    step(link::Say{join_of()});
    const LineId line = welcome(embedded);
    step(link::Heard{line, Placed{place}});
    answer(line);
    told.clear();
    return line;
  }
  [[nodiscard]] const StopWorkers* fenced() const {
    if (told.size() != 1) return nullptr;
    const auto* message = std::get_if<CoordinatorMessage>(&told.front());
    const auto* stop = message ? std::get_if<StopWorkers>(message) : nullptr;
    return stop && stop->cause == StopCause::fenced && stop->round == place.round ? stop : nullptr;
  }

  CoordinatorLink link;
  TimePoint now{};
  bool refusing = false;
  std::optional<LineId> dialled;
  std::vector<link::Action> actions;
  std::vector<LinkEvent> told;
};

}  // namespace

TEST_CASE("silence fences at nine tenths of the lease after the last answered keep-alive", "[unit][link]") {
  Linked agent;
  agent.run();
  const TimePoint heard = agent.now;
  agent.pass(heard + lease * 9 / 10 - 1ns);
  REQUIRE(agent.told.empty());
  agent.pass(heard + lease * 9 / 10);
  REQUIRE(agent.fenced());
  REQUIRE(agent.link.incarnation() == 1);
}

TEST_CASE("neither a broken line nor a refused dial proves that the coordinator has ended", "[unit][link]") {
  Linked agent;
  agent.refusing = true;
  const LineId line = agent.run();
  const TimePoint heard = agent.now;
  agent.step(link::Closed{line, "reset by peer"});
  agent.pass(heard + lease * 9 / 10 - 1ns);
  REQUIRE(agent.told.empty());
  agent.pass(heard + lease * 9 / 10);
  REQUIRE(agent.fenced());
}

TEST_CASE("when the coordinator's process has ended, workers wait for another one", "[unit][link]") {
  Linked agent;
  agent.refusing = true;
  const LineId line = agent.run();
  const TimePoint heard = agent.now;
  agent.step(link::Closed{line, ""});
  SECTION("for as long as it could take") {
    agent.pass(heard + workers_wait - 1ns);
    REQUIRE(agent.told.empty());
    agent.pass(heard + workers_wait);
    REQUIRE(agent.fenced());
  }
  SECTION("a dial without an answer ends that") {
    agent.pass(heard + lease);
    agent.refusing = false;
    agent.pass(heard + lease + 2s);
    REQUIRE(agent.told.empty());
    agent.step(link::DialFailed{*agent.dialled, false, "no answer"});
    REQUIRE(agent.fenced());
  }
  SECTION("from its welcome on the lease counts again") {
    agent.pass(heard + 5s);
    agent.refusing = false;
    agent.pass(heard + 8s);
    const TimePoint back = agent.now;
    agent.welcome();
    agent.refusing = true;
    agent.pass(back + lease * 9 / 10 - 1ns);
    REQUIRE(agent.told.empty());
    agent.pass(back + lease * 9 / 10);
    REQUIRE(agent.fenced());
  }
}

TEST_CASE("a coordinator that lives with an agent takes the workers along", "[unit][link]") {
  Linked agent;
  const LineId line = agent.run(true);
  agent.step(link::Closed{line, ""});
  REQUIRE(agent.fenced());
}

TEST_CASE("what lies unread before an agent that was asleep is not believed", "[unit][link]") {
  Linked agent;
  const LineId line = agent.run();
  agent.now += lease;
  agent.step(link::Heard{line, StopWorkers{place.round, StopCause::membership_change, "late"}});
  REQUIRE(agent.fenced());
}

TEST_CASE("an agent obeys the orders of its own round only", "[unit][link]") {
  Linked agent;
  const LineId line = agent.run();
  SECTION("a stop of another round is none of its business") {
    agent.step(link::Heard{line, StopWorkers{Round{4}, StopCause::membership_change, "other"}});
    REQUIRE(agent.told.empty());
  }
  SECTION("a place that it has already is not given again") {
    agent.step(link::Heard{line, Placed{place}});
    REQUIRE(agent.told.empty());
  }
  SECTION("a fence is about the node, whatever round it names") {
    agent.step(link::Heard{line, StopWorkers{Round{4}, StopCause::fenced, "given up"}});
    REQUIRE(agent.fenced());
  }
  SECTION("and what it says of a round that it is not in stays unsaid") {
    const auto before = agent.actions.size();
    agent.step(link::Say{WorkersSucceeded{Round{2}}});
    REQUIRE(agent.actions.size() == before);
  }
}

TEST_CASE("a join that is said when the fence is due is not the new node's", "[unit][link]") {
  Linked linked;
  const LineId line = linked.run();
  linked.step(link::Heard{line, StopWorkers{place.round, StopCause::worker_failure, "another failed"}});
  linked.told.clear();
  const Join join = linked.join_of();
  linked.now += lease;  // it was asleep; its workers' end is what it hears of first
  linked.step(link::Say{join});
  REQUIRE(linked.fenced());
  linked.actions.clear();
  linked.welcome();
  REQUIRE(std::ranges::none_of(linked.actions, [](const link::Action& action) {
    const auto* write = std::get_if<link::Write>(&action);
    return write && (std::holds_alternative<Join>(write->frame) || std::holds_alternative<Resume>(write->frame));
  }));
  linked.step(link::Say{linked.join_of()});
  REQUIRE(std::ranges::any_of(linked.actions, [](const link::Action& action) {
    const auto* write = std::get_if<link::Write>(&action);
    const auto* written = write ? std::get_if<Join>(&write->frame) : nullptr;
    return written && written->node == NodeId{"n_1"};
  }));
}

TEST_CASE("workers that end while they are stopped are still stopping", "[unit][link]") {
  Linked linked;
  const LineId line = linked.run();
  linked.step(link::Heard{line, StopWorkers{place.round, StopCause::worker_failure, "another failed"}});
  linked.step(link::Say{GENERATE(AgentMessage{WorkersSucceeded{place.round}},
                                 AgentMessage{WorkersFailed{.round = place.round, .failures = {WorkerFailure{}}}})});
  linked.step(link::Closed{line, "connection reset"});
  linked.actions.clear();
  linked.welcome();
  const auto resumed = std::ranges::find_if(linked.actions, [](const link::Action& action) {
    const auto* write = std::get_if<link::Write>(&action);
    return write && std::holds_alternative<Resume>(write->frame);
  });
  REQUIRE(resumed != linked.actions.end());
  REQUIRE(std::get<Resume>(std::get<link::Write>(*resumed).frame).stage == Resume::Stage::stopping);
}

TEST_CASE("an end is told once, and once more when it cannot wait", "[unit][link]") {
  Linked agent;
  const LineId line = agent.run();
  const auto end = [&](bool now) { agent.step(link::Heard{line, End{{.exit_code = 1, .kill_now = now}}}); };
  end(false);
  end(false);
  REQUIRE(agent.told.size() == 1);
  end(true);
  end(true);
  REQUIRE(agent.told.size() == 2);
}

TEST_CASE("with a token, who does not prove it is tried until the join timeout, and told of", "[unit][link]") {
  Linked agent{true, 20s};
  agent.step(link::Say{agent.join_of()});
  int visits = 0;
  while (agent.now < TimePoint{} + 19s) {
    if (agent.dialled) {
      const LineId line = agent.connect();
      agent.step(link::NotProved{line, "its token is not ours"});
      agent.step(link::NotProved{line, "its token is not ours"});  // of a line that is gone
      agent.step(link::Heard{line, Welcome{}});
      agent.step(link::Heard{line, Placed{place}});
      ++visits;
    }
    agent.pass(agent.now + 100ms);
  }
  REQUIRE(agent.told.empty());
  REQUIRE(visits > 10);
  agent.pass(TimePoint{} + 20s);
  REQUIRE(agent.told.size() == 1);
  REQUIRE(std::get<LinkLost>(agent.told.front()).exit_code == 68);
  REQUIRE(std::get<LinkLost>(agent.told.front()).reason.ends_with("its token is not ours"));
}

TEST_CASE("with a token, a coordinator that proved it is believed", "[unit][link]") {
  Linked agent{true};
  agent.step(link::Say{agent.join_of()});
  const LineId line = agent.connect();
  SECTION("when it refuses") {
    agent.step(link::Heard{line, Refused{0, "full"}});
    REQUIRE(std::get<LinkLost>(agent.told.at(0)) == LinkLost{68, "full"});
  }
  SECTION("when it welcomes and places") {
    agent.step(link::Heard{line, Welcome{}});
    agent.step(link::Heard{line, Placed{place}});
    REQUIRE(agent.told == std::vector<LinkEvent>{CoordinatorMessage{Placed{place}}});
  }
}

TEST_CASE("without a token too, orders come after a welcome, and no refusal is a success", "[unit][link]") {
  Linked agent;
  agent.step(link::Say{agent.join_of()});
  const LineId line = agent.connect();
  SECTION("orders") {
    agent.step(link::Heard{line, Placed{place}});
    REQUIRE(agent.told.empty());
  }
  SECTION("a refusal") {
    agent.step(link::Heard{line, Refused{0, "go home"}});
    REQUIRE(std::get<LinkLost>(agent.told.at(0)) == LinkLost{68, "go home"});
  }
}

TEST_CASE("a refusal ends an agent with the coordinator's code, if that is one of a refusal", "[unit][link]") {
  const auto [said, heard] = GENERATE(table<int, int>({{65, 65}, {66, 66}, {67, 67}, {68, 68}, {0, 68}, {1, 68}}));
  Linked agent;
  const LineId line = agent.run();
  agent.step(link::Heard{line, Refused{said, "this node is unfit: no mount"}});
  REQUIRE(std::get<LinkLost>(agent.told.at(0)) == LinkLost{heard, "this node is unfit: no mount"});
}

TEST_CASE("an endpoint that welcomes and then says nothing is out of reach all the same", "[unit][link]") {
  Linked agent{false, 30s};
  agent.step(link::Say{agent.join_of()});
  while (agent.told.empty() && agent.now < TimePoint{} + 2min) {
    if (agent.dialled) agent.welcome();
    agent.pass(agent.now + 100ms);
  }
  REQUIRE(agent.now <= TimePoint{} + 30s + lease);
  REQUIRE(std::get<LinkLost>(agent.told.at(0)).exit_code == 67);
}

TEST_CASE("lines that are lost as soon as they are welcome are dialled ever more slowly", "[unit][link]") {
  Linked agent{false, 10min};
  agent.step(link::Say{agent.join_of()});
  const bool answers = GENERATE(false, true);
  std::vector<TimePoint> dials;
  const auto lose_lines = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const LineId line = agent.welcome();
      dials.push_back(agent.now);
      if (answers) agent.answer(line);
      agent.step(link::Garbled{line, "nonsense"});
    }
  };
  lose_lines(10);
  REQUIRE(dials[1] - dials[0] <= CoordinatorLink::retry_first);
  REQUIRE(dials[9] - dials[8] >= CoordinatorLink::retry_longest / 2);
  REQUIRE(dials[9] - dials[8] <= CoordinatorLink::retry_longest);
  SECTION("one that lasted is dialled at once") {
    const LineId line = agent.welcome();
    agent.answer(line);
    agent.now += CoordinatorLink::retry_longest;
    agent.step(link::Closed{line, "connection reset"});
    REQUIRE(agent.dialled);
  }
  const auto told = std::ranges::count_if(agent.actions, [](const link::Action& action) {
    const auto* tell = std::get_if<link::Tell>(&action);
    return tell && std::holds_alternative<CoordinatorMessage>(tell->event);
  });
  if (!answers) REQUIRE(told <= 2);  // what is wrong is told once
}

TEST_CASE("a leave that nobody answers is granted after three seconds", "[unit][link]") {
  Linked agent;
  const Leave leave{.ends_job = false, .exit_code = 143};
  const std::vector<LinkEvent> granted{CoordinatorMessage{End{verdict_of(leave)}}};
  SECTION("while there is a line") {
    agent.run();
    agent.step(link::Say{leave});
    agent.pass(agent.now + CoordinatorLink::leave_limit - 1ms);
    REQUIRE(agent.told.empty());
    agent.pass(agent.now + 1ms);
    REQUIRE(agent.told == granted);
  }
  SECTION("and at once where there is none") {
    agent.step(link::Say{leave});
    REQUIRE(agent.told == granted);
  }
}

namespace {

/// What people were told last of the way to the coordinator.
std::string roster_of(const Linked& agent) {
  std::string roster;
  for (const link::Action& action : agent.actions) {
    const auto* tell = std::get_if<link::Tell>(&action);
    const auto* message = tell ? std::get_if<CoordinatorMessage>(&tell->event) : nullptr;
    if (const auto* waiting = message ? std::get_if<Waiting>(message) : nullptr) roster = waiting->roster;
  }
  return roster;
}

}  // namespace

TEST_CASE("who accepts connections, and that is all, is tried until the join timeout", "[unit][link]") {
  const bool token = GENERATE(false, true);
  const std::string how = GENERATE("silent", "closes", "resets", "busy");
  Linked agent{token};
  agent.step(link::Say{agent.join_of()});
  const TimePoint begin = agent.now;
  Duration longest{};
  int visits = 0;
  while (agent.told.empty()) {
    const auto due = agent.link.deadline();
    REQUIRE(due);
    if (!agent.dialled) {
      const TimePoint from = agent.now;
      agent.pass(*due);
      if (how != "silent") longest = std::max(longest, agent.now - from);
      continue;
    }
    const LineId line = *std::exchange(agent.dialled, {});
    ++visits;
    agent.step(link::Dialled{line});
    if (how == "closes") agent.step(link::Closed{line});
    if (how == "resets") agent.step(link::Closed{line, "Connection reset by peer"});
    if (how == "busy") agent.step(link::Heard{line, Busy{}});
    if (agent.now - begin >= CoordinatorLink::mute_limit + CoordinatorLink::welcome_limit && agent.told.empty()) {
      REQUIRE(roster_of(agent).find("limit of its connections, or another program?") != std::string::npos);
    }
  }
  REQUIRE(agent.now == begin + 60s);
  REQUIRE(std::get<LinkLost>(agent.told.at(0)).exit_code == 67);
  REQUIRE(longest <= CoordinatorLink::retry_mute_longest);
  REQUIRE(visits > 8);
  REQUIRE(visits < 60);
}

TEST_CASE("an agent that found a place at last is a member as any", "[unit][link]") {
  Linked agent;
  agent.step(link::Say{agent.join_of()});
  for (int i = 0; i < 20; ++i) agent.step(link::Heard{agent.connect(), Busy{}});
  const LineId line = agent.welcome();
  agent.answer(line);
  REQUIRE(agent.told.empty());
  REQUIRE(agent.link.reaches());
}

TEST_CASE("an agent that was asleep has not tried for so long", "[unit][link]") {
  constexpr Duration join_timeout = 60s;
  Linked agent{false, join_timeout};
  agent.step(link::Say{agent.join_of()});
  SECTION("to reach an endpoint that was out of reach") {
    agent.refusing = true;
    agent.step(link::DialFailed{*std::exchange(agent.dialled, {}), true, "refused"});
    agent.pass(agent.now + 10s);
    agent.now += 1h;
    agent.step(link::Wake{});
    REQUIRE(agent.told.empty());
    REQUIRE(agent.dialled);
    agent.step(link::DialFailed{*std::exchange(agent.dialled, {}), true, "refused"});
    agent.pass(agent.now + join_timeout - 11s);
    REQUIRE(agent.told.empty());
    agent.pass(agent.now + 2s);  // the time before it slept counts
    REQUIRE(std::get<LinkLost>(agent.told.at(0)).exit_code == 67);
  }
  SECTION("where it slept over a dial, or until the last moment") {
    REQUIRE(agent.dialled);
    agent.now += 1h;
    agent.step(link::DialFailed{*std::exchange(agent.dialled, {}), false, "no answer in time"});
    REQUIRE(agent.told.empty());
    agent.pass(agent.now + lease - 1ns);
    REQUIRE(agent.told.empty());
    REQUIRE(agent.dialled);
  }
  SECTION("to be welcome where its hello lies unanswered") {
    const LineId line = agent.connect();
    agent.now += 1h;
    const bool heard_first = GENERATE(false, true);
    if (heard_first) {
      agent.step(link::Heard{line, Welcome{}});
    } else {
      agent.step(link::Wake{});
    }
    REQUIRE(agent.told.empty());
    const LineId again = agent.connect();
    REQUIRE(again != line);
    agent.step(link::Heard{again, Welcome{}});
    REQUIRE(agent.told.empty());
  }
}

TEST_CASE("that nobody listens is said when it lasts, and once", "[unit][link]") {
  Linked agent{false, 60s};
  const auto said = [&] {
    return std::ranges::count(
        agent.actions,
        link::Action{link::Tell{CoordinatorMessage{Waiting{"rendezvous endpoint 10.0.0.9:29400: refused", true}}}});
  };
  agent.step(link::Say{agent.join_of()});
  agent.refusing = true;
  agent.step(link::DialFailed{*std::exchange(agent.dialled, {}), true, "refused"});
  SECTION("by then the coordinator may have begun") {
    agent.pass(agent.now + CoordinatorLink::untold_limit - 1ns);
    REQUIRE(said() == 0);
    agent.pass(agent.now + CoordinatorLink::retry_longest);
    REQUIRE(said() == 1);
    agent.pass(agent.now + 10s);
    REQUIRE(said() == 1);
  }
  SECTION("why it was not reached is known all the same") {
    agent.refusing = false;
    agent.pass(TimePoint{} + 60s);
    REQUIRE(said() == 0);
    REQUIRE(std::get<LinkLost>(agent.told.at(0)).reason.ends_with(": refused"));
  }
  SECTION("any other trouble at once") {
    agent.refusing = false;
    agent.pass(agent.now + CoordinatorLink::retry_first);
    agent.step(link::DialFailed{*std::exchange(agent.dialled, {}), false, "refused"});
    REQUIRE(said() == 1);
  }
  SECTION("and at once when there was a coordinator") {
    agent.refusing = false;
    const LineId line = agent.welcome();
    agent.answer(line);
    agent.step(link::Closed{line, ""});
    agent.pass(agent.now + CoordinatorLink::retry_longest);
    agent.step(link::DialFailed{*std::exchange(agent.dialled, {}), true, "refused"});
    REQUIRE(said() == 1);
  }
}

TEST_CASE("before its first dial an agent's join timeout runs from where it was said to", "[unit][link]") {
  Linked agent;
  agent.now += 59s;  // the endpoint's kind was found out meanwhile
  agent.step(link::Wake{});
  agent.step(link::DialFailed{*std::exchange(agent.dialled, {}), true, "refused"});
  agent.refusing = true;
  agent.pass(TimePoint{} + 60s);
  REQUIRE(agent.told.size() == 1);
}

namespace {

/// One that looks for its coordinator at three ports; which of them was dialled last.
struct Seeking : Linked {
  explicit Seeking(bool token = false) {
    auto seeks = settings(token, 60s);
    seeks.further_ports = {Port{29401}, Port{29402}};
    link = CoordinatorLink{seeks, TimePoint{}};
  }
  Port dial() {
    const LineId line = connect();
    for (const link::Action& action : actions) {
      const auto* dial = std::get_if<link::Dial>(&action);
      if (dial && dial->line == line) return last = line, dial->port.value_or(Port{29400});
    }
    return Port{0};
  }
  LineId last{0};
};

}  // namespace

TEST_CASE("of several ports each is dialled in turn until somebody welcomes us", "[unit][link]") {
  Seeking agent;
  REQUIRE(agent.dial() == Port{29400});
  agent.step(link::Heard{agent.last, Refused{68, std::string{port_of_another_job} + "b"}});
  REQUIRE(agent.dialled);  // the next at once
  REQUIRE(agent.dial() == Port{29401});
  agent.step(link::Garbled{agent.last, "no frame"});
  REQUIRE(agent.dialled);
  REQUIRE(agent.dial() == Port{29402});
  agent.step(link::Closed{agent.last, ""});
  REQUIRE(!agent.dialled);  // the first again, after a while
  REQUIRE(agent.dial() == Port{29400});
  const TimePoint since = agent.now;
  agent.pass(since + CoordinatorLink::seek_limit - 1ns);
  REQUIRE(!agent.dialled);
  agent.pass(since + CoordinatorLink::seek_limit);
  REQUIRE(agent.dialled);
  REQUIRE(agent.dial() == Port{29401});
  agent.step(link::Heard{agent.last, Welcome{}});
  agent.step(link::Closed{agent.last, ""});
  agent.step(link::Wake{});
  REQUIRE(agent.dial() == Port{29401});  // where it was found
  REQUIRE(agent.told.empty());
  for (const link::Action& action : agent.actions) REQUIRE(!std::holds_alternative<link::MeetForeigner>(action));
}

TEST_CASE("another refusal ends the search, and so does the join timeout, but no foreign program", "[unit][link]") {
  Seeking agent;
  agent.dial();
  agent.step(link::Heard{agent.last, Refused{68, "the nodes differ"}});
  REQUIRE(agent.told == std::vector<LinkEvent>{LinkLost{68, "the nodes differ"}});
  Linked alone;
  alone.step(link::Heard{alone.connect(), Refused{68, std::string{port_of_another_job} + "b"}});
  REQUIRE(alone.told.size() == 1);
  Seeking patient;
  while (patient.now < TimePoint{} + 58s) {
    patient.dial();
    patient.step(link::Garbled{patient.last, "no frame"});
    patient.pass(patient.now + 100ms);
    REQUIRE(patient.told.empty());
  }
  patient.refusing = true;
  patient.pass(TimePoint{} + 61s);
  REQUIRE(patient.told.size() == 1);
  REQUIRE(std::get<LinkLost>(patient.told.front()).exit_code == 67);
}

TEST_CASE("where other jobs have all ports the coordinator is not reached", "[unit][link]") {
  Seeking agent;
  while (agent.now < TimePoint{} + 58s) {
    agent.dial();
    agent.step(link::Heard{agent.last, Refused{68, std::string{port_of_another_job} + "b"}});
    agent.pass(agent.now + 100ms);
    REQUIRE(agent.told.empty());
  }
  agent.pass(TimePoint{} + 61s);
  REQUIRE(agent.told.size() == 1);
  REQUIRE(std::get<LinkLost>(agent.told.front()).exit_code == 67);
}

TEST_CASE("of several ports the one is told where the coordinator does not take us", "[unit][link]") {
  Seeking agent{true};
  while (agent.now < TimePoint{} + 58s) {
    if (agent.dial() == Port{29401}) {
      agent.step(link::NotProved{agent.last, "the token is another"});
    } else {
      agent.step(link::Heard{agent.last, Refused{68, std::string{port_of_another_job} + "b"}});
    }
    agent.pass(agent.now + 100ms);
    REQUIRE(agent.told.empty());
  }
  agent.pass(TimePoint{} + 61s);
  REQUIRE(agent.told.size() == 1);
  const auto& lost = std::get<LinkLost>(agent.told.front());
  REQUIRE(lost.exit_code == 68);
  REQUIRE(lost.reason.ends_with("the token is another"));
}

TEST_CASE("a link of one connection is no longer than that", "[unit][link]") {
  Linked linked;
  CoordinatorLinkSettings settings = Linked::settings(false, 60s);
  settings.one_connection = true;
  linked.link = CoordinatorLink{settings, TimePoint{}};
  SECTION("whoever holds it may take its time") {
    linked.step(link::Say{linked.join_of()});
    const LineId slow = linked.connect();
    linked.pass(linked.now + 50s);
    REQUIRE(linked.told.empty());
    linked.step(link::Heard{slow, Welcome{}});
    linked.pass(linked.now + 5s);
    REQUIRE(linked.told.empty());
    REQUIRE_FALSE(linked.dialled);
    return;
  }
  SECTION("its other end is no endpoint that anybody has named") {
    linked.step(link::Say{linked.join_of()});
    linked.step(link::Closed{linked.connect(), ""});
    const auto said = [](const link::Action& action) {
      const auto* tell = std::get_if<link::Tell>(&action);
      const auto* message = tell ? std::get_if<CoordinatorMessage>(&tell->event) : nullptr;
      const auto* waiting = message ? std::get_if<Waiting>(message) : nullptr;
      return waiting && waiting->roster == "front of this job: it closes the connection without a word";
    };
    REQUIRE(std::ranges::any_of(linked.actions, said));
    return;
  }
  const LineId line = linked.run(true);
  SECTION("no other is tried beside it while it is in doubt") {
    linked.pass(linked.now + lease * 9 / 10 - 1ms);
    REQUIRE_FALSE(linked.dialled);
    linked.answer(line);
    linked.pass(linked.now + 3s);
    REQUIRE(linked.told.empty());
  }
  SECTION("its end fences, and there is no other") {
    linked.step(link::Closed{line, ""});
    REQUIRE(linked.fenced());
    linked.refusing = true;
    linked.pass(linked.now + 2s);
    REQUIRE(linked.told.size() == 2);
    REQUIRE(linked.told.back() == LinkEvent{LinkLost{67, "refused"}});
  }
}

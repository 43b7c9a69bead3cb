// Version 1 of the agents' frames can grow: today's release and a later one, which has further fields in every
// structure, further choices and further types of frames, understand each other in both directions.
#include <catch2/catch.hpp>

#include "rendezvous/core/link/wire_fields.hpp"
#include "todays_words.hpp"

// A later release's structures: today's, and behind today's fields some of its own.
namespace torchup::later {

struct Word {
  int number = 5;
  std::string text = "later";
  friend bool operator==(const Word&, const Word&) = default;
};
void fields(auto& a, Word& m) {
  a.number("a number", m.number, 0, 9);
  a.name("a text", m.text);
}

/// What a later release adds to a structure.
struct More {
  bool flag = false;
  Word word = {};
  friend bool operator==(const More&, const More&) = default;
};
const More added{true, {9, "added"}};

template <class T>
struct With {
  T today = {};
  More more = {};
};
template <class T>
void fields(auto& a, With<T>& m) {
  using wire::fields;
  fields(a, m.today);
  a.later(m.more.flag, m.more.word);
}

struct Terms : With<JobTerms> {};
struct Failure : With<WorkerFailure> {};
struct Place : With<Placement> {};
struct Detail : With<Fact> {};
struct Store : With<StoreReady> {};

// Structures within others are written with the later release's own inner ones.
struct Failed {
  Round round{0};
  std::vector<Failure> failures = {};
  bool may_restart = true;
  More more = {};
};
void fields(auto& a, Failed& m) {
  wire::round(a, m.round);
  a.list("failures", m.failures, failures_told_max);
  a(m.may_restart);
  a.later(m.more.flag, m.more.word);
}
struct Joins {
  NodeId node{"n"};
  std::string host = "h";
  std::vector<std::string> addresses = {"10.0.0.1"};
  bool address_demanded = false;
  int local_world_size = 2;
  std::string role = "default";
  std::optional<GroupRank> group_rank = GroupRank{1};
  Terms terms = {};
  std::vector<Detail> facts = {};
  std::optional<Place> former = {};
  std::string unfit = {};
  bool needed = false;
  int needed_code = 2;
  More more = {};
};
void fields(auto& a, Joins& m) {
  a.name("a node id", m.node);
  a.name("a host", m.host);
  a.list("addresses", m.addresses, addresses_max, [&a](std::string& text) { a.name("an address", text); });
  a(m.address_demanded);
  a.number("local world size", m.local_world_size, 1, local_workers_max);
  a.name("a role", m.role);
  wire::maybe(a, m.group_rank, GroupRank{0}, [&a](GroupRank& value) { wire::group_rank(a, value); });
  a(m.terms);
  a.list("facts", m.facts, facts_max);
  a(m.former);
  a.later_text("why it is unfit", m.unfit, unfit_bytes_max);
  a.later(m.needed, m.needed_code, m.more.flag, m.more.word);
}
struct Resumes {
  Joins join = {};
  std::uint8_t stage = 0;
  std::optional<Place> placement = {};
  std::optional<Store> store = {};
  Failed failed = {};
  More more = {};
};
void fields(auto& a, Resumes& m) {
  a(m.join);
  a.number("a stage", m.stage, 0, 255);
  a(m.placement, m.store, m.failed);
  a.later(m.more.flag, m.more.word);
}
struct Judgement {
  int exit_code = 0;
  std::string reason = {};
  std::vector<Failure> failures = {};
  int stop_signal = 15;
  bool kill_now = false;
  bool time_ends = false;
  std::string reporter = {};
  bool save = false;
  More more = {};
};
void fields(auto& a, Judgement& m) {
  wire::exit_code(a, m.exit_code);
  wire::reason(a, m.reason);
  a.list("failures", m.failures, failures_told_max);
  wire::signal_number(a, m.stop_signal);
  a(m.kill_now);
  a.later(m.time_ends);
  a.later_text("who has the report", m.reporter, name_bytes_max);
  a.later(m.save, m.more.flag, m.more.word);
}
struct Ends {
  Judgement verdict = {};
  More more = {};
};
void fields(auto& a, Ends& m) {
  a(m.verdict);
  a.later(m.more.flag, m.more.word);
}

}  // namespace torchup::later

using namespace torchup;
using namespace torchup::todays;

namespace {

using later::added;

/// A frame as PROTOCOL.md has it.
std::string framed(std::uint8_t type, std::string_view body) {
  return number(static_cast<std::uint32_t>(1 + body.size())) + static_cast<char>(type) + std::string{body};
}

std::string written(const auto& structure) {
  wire::Writer writer;
  writer.message(structure);
  return writer.take();
}

template <class T>
T read_as(std::string_view body) {
  T structure{};
  wire::Reader reader{body};
  reader.message(structure);
  if (reader.error()) FAIL(reader.error()->context);
  return structure;
}

later::Joins later_join(bool with_more) {
  const auto more = with_more ? added : later::More{};
  later::Joins join;
  join.terms = {terms(), more};
  join.facts = {{{{"torch", "2.15.0"}, more}}, {{{"program", "x"}, more}}};
  join.former = later::Place{{placement(), more}};
  join.unfit = "GPU 3 is lost";
  join.needed = true;
  join.more = more;
  return join;
}
later::Resumes later_resume(std::uint8_t stage) {
  later::Resumes resume;
  resume.join = later_join(true);
  resume.stage = stage;
  resume.placement = later::Place{{placement(), added}};
  resume.store = later::Store{{{Round{4}, Port{7}}, added}};
  resume.failed = {Round{4}, {{{failure(), added}}, {{failure(), added}}}, false, added};
  resume.more = added;
  return resume;
}
Resume todays_resume(Resume::Stage stage) {
  return {todays_join(), stage, placement(), StoreReady{Round{4}, Port{7}},
          WorkersFailed{Round{4}, {failure(), failure()}, false}};
}

AgentFrame agent_frame(std::string_view bytes) {
  const auto frame = take_agent_frame(bytes);
  if (!frame) FAIL(frame.error().message());
  if (!frame->has_value()) FAIL("there is no frame");
  return **frame;
}
CoordinatorFrame coordinator_frame(std::string_view bytes) {
  const auto frame = take_coordinator_frame(bytes);
  if (!frame) FAIL(frame.error().message());
  if (!frame->has_value()) FAIL("there is no frame");
  return **frame;
}

}  // namespace

TEST_CASE("today's release reads a later one's frames without what is new in them", "[unit][agent_codec]") {
  REQUIRE(agent_frame(framed(16, written(later_join(true)))) == AgentFrame{todays_join()});
  REQUIRE(agent_frame(framed(21, written(later_resume(4)))) == AgentFrame{todays_resume(Resume::Stage::failed)});
  REQUIRE(agent_frame(framed(18, written(later_resume(4).failed))) == AgentFrame{todays_resume({}).failed});
  const later::Ends end{{1, "why", {{{failure(), added}}, {{failure(), added}}}, 2, true, true, "a", true, added},
                        added};
  REQUIRE(coordinator_frame(framed(83, written(end))) ==
          CoordinatorFrame{End{{1, "why", {failure(), failure()}, 2, true, true, "a", true}}});
}

TEST_CASE("a later release reads today's frames and has its defaults for what they lack", "[unit][agent_codec]") {
  const auto body_of = [](const auto& frame) { return encode(frame).substr(5); };
  const auto resume = read_as<later::Resumes>(body_of(AgentFrame{todays_resume(Resume::Stage::failed)}));
  REQUIRE(resume.join.terms.today == terms());
  REQUIRE(resume.join.facts.at(1).today == Fact{"program", "x"});
  REQUIRE(resume.join.former->today == placement());
  REQUIRE(resume.placement->today == placement());
  REQUIRE(resume.store->today == StoreReady{Round{4}, Port{7}});
  REQUIRE(resume.failed.failures.at(1).today == failure());
  REQUIRE(resume.failed.may_restart == false);
  for (const later::More& more :
       {resume.more, resume.join.more, resume.join.terms.more, resume.join.facts.at(0).more, resume.join.former->more,
        resume.placement->more, resume.store->more, resume.failed.more, resume.failed.failures.at(0).more}) {
    REQUIRE(more == later::More{});
  }
  const auto end = read_as<later::Ends>(body_of(CoordinatorFrame{End{{1, "why", {failure()}, 2, true}}}));
  REQUIRE(end.verdict.failures.at(0).today == failure());
  REQUIRE(end.verdict.kill_now);
  REQUIRE(end.verdict.more == later::More{});
}

TEST_CASE("a later release reads its own frames whole", "[unit][agent_codec]") {
  const auto resume = read_as<later::Resumes>(written(later_resume(9)));
  REQUIRE(resume.stage == 9);
  for (const later::More& more :
       {resume.more, resume.join.more, resume.join.terms.more, resume.join.facts.at(1).more, resume.join.former->more,
        resume.placement->more, resume.store->more, resume.failed.more, resume.failed.failures.at(1).more}) {
    REQUIRE(more == added);
  }
}

TEST_CASE("a release that knows no word of hangs is understood, and understands", "[unit][agent_codec]") {
  const std::string seven("\x07\0\0\0\0\0\0\0", 8);
  REQUIRE(agent_frame(framed(3, seven)) == AgentFrame{KeepAlive{7}});
  REQUIRE(coordinator_frame(framed(67, seven)) == CoordinatorFrame{KeepAliveAnswer{7}});
  const AgentFrame telling{KeepAlive{7, ProgressReport{.watched = true, .silence = 3s}}};
  REQUIRE(encode(telling).substr(5, 8) == seven);
  REQUIRE(encode(CoordinatorFrame{KeepAliveAnswer{7, 99}}).substr(5, 8) == seven);

  // Its terms end with the host list.
  Join join = todays_join();
  const std::string whole = written(join), list = "n[1-4]";
  const std::string today = written(join.terms);
  const std::string formerly = today.substr(0, today.find(list) + list.size());
  const std::size_t at = whole.find(number(static_cast<std::uint32_t>(today.size())) + today);
  REQUIRE(at != std::string::npos);
  const std::string former =
      std::string{whole}.replace(at, 4 + today.size(), number(static_cast<std::uint32_t>(formerly.size())) + formerly);
  REQUIRE(agent_frame(framed(16, former)) == AgentFrame{join});
  join.terms.on_hang = OnHang::abort;
  REQUIRE(agent_frame(framed(16, former)) != AgentFrame{join});
}

TEST_CASE("a release that knows no orders is understood, and understands", "[unit][agent_codec]") {
  // It gets a signal where another would be asked to save, and its words have no more to them than before.
  const StopWorkers stop{Round{4}, StopCause::membership_change, "restarted by ada", true, true};
  const std::string whole = written(stop);
  REQUIRE(coordinator_frame(framed(82, whole.substr(0, whole.size() - 2))) ==
          CoordinatorFrame{StopWorkers{Round{4}, StopCause::membership_change, "restarted by ada"}});
  const Leave leave{.exit_code = 75, .reason = "saved", .stop_signal = 0, .saved = true};
  const std::string said = written(leave);
  Leave former = leave;
  former.saved = false;
  REQUIRE(agent_frame(framed(20, said.substr(0, said.size() - 1))) == AgentFrame{former});
  const KeepAlive alive{7, ProgressReport{.watched = true}, NodeReport{.ranks = "r"}};
  const KeepAlive before{7, ProgressReport{.watched = true}};
  const std::string whole_one = written(before);
  const std::string short_one = whole_one.substr(0, whole_one.size() - 1 - sizeof(std::uint64_t));
  REQUIRE(written(alive).starts_with(short_one));
  REQUIRE(agent_frame(framed(3, short_one)) == AgentFrame{before});
}

TEST_CASE("a choice that only a later release knows has the meaning that PROTOCOL.md gives it", "[unit][agent_codec]") {
  Join join = todays_join();
  join.terms.rank_order = static_cast<RankOrder>(77);
  join.terms.same_world = static_cast<SameWorld>(3);
  const auto read = std::get<Join>(agent_frame(encode(AgentFrame{join})));
  REQUIRE(read.terms.rank_order == RankOrder::unknown);  // and the round machine refuses it
  REQUIRE(read.terms.same_world == SameWorld::warn);
  join.terms.hang_timeout.mode = static_cast<HangTimeout::Mode>(3);
  join.terms.on_hang = static_cast<OnHang>(3);
  const auto hang = std::get<Join>(agent_frame(encode(AgentFrame{join})));
  REQUIRE(hang.terms.hang_timeout.mode == HangTimeout::Mode::automatic);
  REQUIRE(hang.terms.on_hang == OnHang::report);

  // In a round, an agent in an unknown stage has workers there; without one it has none.
  REQUIRE(agent_frame(framed(21, written(later_resume(5)))) == AgentFrame{todays_resume(Resume::Stage::running)});
  later::Resumes without = later_resume(200);
  without.placement.reset();
  Resume ready = todays_resume(Resume::Stage::ready);
  ready.placement.reset();
  REQUIRE(agent_frame(framed(21, written(without))) == AgentFrame{ready});

  const StopWorkers stop{Round{4}, static_cast<StopCause>(3), "for a new cause"};
  REQUIRE(coordinator_frame(encode(CoordinatorFrame{stop})) ==
          CoordinatorFrame{StopWorkers{Round{4}, StopCause::membership_change, "for a new cause"}});
}

TEST_CASE("a frame of a type that only a later release knows is passed over", "[unit][agent_codec]") {
  for (const std::uint8_t type : {std::uint8_t{5}, std::uint8_t{28}, std::uint8_t{63}}) {
    const std::string bytes = framed(type, "whatever") + framed(type, "") + encode(AgentFrame{KeepAlive{7}}) + "\x02";
    std::string_view input = bytes;
    REQUIRE(**take_agent_frame(input) == AgentFrame{KeepAlive{7}});
    REQUIRE(input == "\x02");
    std::string_view alone = std::string_view{bytes}.substr(0, 13);
    REQUIRE_FALSE(take_agent_frame(alone)->has_value());
    REQUIRE(alone.empty());
  }
  for (const std::uint8_t type : {std::uint8_t{64}, std::uint8_t{89}, std::uint8_t{127}}) {
    const std::string bytes = framed(type, "whatever") + encode(CoordinatorFrame{KeepAliveAnswer{7}});
    std::string_view input = bytes;
    REQUIRE(**take_coordinator_frame(input) == CoordinatorFrame{KeepAliveAnswer{7}});
    REQUIRE(input.empty());
  }
}

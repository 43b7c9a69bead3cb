#include "launcher/core/diagnosis/worker_seen.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

const TimePoint t0{};

PythonStack stack_of(const std::string& function, const std::string& file = "/w/train.py") {
  PythonStack stack;
  stack.threads.push_back({.ident = 2, .current = true, .frames = {}});  // the helper
  stack.threads.push_back({.ident = 1, .frames = {{function, file, 41}, {"main", "/w/train.py", 50}}});
  return stack;
}

AnsweredEntry entry(const std::string& group, std::int64_t number, bool finished) {
  AnsweredEntry entry;
  entry.call = {.group = group, .number = number, .finished = finished, .operation = "gloo:all_reduce"};
  return entry;
}

WorkerAnswer answer(std::int64_t number, bool finished) {
  WorkerAnswer answer;
  answer.groups.push_back({{.name = "0", .number = number}, 2 * number});
  answer.entries.push_back(entry("0", number, finished));
  return answer;
}

WorkerSeen seen(TimePoint when = t0) {
  WorkerSeen seen;
  seen.kernel.state = 'S';
  seen.kernel.call = SystemCall{202, {}};
  seen.activity = {.main_ran_ns = 5'000'000, .main_switches = 10, .tree_ran_ns = 7'000'000, .tree_io_bytes = 100};
  seen.activity_at = when;
  seen.hook.emplace();
  seen.hook->collectives = 9;
  seen.python = stack_of("wait");
  seen.helper_wrote = true;
  seen.answer = answer(7, false);
  return seen;
}

/// Of a worker that does nothing.
WorkerMoments moments() { return {seen(t0), seen(t0 + 1s)}; }

RankLook look(const WorkerMoments& moments) { return look_of(moments, Processor::x86_64); }

}  // namespace

TEST_CASE("a call that a reader of its native stack has broken off is told as it was", "[unit][diagnosis]") {
  WorkerMoments twice = moments();
  const SystemCall restarted{219, {}};
  twice.second->kernel.call = restarted;
  CHECK(look(twice).kernel == "sleeping in futex");
  SECTION("of a sleep that is no longer the same nothing more is known") {
    twice.first.kernel.state = 'R';
    CHECK(look(twice).kernel == "sleeping in restart_syscall");
  }
  SECTION("it may be all that is known") {
    twice.first.kernel.call = restarted;
    CHECK(look(twice).kernel == "sleeping in restart_syscall");
  }
}

TEST_CASE("a worker that gets no processor is not stuck", "[unit][diagnosis]") {
  WorkerMoments twice = moments();
  CHECK_FALSE(look(twice).moving);
  twice.second->kernel.state = 'R';
  CHECK_FALSE(look(twice).moving);  // once may be for our own question
  twice.first.kernel.state = 'R';
  CHECK(look(twice).moving);
}

TEST_CASE("of a deep stack the program's own line is kept", "[unit][diagnosis]") {
  WorkerMoments twice = moments();
  auto& frames = twice.second->python->threads.back().frames;
  const StackFrame own = frames[0];
  frames.insert(frames.begin(), 30, {"run", "/usr/lib/python3.11/asyncio/events.py", 1});
  const RankLook told = look(twice);
  REQUIRE(told.frames.size() == look_frames_max);
  CHECK(told.frames.back() == own);
}

TEST_CASE("a look tells what both moments show", "[unit][diagnosis]") {
  const RankLook told = look(moments());
  CHECK(told.seen);
  CHECK(told.state == 'S');
  CHECK(told.kernel == "sleeping in futex");
  CHECK(told.frames == stack_of("wait").threads[1].frames);
  CHECK(told.groups_known);
  REQUIRE(told.groups.size() == 1);
  CHECK(told.groups[0].number == 7);
  CHECK(told.collectives.size() == 1);
  CHECK_FALSE(told.moving);
  CHECK_FALSE(told.progressed);
  CHECK_FALSE(told.traced);
  CHECK_FALSE(told.debugged);
  CHECK_FALSE(told.in_p2p);
  CHECK_FALSE(told.raised_ns);
}

TEST_CASE("what the second moment lacks is the first's", "[unit][diagnosis]") {
  WorkerMoments both = moments();
  const RankLook whole = look(both);
  both.first.kernel.target = "/mnt/x";
  both.second->python.reset();
  both.second->answer.reset();
  RankLook told = look(both);
  CHECK(told.kernel == "sleeping in futex of /mnt/x");
  told.kernel = whole.kernel;
  CHECK(told == whole);
  SECTION("but not what it waited for in another call") {
    both.second->kernel.call = SystemCall{0, {}};
    CHECK(look(both).kernel == "sleeping in read");
  }
}

TEST_CASE("nobody is seen whose state is not to be read", "[unit][diagnosis]") {
  WorkerMoments both = moments();
  both.first.kernel = both.second->kernel = {};
  CHECK(look(both) == RankLook{});
}

TEST_CASE("a rank has progressed when a step, a beat or a group differs", "[unit][diagnosis]") {
  WorkerMoments both = moments();
  SECTION("a beat") { both.second->progress = WorkerProgress{.beats = 1}; }
  SECTION("the sum of all groups") { both.second->hook->collectives = 10; }
  SECTION("a number") { both.second->answer->groups[0].position.number = 8; }
  SECTION("a point-to-point call") { both.second->answer->groups[0].sequence = 15; }
  SECTION("the program's own number") {
    both.first.progress = WorkerProgress{.beats = 3, .step = 7};
    both.second->progress = WorkerProgress{.beats = 3, .step = 8};
  }
  SECTION("a group that is new") { both.first.answer->groups.clear(); }
  SECTION("or gone") { both.second->answer->groups.clear(); }
  SECTION("a call that is done") { both.second->answer->entries[0].call.finished = true; }
  SECTION("another program is there") { both.second->hook->process = 77; }
  SECTION("it has gone") { both.second->kernel = {}; }
  SECTION("or come") { both.first.kernel = {}; }
  CHECK(look(both).progressed);
  both.second.reset();
  CHECK_FALSE(look(both).progressed);
}

TEST_CASE("of calls of one number only the one that was under way is done", "[unit][diagnosis]") {
  WorkerMoments both = moments();
  for (WorkerSeen* one : {&both.first, &*both.second}) {
    one->answer->entries.push_back(entry("1", 7, true));
    one->answer->entries.push_back(entry("0", 7, true));
    one->answer->entries.back().call.point_to_point = true;
  }
  CHECK_FALSE(look(both).progressed);
}

TEST_CASE("an exception that was printed by a program that goes on is no end", "[unit][diagnosis]") {
  CHECK(raised_for_good(0, std::nullopt) == std::nullopt);
  CHECK(raised_for_good(5, std::nullopt) == 5);
  CHECK(raised_for_good(5, WorkerProgress{.beats = 1, .ended_ns = 5}) == 5);
  CHECK(raised_for_good(5, WorkerProgress{.beats = 1, .ended_ns = 6}) == std::nullopt);
  CHECK(raised_for_good(5, WorkerProgress{.ended_ns = 6}) == 5);  // it has ended no step
  WorkerMoments both = moments();
  both.second->hook->raised_at_ns = 5;
  CHECK(look(both).raised_ns == 5);
  both.first.progress = both.second->progress = WorkerProgress{.beats = 1, .ended_ns = 6};
  CHECK(look(both).raised_ns == std::nullopt);
}

TEST_CASE("a rank moves when it has used something, or its stack differs", "[unit][diagnosis]") {
  WorkerMoments both = moments();
  SECTION("time on a CPU") { both.second->activity.main_ran_ns = 10'000'000; }
  SECTION("another line") { both.second->python->threads[1].frames[0].line = 42; }
  CHECK(look(both).moving);
}

TEST_CASE("of one moment alone, who runs moves", "[unit][diagnosis]") {
  WorkerMoments one{seen(), std::nullopt};
  CHECK_FALSE(look(one).moving);
  one.first.kernel.state = 'R';
  CHECK(look(one).moving);
}

TEST_CASE("a look keeps to its limits, and what is unfinished goes first", "[unit][diagnosis]") {
  WorkerMoments both = moments();
  WorkerAnswer& full = *both.second->answer;
  full = {};
  for (std::size_t i = 0; i <= look_groups_max; ++i) full.groups.push_back({{.name = std::to_string(i)}, 0});
  const std::string last = std::to_string(look_groups_max);
  full.entries.push_back(entry(last, 1, false));
  for (std::size_t i = 0; i <= look_collectives_max; ++i) {
    full.entries.push_back(entry("0", static_cast<std::int64_t>(i), true));
  }
  both.second->python->threads[1].frames.resize(look_frames_max + 1);
  const RankLook told = look(both);
  CHECK(told.groups.size() == look_groups_max);
  CHECK(told.groups_cut);
  CHECK(told.groups[0].name == last);
  REQUIRE(told.collectives.size() == look_collectives_max);
  CHECK(told.collectives[0].group == last);
  CHECK(told.collectives[1].number == static_cast<std::int64_t>(look_collectives_max));
  CHECK(told.frames.size() == look_frames_max);
}

TEST_CASE("groups are unknown where torch could not be asked", "[unit][diagnosis]") {
  WorkerMoments both = moments();
  both.second->answer->problem = "no such function";
  CHECK_FALSE(look(both).groups_known);
}

TEST_CASE("a rank in a point-to-point call is told by its innermost frame", "[unit][diagnosis]") {
  WorkerMoments both = moments();
  const std::string torch = "/venv/torch/distributed/distributed_c10d.py";
  both.second->python = stack_of("recv", torch);
  CHECK(look(both).in_p2p);
  both.second->python = stack_of("recv");  // a function of the program's own
  CHECK_FALSE(look(both).in_p2p);
  both.second->python = stack_of("all_reduce", torch);
  CHECK_FALSE(look(both).in_p2p);
}

TEST_CASE("native stacks are wanted of who may be a culprit and hides them", "[unit][diagnosis]") {
  WorkerSeen one = seen();
  CHECK_FALSE(hides_native_code(one));  // it waits for others
  one.answer = answer(7, true);
  CHECK(hides_native_code(one));
  SECTION("not where the kernel says what it waits for") {
    one.kernel.target = "/mnt/x";
    CHECK_FALSE(hides_native_code(one));
    one.python.reset();
    CHECK(hides_native_code(one));
  }
  SECTION("not of who is traced, or has ended") {
    one.kernel.tracer = 3;
    CHECK_FALSE(hides_native_code(one));
    one.kernel.tracer = 0;
    one.kernel.state = 'Z';
    CHECK_FALSE(hides_native_code(one));
  }
}

TEST_CASE("arrivals are an answer's entries", "[unit][diagnosis]") {
  WorkerAnswer given = answer(7, true);
  given.entries[0].duration_ms = 2.5;
  given.entries[0].call.created_ns = 1'795'638'078'000'000'123;
  const RankArrivals arrivals = arrivals_of(Rank{4}, given, std::chrono::nanoseconds{1'795'638'000'000'000'000});
  CHECK(arrivals.rank == Rank{4});
  REQUIRE(arrivals.arrivals.size() == 1);
  Collective call = given.entries[0].call;
  call.created_ns = 78'000'000'123;  // by the node's monotonic clock, as other nodes' arrivals
  CHECK(arrivals.arrivals[0].call == call);
  CHECK(arrivals.arrivals[0].duration_ms == 2.5);
  SECTION("and when one began is not known from a time that cannot be") {
    given.entries[0].call.created_ns = GENERATE(0, 123);
    CHECK(arrivals_of(Rank{4}, given, std::chrono::hours{1}).arrivals[0].call.created_ns == 0);
  }
}

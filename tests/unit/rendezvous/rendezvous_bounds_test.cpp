// What a job holds, and what it tells all its members at once, stays small, whatever agents say.
#include "rendezvous/core/link/agent_codec.hpp"
#include "rendezvous/core/link/message_bytes.hpp"
#include "rendezvous_job.hpp"

using namespace torchup;
using namespace torchup::rendezvous_job;

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

/// A round of so many nodes runs; node n0 has group rank 0.
Job crowd(int nodes) {
  Job job{{.min_nodes = 2, .max_nodes = nodes, .rank_order = RankOrder::join}};
  for (int i = 0; i < nodes; ++i) job.join("n" + std::to_string(i));
  job.say("n0", StoreReady{Round{0}, Port{4000}});
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::running);
  return job;
}

std::vector<WorkerFailure> tracebacks() {
  std::vector<WorkerFailure> list;
  for (int i = 0; i < static_cast<int>(failures_told_max); ++i) {
    list.push_back({.rank = Rank{i},
                    .exit_code = 1,
                    .host = "n0",
                    .message = std::string(message_bytes_max, 't'),
                    .error_file = std::string(path_bytes_max, 'p')});
  }
  return list;
}

struct Told {
  std::size_t members = 0, bytes = 0;
};
/// By one event, and by what follows within a second.
Told told_upon(Job& job, AgentMessage message) {
  Told told;
  const auto look_at = [&](const std::vector<RendezvousAction>& actions) {
    for (const RendezvousAction& action : actions) {
      const auto* tell = std::get_if<Tell>(&action);
      const auto* end = tell ? std::get_if<End>(&tell->message) : nullptr;
      const auto* stop = tell ? std::get_if<StopWorkers>(&tell->message) : nullptr;
      if (!end && !stop) continue;
      ++told.members;
      told.bytes += end ? held_bytes(end->verdict) : stop->reason.size();
    }
  };
  look_at(job.rendezvous.step(Said{job.peer_of.at("n0"), std::move(message)}, job.now));
  look_at(job.rendezvous.step(Tick{}, job.now += 20ms));
  return told;
}

}  // namespace

TEST_CASE("limits of hangs and windows are taken at their least and refused below it", "[unit][rendezvous]") {
  using Mode = HangTimeout::Mode;
  const auto joins = [](const JobTerms& terms) {
    Job job{terms};
    return job.join("a");
  };
  REQUIRE(joins({.straggler_window = straggler_window_min}).find("refused") == std::string::npos);
  REQUIRE(joins({.straggler_window = 0s}).find("refused") == std::string::npos);
  REQUIRE(joins({.straggler_window = straggler_window_min - 1ns})
              .starts_with("a refused 68: --straggler-window is 0.9 s, which is not within 1 s and"));
  const HangTimeout least{.mode = Mode::given, .silence = hang_timeout_min, .start = hang_timeout_min};
  REQUIRE(joins({.hang_timeout = least}).find("refused") == std::string::npos);
  HangTimeout less = least;
  less.silence -= 1ns;
  REQUIRE(joins({.hang_timeout = less}).starts_with("a refused 68: --hang-timeout is "));
  less = least;
  *less.start -= 1ns;
  REQUIRE(joins({.hang_timeout = less}).starts_with("a refused 68: the start of --hang-timeout is "));
  less.mode = Mode::automatic;  // where it says nothing it may say what it likes
  REQUIRE(joins({.hang_timeout = less}).find("refused") == std::string::npos);
}

TEST_CASE("a verdict for many members is short, and tells of the root cause", "[unit][rendezvous]") {
  Job job = crowd(500);
  const Told told = told_upon(job, WorkersFailed{.round = Round{0}, .failures = tracebacks()});
  REQUIRE(told.members == 500);
  REQUIRE(told.bytes <= 64 * mebibyte);
  REQUIRE(told.bytes > 32 * mebibyte);
  REQUIRE(job.rendezvous.verdict()->failures.front().message.size() == message_bytes_max);
  REQUIRE(job.rendezvous.verdict()->failures.front().error_file.size() == path_bytes_max);
}

TEST_CASE("a verdict for few members is told whole", "[unit][rendezvous]") {
  Job job = crowd(2);
  told_upon(job, WorkersFailed{.round = Round{0}, .failures = tracebacks()});
  REQUIRE(job.rendezvous.verdict()->failures == tracebacks());
}

TEST_CASE("a reason for many members is short", "[unit][rendezvous]") {
  Job job = crowd(2000);
  const bool ends_job = GENERATE(true, false);
  const Told told =
      told_upon(job, Leave{.ends_job = ends_job, .exit_code = 1, .reason = std::string(text_bytes_max, 'r')});
  REQUIRE(told.members == 2000);
  REQUIRE(told.bytes <= 64 * mebibyte);
}

TEST_CASE("a few letters that stand for more hosts than can be there are refused", "[unit][rendezvous]") {
  Job job{{.min_nodes = 1, .max_nodes = 2, .hostlist = "h[0-16384]"}};
  REQUIRE(job.join("a") ==
          "a refused 68: the host list names 16385 hosts, and this coordinator takes 16384 agents at most\n");
  job.terms.hostlist = "h[0-16383]";
  REQUIRE(job.join("b").empty());
}

TEST_CASE("of hosts that are missing a page shows so many", "[unit][rendezvous]") {
  Job job{{.min_nodes = 1, .max_nodes = 16000, .hostlist = "h[0-9999]"}};
  job.join("h7");
  const JobView view = job.rendezvous.view(job.now);
  REQUIRE(view.nodes.size() == 1 + missing_shown_max);
  REQUIRE(view.more_missing == 9999 - missing_shown_max);
  REQUIRE(view.waits_for.size() < 1000);
}

TEST_CASE("hosts that were lost and agents of ended jobs are counted", "[unit][rendezvous]") {
  Job job{{.min_nodes = 1, .max_nodes = 9}};
  job.join("a");
  const std::size_t before = job.rendezvous.held_bytes();
  constexpr int lost = 100;
  for (int i = 0; i < lost; ++i) {
    const std::string name = std::string(240, 'n') + std::to_string(i);
    job.join(name);
    job.gone(name);
  }
  // Each by its host's name twice, and by its agent's.
  REQUIRE(job.rendezvous.held_bytes() - before > lost * 3 * 240);
  job.say("a", Leave{.exit_code = 1});
  job.gone("a");
  job.join("b");
  REQUIRE(job.rendezvous.held_bytes() - before > lost * 240);
}

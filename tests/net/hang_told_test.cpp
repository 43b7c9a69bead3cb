// A coordinator and agents on loopback: who is silent is examined, and all are told what it shows.
#include "agents.hpp"
#include "rendezvous/core/diagnosis/look_parts.hpp"
#include "rendezvous/core/diagnosis/told_parts.hpp"
#include "rendezvous/core/ops/metrics_text.hpp"
#include "tests/unit/diagnosis/looks.hpp"

using namespace torchup;
using namespace std::chrono_literals;
namespace asio = boost::asio;

namespace {

const JobTerms two_nodes{.min_nodes = 2, .max_nodes = 2, .straggler_window = 0s};
const ProgressReport silent{.watched = true, .progressed = true, .silence = 64s, .median_gap = 1s, .longest_gap = 2s};

template <class T>
std::vector<T> all_of_kind(const Agent& agent) {
  std::vector<T> messages;
  for (const LinkEvent& event : agent.heard) {
    const auto* message = std::get_if<CoordinatorMessage>(&event);
    if (const auto* one = message ? std::get_if<T>(message) : nullptr) messages.push_back(*one);
  }
  return messages;
}

std::vector<DiagnosisNews> news_of(const Agent& agent) {
  std::vector<DiagnosisNews> all;
  NewsReader reader;
  for (const HangTold& told : all_of_kind<HangTold>(agent)) {
    auto news = reader.add(told.part, told.last);
    REQUIRE(news.has_value());
    if (*news) all.push_back(std::move(**news));
  }
  return all;
}

void answer(Agent& agent, std::uint64_t number, const std::vector<RankLook>& looks) {
  const auto parts = pack_looks(looks);
  for (std::size_t i = 0; i < parts.size(); ++i) agent.link->send(Examined{number, parts[i], i + 1 == parts.size()});
}
RankLook waiting(int rank) { return looks::in(looks::still(rank), "0", "0-3", 1234); }
RankLook stuck(int rank) { return looks::at(looks::still(rank), "0", "0-3", 1233); }

/// How the coordinator has logged that there is no progress.
LogLevel logged(const Daemon& daemon) {
  const auto line =
      std::ranges::find_if(daemon.lines, [](const LogLine& each) { return each.text.starts_with("no progress for"); });
  REQUIRE(line != daemon.lines.end());
  return line->level;
}

/// Two agents of other processes, whose round runs.
struct Two {
  explicit Two(JobTerms terms = two_nodes) { run_round(loop, a, b, std::move(terms)); }
  bool until(const std::function<bool()>& condition) { return run_until(loop, condition); }
  bool asked(const Examine& examine) {
    return until([&] {
      const std::vector<Examine> one{examine};
      return all_of_kind<Examine>(a) == one && all_of_kind<Examine>(b) == one;
    });
  }

  asio::io_context loop{1};
  Daemon daemon{loop};
  Agent a = Agent::over_tcp(loop, daemon.endpoint);
  Agent b = Agent::over_tcp(loop, daemon.endpoint);
};

}  // namespace

TEST_CASE("silence that two agents report leads to a look, and its verdict to both", "[net]") {
  Two agents;
  agents.a.link->report_progress(silent);
  agents.b.link->report_progress(silent);
  REQUIRE(agents.asked(Examine{}));
  answer(agents.a, 0, {waiting(0), waiting(1)});
  answer(agents.b, 0, {waiting(2), stuck(3)});
  REQUIRE(agents.until([&] { return news_of(agents.a).size() == 1 && news_of(agents.b).size() == 1; }));
  const auto whole = std::get<hang::Found>(news_of(agents.a).front());
  const auto brief = std::get<hang::Found>(news_of(agents.b).front());
  REQUIRE(logged(agents.daemon) == LogLevel::info);
  REQUIRE(whole.verdict->kind == HangKind::stuck);
  REQUIRE(whole.verdict->culprits == looks::list({3}));
  REQUIRE(whole.verdict == brief.verdict);
  REQUIRE(whole.silence == 64s);
  REQUIRE(whole.looks.size() == 4);
  REQUIRE(whole.looks.at(3).host == "b");
  REQUIRE(brief.looks.size() == 2);

  ProgressReport on = silent;
  on.silence = 100ms;
  agents.b.link->report_progress(on);
  REQUIRE(agents.until([&] { return news_of(agents.a).size() == 2 && news_of(agents.b).size() == 2; }));
  REQUIRE(std::get<hang::Over>(news_of(agents.b).back()).after >= 64s);
}

TEST_CASE("a member that never answers is unknown, and all are told without it", "[net]") {
  Two agents;
  agents.a.link->report_progress(silent);
  agents.b.link->report_progress(silent);
  REQUIRE(agents.asked(Examine{}));
  answer(agents.a, 0, {waiting(0), waiting(1)});
  REQUIRE(agents.until([&] { return news_of(agents.a).size() == 1 && news_of(agents.b).size() == 1; }));
  const auto found = std::get<hang::Found>(news_of(agents.a).front());
  REQUIRE(found.verdict->culprits == looks::list({2, 3}));
  REQUIRE(to_text(found.verdict->unseen) == "2-3");
  answer(agents.b, 0, {waiting(2), stuck(3)});  // too late, and nobody minds
  agents.a.link->send(AskLook{});
  REQUIRE(agents.until([&] { return all_of_kind<Examine>(agents.b).size() == 2; }));
  REQUIRE(news_of(agents.a).size() == 1);
}

TEST_CASE("who asks for a look is shown all ranks, also those of who does not answer", "[net]") {
  Two agents;
  agents.b.link->send(AskLook{});
  REQUIRE(agents.asked(Examine{.asked = true}));
  answer(agents.a, 0, {waiting(0), waiting(1)});
  REQUIRE(agents.until([&] { return news_of(agents.b).size() == 1; }));
  const auto shown = std::get<hang::Found>(news_of(agents.b).front());
  REQUIRE(shown.asked);
  REQUIRE(shown.looks.size() == 4);
  REQUIRE(shown.looks.at(0).seen);
  REQUIRE_FALSE(shown.looks.at(3).seen);
}

TEST_CASE("an agent that hosts the coordinator takes part as the others do", "[net]") {
  asio::io_context loop{1};
  Daemon daemon{loop};
  Agent a{[&](AgentLink::Handler handler) { return daemon.coordinator.connect(RunId{"job"}, std::move(handler)); }};
  Agent b = Agent::over_tcp(loop, daemon.endpoint);
  run_round(loop, a, b, two_nodes);
  a.link->report_progress(silent);
  b.link->report_progress(silent);
  REQUIRE(run_until(loop, [&] { return all_of_kind<Examine>(a).size() == 1 && all_of_kind<Examine>(b).size() == 1; }));
  answer(a, 0, {waiting(0), waiting(1)});
  answer(b, 0, {waiting(2), stuck(3)});
  REQUIRE(run_until(loop, [&] { return news_of(a).size() == 1 && news_of(b).size() == 1; }));
  REQUIRE(news_of(a).size() == 1);
  // People read it from the agent here, and once is enough.
  REQUIRE(logged(daemon) == LogLevel::debug);

  REQUIRE(a.link->clock() == ClockOffset::Estimate{});
  // One machine has one clock: what is said of it is right within what is said of the error.
  REQUIRE(b.link->clock().has_value());
  const ClockOffset::Estimate clock = *b.link->clock();
  REQUIRE(std::chrono::abs(clock.offset) <= clock.error + 1ns);
  REQUIRE(a.link->day_ahead() == Duration{0});
  REQUIRE(b.link->day_ahead().has_value());
  REQUIRE(std::chrono::abs(*b.link->day_ahead()) < 1min);
}

TEST_CASE("who says endless parts of an answer is heard to the end of them, and harms nobody", "[net]") {
  Two agents;
  agents.a.link->report_progress(silent);
  agents.b.link->report_progress(silent);
  REQUIRE(agents.asked(Examine{}));
  const std::string part = pack_looks(std::vector{waiting(0)}).front();
  for (int i = 0; i < 1000; ++i) agents.a.link->send(Examined{0, part, false});
  answer(agents.b, 0, {waiting(2), stuck(3)});
  REQUIRE(agents.until([&] { return news_of(agents.a).size() == 1 && news_of(agents.b).size() == 1; }));
  REQUIRE(to_text(std::get<hang::Found>(news_of(agents.b).front()).verdict->unseen) == "1");
}

TEST_CASE("how late workers are stands among the metrics", "[net]") {
  JobTerms terms = two_nodes;
  terms.straggler_window = straggler_window_min;
  Two agents{terms};
  const auto metrics = [&] { return coordinator_metrics({.late_workers = agents.daemon.coordinator.late_workers()}); };
  REQUIRE(metrics().find("late_seconds") == std::string::npos);
  ProgressReport running = silent;
  running.silence = 1s;
  agents.a.link->report_progress(running);
  agents.b.link->report_progress(running);
  REQUIRE(agents.asked(Examine{.arrivals_only = true}));
  agents.a.link->send(Arrivals{encode_window({.late_ranks = {{Rank{0}, -2ms}, {Rank{1}, 2ms}}})});
  agents.b.link->send(Arrivals{encode_window({.late_ranks = {{Rank{3}, 31ms}}})});
  REQUIRE(agents.until([&] { return metrics().find("late_seconds{") != std::string::npos; }));
  const std::string page = metrics();
  REQUIRE(page.find("# TYPE torchup_worker_late_seconds gauge\n"
                    "torchup_worker_late_seconds{run_id=\"job\",rank=\"3\",host=\"b\"} 0.031\n"
                    "torchup_worker_late_seconds{run_id=\"job\",rank=\"1\",host=\"a\"} 0.002\n"
                    "torchup_worker_late_seconds{run_id=\"job\",rank=\"0\",host=\"a\"} -0.002\n") != std::string::npos);
}

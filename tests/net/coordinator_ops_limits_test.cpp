// What an agent may say to those who look at its job, where it keeps to no limit itself, and what they may ask of all.
#include <boost/asio/post.hpp>

#include "rendezvous/net/coordinator/state_directory.hpp"
#include "tests/net/looked_job.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace torchup;
using namespace torchup::looked_job;
using namespace std::chrono_literals;

namespace {

/// Of the metrics that it answers with.
std::uint64_t number_of(Looked& job, const std::string& sample) {
  const std::string text = job.ask("GET", "/metrics")->body;
  const std::string begin = "\n" + sample + " ";
  const std::size_t at = text.find(begin);
  REQUIRE(at != std::string::npos);
  return std::stoull(text.substr(at + begin.size()));
}
std::uint64_t events_lost(Looked& job) { return number_of(job, "torchup_events_lost_total"); }

/// A process that keeps its jobs in a folder.
struct Life {
  explicit Life(const std::string& path) : directory{*StateDirectory::open(loop, path)} {
    REQUIRE(coordinator.keep_state(*directory).has_value());
  }
  bool until(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + 60s;
    while (!condition() && std::chrono::steady_clock::now() < end) {
      loop.restart();
      loop.run_one_for(10ms);
    }
    return condition();
  }
  [[nodiscard]] std::uint64_t last_event() { return onlookers.service().events().last(run_id.value()); }

  boost::asio::io_context loop;
  std::unique_ptr<StateDirectory> directory;
  Coordinator coordinator{loop, {}, test::long_running()};
  CoordinatorOps onlookers{loop, coordinator, {}};
};

std::vector<Answer> answers_of(const Agent& agent) {
  std::vector<Answer> list;
  for (const auto& message : agent.heard) {
    if (const auto* answer = std::get_if<Answer>(&message)) list.push_back(*answer);
  }
  return list;
}

std::string code_of(const std::string& body) { return json::parse(body).at("error").at("code"); }

}  // namespace

TEST_CASE("of an agent's events so many are taken, and the others are counted", "[net][ops]") {
  Looked job;
  const std::uint64_t before = json::parse(job.ask("GET", "/v1/jobs/a%2Fb")->body).at("seq");
  for (int i = 0; i < EventAllowance::burst; ++i) job.here.attendance->said(NodeEvent{R"({"event":"warning"})", 0});
  const auto taken = [&] {
    return json::parse(job.ask("GET", "/v1/jobs/a%2Fb")->body).at("seq").get<std::uint64_t>() - before;
  };
  REQUIRE(taken() == EventAllowance::burst);
  REQUIRE(events_lost(job) == 0);
  for (int i = 0; i < 1000; ++i) job.here.attendance->said(NodeEvent{R"({"event":"warning"})", 0});
  REQUIRE(taken() < 1000);  // however slow this machine is
  REQUIRE(taken() + events_lost(job) == EventAllowance::burst + 1000);
  const std::uint64_t lost = events_lost(job);
  job.elsewhere.attendance->said(NodeEvent{R"({"event":"warning"})", 7});  // has an allowance of its own
  REQUIRE(events_lost(job) == lost + 7);
  job.elsewhere.attendance->said(NodeEvent{R"({"event":"warning"})", 9});
  REQUIRE(events_lost(job) == lost + 9);
  job.elsewhere.attendance->said(NodeEvent{R"({"event":"warning"})", UINT64_MAX});
  REQUIRE(events_lost(job) < lost + 10'000'000);
}

TEST_CASE("so many questions of a node are open, and more are refused at once", "[net][ops]") {
  Looked job;
  const std::uint64_t last = json::parse(job.ask("GET", "/v1/jobs/a%2Fb")->body).at("seq");
  const std::string seq = std::to_string(last);
  const auto waits = [&](const Agent& agent, std::uint64_t number) {
    agent.attendance->said(
        Ask{.number = number, .by = "u", .method = "GET", .target = "/v1/jobs/a%2Fb/events?wait_s=10&since=" + seq});
  };
  for (std::uint64_t number = 1; number <= open_questions_max; ++number) waits(job.here, number);
  job.run();
  REQUIRE(answers_of(job.here).empty());
  waits(job.here, 100);
  job.run();
  REQUIRE(answers_of(job.here).size() == 1);
  REQUIRE(answers_of(job.here).front().number == 100);
  REQUIRE(answers_of(job.here).front().status == 503);
  REQUIRE(code_of(answers_of(job.here).front().body) == "too_many_questions");
  waits(job.elsewhere, 1);  // the other node's are its own
  job.run();
  REQUIRE(answers_of(job.elsewhere).empty());
  job.onlookers.happened(run_id, R"({"event":"warning"})");  // they are answered, and there is room again
  job.run();
  REQUIRE(answers_of(job.here).size() == 1 + open_questions_max);
  job.here.heard.clear();
  job.here.attendance->said(Ask{.number = 101, .by = "u", .method = "GET", .target = "/v1/jobs/a%2Fb"});
  job.run();
  REQUIRE(answers_of(job.here).front().status == 200);
}

TEST_CASE("who waits for an event is answered once, though one comes in the moment when his time is over",
          "[net][ops]") {
  Looked job;
  OpsCall call{.route = OpsRoute::events, .caller = {.right = Right::control}, .run_id = run_id.value()};
  call.since = json::parse(job.ask("GET", "/v1/jobs/a%2Fb")->body).at("seq");
  call.wait = 1ms;
  int answers = 0;
  job.onlookers.service().perform(call, [&](const OpsReply&) { ++answers; });
  const auto over = std::chrono::steady_clock::now() + 2ms;
  while (std::chrono::steady_clock::now() < over) continue;  // without a turn of the loop
  boost::asio::post(job.loop, [&] { job.onlookers.happened(run_id, R"({"event":"warning"})"); });
  job.run();
  REQUIRE(answers == 1);
}

TEST_CASE("events are numbered above those of the process before", "[net][ops]") {
  const bool is_found_again = GENERATE(true, false);
  const test::TemporaryFolder folder;
  std::uint64_t before = 0;
  {
    Life life{folder.path.string()};
    Agent first{life.coordinator}, second{life.coordinator};
    first.join("a");
    second.join("b");
    REQUIRE(life.until([&] { return Looked::is_told_to_host(first) || Looked::is_told_to_host(second); }));
    before = life.last_event();
    REQUIRE(before > 0);
    if (is_found_again) life.coordinator.release_state();
    if (!is_found_again) life.coordinator.abandon_state();
  }
  const test::TemporaryFolder other;
  Life life{(is_found_again ? folder : other).path.string()};
  REQUIRE(life.last_event() > before);
  Agent again{life.coordinator};
  again.join("c");
  REQUIRE(life.until([&] { return life.last_event() > before + 1; }));
  std::uint64_t seen = 0;
  const auto read = life.onlookers.service().events().read(run_id.value(), before, Right::control, 1 << 20,
                                                           [&](std::uint64_t, std::string_view) { ++seen; });
  REQUIRE((read.gap && read.lost == 0 && seen > 0));
}

TEST_CASE("an order that a fault of ours meets is refused, and no later one waits behind it", "[net][ops]") {
  SECTION("while it is obeyed") {
    Looked job;
    job.elsewhere.fails_next = true;
    REQUIRE(job.ask("POST", "/v1/jobs/a%2Fb/restart", "{}")->status == 409);
    REQUIRE(job.given->body.find("a fault of ours") != std::string::npos);
  }
  SECTION("while it waits to be written") {
    const test::TemporaryFolder folder{"/dev/shm"};
    Life life{folder.path.string()};
    Agent first{life.coordinator}, second{life.coordinator};
    first.join("a");
    second.join("b");
    REQUIRE(life.until([&] { return Looked::is_told_to_host(first) || Looked::is_told_to_host(second); }));
    const bool first_hosts = Looked::is_told_to_host(first);
    std::optional<OpsAnswer> given;
    OpsRequest request{.method = "POST", .target = "/v1/jobs/a%2Fb/restart", .headers = {}};
    request.headers.emplace_back("Content-Type", "application/json");
    (first_hosts ? second : first).fails_next = true;  // as it hears of its place
    (first_hosts ? first : second).attendance->said(StoreReady{Round{0}, Port{4000}});
    life.onlookers.service().perform(request, {.right = Right::control, .by = "u", .proved = true}, "{}",
                                     [&](OpsReply reply) { given = std::get<OpsAnswer>(std::move(reply)); });
    CAPTURE(given ? given->body : "");
    REQUIRE_FALSE(given);
    REQUIRE(life.until([&] { return given.has_value(); }));
    REQUIRE(given->status == 409);
  }
}

TEST_CASE("an order is accepted when it would survive the process", "[net][ops]") {
  const test::TemporaryFolder folder{"/dev/shm"};  // nobody waits for a disk that takes more than two seconds
  std::optional<OpsAnswer> given;
  {
    Life life{folder.path.string()};
    Agent first{life.coordinator}, second{life.coordinator};
    first.join("a");
    second.join("b");
    REQUIRE(life.until([&] { return Looked::is_told_to_host(first) || Looked::is_told_to_host(second); }));
    OpsRequest request{.method = "POST", .target = "/v1/jobs/a%2Fb/resize", .headers = {}};
    request.headers.emplace_back("Content-Type", "application/json");
    life.onlookers.service().perform(request, {.right = Right::control, .by = "u", .proved = true},
                                     R"({"min":1,"max":3})",
                                     [&](OpsReply reply) { given = std::get<OpsAnswer>(std::move(reply)); });
    CAPTURE(given ? given->body : "");
    REQUIRE_FALSE(given);  // nothing has been written since
    REQUIRE(life.until([&] { return given.has_value(); }));
    REQUIRE(given->status == 202);
    life.coordinator.abandon_state();
  }
  Life life{folder.path.string()};
  const auto jobs = life.coordinator.jobs();
  REQUIRE(jobs.size() == 1);
  REQUIRE((jobs.front().second.min_nodes == 1 && jobs.front().second.max_nodes == 3));
}

TEST_CASE("orders are counted by their verbs", "[net][ops]") {
  Looked job;
  REQUIRE(job.ask("POST", "/v1/jobs/a%2Fb/nodes/nobody/drain", "{}")->status == 409);  // refused, so none
  REQUIRE(job.ask("POST", "/v1/jobs/a%2Fb/restart", "{}")->status == 202);
  REQUIRE(number_of(job, R"(torchup_job_orders_total{run_id="a/b",verb="restart"})") == 1);
  REQUIRE(job.ask("GET", "/metrics")->body.find(R"(verb="drain")") == std::string::npos);
}

TEST_CASE("an incident of a young job is on its page, too", "[net][ops]") {
  Looked job;  // at which nobody has looked yet
  job.here.attendance->said(NodeEvent{R"({"event":"incident_recorded","summary":"rank 1 on n: exit code 1"})", 0});
  job.run();
  const json incidents = json::parse(job.ask("GET", "/v1/jobs/a%2Fb")->body).at("incidents");
  REQUIRE(incidents.size() == 1);
  REQUIRE(incidents[0].at("summary") == "rank 1 on n: exit code 1");
}

TEST_CASE("of many nodes one rank at a time is asked for", "[net][ops]") {
  const int nodes = GENERATE(64, 65);
  boost::asio::io_context loop;
  Coordinator coordinator{loop, {}, test::long_running()};
  CoordinatorOps onlookers{loop, coordinator, {.token = "the job's token"}};
  std::vector<std::unique_ptr<Agent>> agents;
  for (int number = 0; number < nodes; ++number) {
    Join join;
    join.host = "n" + std::to_string(number);
    join.node = NodeId{join.host + "_1_0"};
    join.terms.min_nodes = join.terms.max_nodes = nodes;
    agents.push_back(std::make_unique<Agent>(coordinator));
    agents.back()->attendance->said(join);
  }
  for (const auto& agent : agents) {
    if (Looked::is_told_to_host(*agent)) agent->attendance->said(StoreReady{Round{0}, Port{4000}});
  }
  loop.poll();
  std::optional<OpsAnswer> given;
  const auto asked = [&](const std::string& target) {
    given.reset();
    onlookers.service().perform({.method = "GET", .target = target, .headers = {}},
                                {.right = Right::control, .by = "u", .proved = true}, "",
                                [&](OpsReply reply) { given = std::get<OpsAnswer>(std::move(reply)); });
    loop.restart();
    loop.poll();
    std::size_t questions = 0;
    for (const auto& agent : agents) questions += agent->asked().size();
    return questions;
  };
  if (nodes == 64) {
    REQUIRE(asked("/v1/jobs/a%2Fb/stacks") == 64);
    REQUIRE_FALSE(given);
  } else {
    REQUIRE(asked("/v1/jobs/a%2Fb/stacks") == 0);
    REQUIRE(given->status == 409);
    REQUIRE(code_of(given->body) == "too_many_nodes");
    REQUIRE(asked("/v1/jobs/a%2Fb/stacks?rank=64") == 1);
  }
}

#include "rendezvous/net/daemon/coordinator_ops.hpp"

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/net/looked_job.hpp"
#include "tests/net/torchrun_hosts.hpp"

using namespace torchup;
using namespace torchup::looked_job;

TEST_CASE("an order is obeyed, or refused with its reason", "[net][ops]") {
  Looked job;
  REQUIRE(job.ask("POST", "/v1/jobs/a%2Fb/nodes/nobody/drain", "{}")->status == 409);
  REQUIRE(json::parse(job.given->body).at("error").at("code") == "cannot_be");
  REQUIRE(job.ask("POST", "/v1/jobs/none/restart", "{}")->status == 404);
  REQUIRE(job.ask("POST", "/v1/jobs/a%2Fb/restart", "{}")->status == 202);
  REQUIRE_FALSE(json::parse(job.given->body).at("accepted").get<std::string>().empty());
  const json events = json::parse(job.ask("GET", "/v1/jobs/a%2Fb/events?since=0")->body).at("events");
  const auto ordered = std::find_if(events.begin(), events.end(),
                                    [](const json& event) { return event.at("event") == "order_received"; });
  REQUIRE(ordered != events.end());
  REQUIRE(ordered->at("by") == "user u (uid 7)");
  REQUIRE(ordered->at("verb") == "restart");
}

TEST_CASE("a job that is shown and that nobody can steer refuses orders, and says why", "[net][ops]") {
  Looked job;
  const auto refused = [&](const std::string& run_id) {
    REQUIRE(job.ask("GET", "/v1/jobs/" + run_id)->status == 200);
    for (const std::string order : {"stop", "restart", "nodes/b/drain"}) {
      REQUIRE(job.ask("POST", "/v1/jobs/" + run_id + "/" + order, "{}")->status == 409);
      REQUIRE(json::parse(job.given->body).at("error").at("code") == "cannot_be");
    }
    return json::parse(job.given->body).at("error").at("message").get<std::string>();
  };
  SECTION("torchrun's agents have it to themselves") {
    StoreServer server{job.loop, test::Host::options()};
    const auto port = server.listen();
    REQUIRE(port.has_value());
    job.coordinator.admit_torchrun(server, {});
    TorchrunState state;
    state.participants[{"b", 1, 0}] = 0;
    state.last_heartbeats[{"b", 1, 0}] =
        std::chrono::floor<std::chrono::microseconds>(std::chrono::system_clock::now()) + std::chrono::hours{1};
    const UniqueFd client = test::connect_to(*port);
    test::send_all(client, test::validate + test::request(Query::compare_set, {"/torch.rendezvous.theirs"},
                                                          {"", to_base64(write_torchrun_state(state))}));
    test::run_until(job.loop, [&] { return job.ask("GET", "/v1/jobs/theirs")->status == 200; });
    REQUIRE(refused("theirs").find("torchrun's agents") != std::string::npos);
  }
  SECTION("it has ended, and its agents have gone") {
    REQUIRE(job.ask("POST", "/v1/jobs/a%2Fb/stop", "{}")->status == 202);
    for (const Agent* agent : {&job.here, &job.elsewhere}) agent->attendance->gone(true);
    test::run_until(job.loop,
                    [&] { return json::parse(job.ask("GET", "/v1/jobs/a%2Fb")->body).at("phase") == "ended"; });
    REQUIRE(refused("a%2Fb").find("phase: ended") != std::string::npos);
  }
}

TEST_CASE("what agents tell is on the job's page and among its events", "[net][ops]") {
  Looked job;
  job.ask("GET", "/v1/jobs/a%2Fb");  // from here on it has a page
  job.here.attendance->reported({.ranks = "rh"});
  job.here.attendance->said(
      NodeEvent{R"({"event":"incident_recorded","summary":"rank 1 on n: exit code 1: secret","path":""})", 0});
  job.here.attendance->said(NodeEvent{"no event", 0});
  job.here.attendance->said(NodeEvent{"{}\n{}", 0});
  const json page = json::parse(job.ask("GET", "/v1/jobs/a%2Fb")->body);
  REQUIRE(page.at("nodes").at(own_host_name() + "_1_0").at("ranks") == "rh");
  REQUIRE(page.at("incidents").size() == 1);
  const json events = json::parse(job.ask("GET", "/v1/jobs/a%2Fb/events?since=0")->body).at("events");
  REQUIRE(events.back().at("event") == "incident_recorded");
  REQUIRE(page.at("seq") == events.back().at("seq"));
}

TEST_CASE("a rank's log is its node's to give", "[net][ops]") {
  Looked job;
  const int first = job.first_rank("elsewhere");
  REQUIRE(first >= 0);
  const std::string target = "/v1/jobs/a%2Fb/ranks/" + std::to_string(first + 1) + "/log?offset=3";
  REQUIRE_FALSE(job.ask("GET", target));
  REQUIRE(job.here.asked().empty());
  const Ask asked = job.elsewhere.asked().at(0);
  REQUIRE(asked.target == target);
  REQUIRE(asked.method == "GET");
  REQUIRE(asked.control);
  REQUIRE(asked.by == "user u (uid 7)");
  const Answer answer{
      .number = asked.number, .type = "application/octet-stream", .body = "bytes", .offset = 8, .log = 5};
  job.here.attendance->said(answer);  // which was not asked
  REQUIRE_FALSE(job.given);
  job.elsewhere.attendance->said(answer);
  REQUIRE(job.given);
  REQUIRE(job.given->body == "bytes");
  REQUIRE(job.given->headers == std::vector<OpsRequest::Header>{{"Torchup-Offset", "8"}, {"Torchup-Log", "5"}});
  REQUIRE(job.ask("GET", "/v1/jobs/a%2Fb/ranks/4/log")->status == 404);
  job.elsewhere.attendance->gone(false);
  REQUIRE(job.ask("GET", target)->status == 503);
}

TEST_CASE("stacks of all ranks are their nodes' together, in the order of ranks", "[net][ops]") {
  Looked job;
  REQUIRE_FALSE(job.ask("GET", "/v1/jobs/a%2Fb/stacks"));
  const bool here_first = job.first_rank("elsewhere") > 0;
  job.given.reset();
  job.elsewhere.attendance->said(
      Answer{.number = job.elsewhere.asked().at(0).number, .type = "text/plain", .body = "E"});
  REQUIRE_FALSE(job.given);
  job.here.attendance->said(Answer{.number = job.here.asked().at(0).number, .type = "text/plain", .body = "H"});
  REQUIRE(job.given);
  REQUIRE(job.given->body == (here_first ? "HE" : "EH"));
}

TEST_CASE("a node that cannot give its stacks spoils not those of the others", "[net][ops]") {
  Looked job;
  REQUIRE_FALSE(job.ask("GET", "/v1/jobs/a%2Fb/stacks"));
  const bool here_first = job.first_rank("elsewhere") > 0;
  job.given.reset();
  const std::string refusal = R"({"error":{"code":"no_looks","message":"no one may look\nhere"}})";
  const auto refuses = [&](const Agent& agent) {
    agent.attendance->said(
        Answer{.number = agent.asked().at(0).number, .status = 503, .type = "application/json", .body = refusal});
  };
  refuses(job.elsewhere);
  SECTION("it is told why") {
    job.here.attendance->said(Answer{.number = job.here.asked().at(0).number, .type = text_content, .body = "H"});
    REQUIRE(job.given);
    REQUIRE(job.given->status == 200);
    REQUIRE(job.given->content_type == text_content);
    REQUIRE(job.given->body ==
            (here_first ? "H\nnode elsewhere: no one may look\n" : "node elsewhere: no one may look\nH"));
  }
  SECTION("but where none can it is refused") {
    refuses(job.here);
    REQUIRE(job.given);
    REQUIRE(job.given->status == 503);
    REQUIRE(job.given->body == refusal);
  }
}

TEST_CASE("without a token what workers wrote crosses no machine", "[net][ops]") {
  Looked job{""};
  const int first = job.first_rank("elsewhere");
  const std::string of_elsewhere = "/v1/jobs/a%2Fb/ranks/" + std::to_string(first) + "/log";
  REQUIRE(job.ask("GET", of_elsewhere)->status == 403);
  REQUIRE(job.given->body.find("--token-file") != std::string::npos);
  REQUIRE(job.elsewhere.asked().empty());
  const std::string of_here = "/v1/jobs/a%2Fb/ranks/" + std::to_string(2 - first) + "/log";
  REQUIRE_FALSE(job.ask("GET", of_here));
  REQUIRE(job.here.asked().size() == 1);
  // A node's people may see its own.
  job.elsewhere.attendance->said(Ask{.number = 5, .control = true, .by = "u", .method = "GET", .target = of_elsewhere});
  job.run();
  REQUIRE(job.elsewhere.asked().size() == 1);
  job.elsewhere.attendance->said(Ask{.number = 6, .control = true, .by = "u", .method = "GET", .target = of_here});
  job.run();
  REQUIRE(job.elsewhere.answered()->number == 6);
  REQUIRE(job.elsewhere.answered()->status == 403);
}

TEST_CASE("without a token a name opens nothing: where a node is seen counts", "[net][ops]") {
  boost::asio::io_context loop;
  Coordinator coordinator{loop, {}, test::long_running()};
  CoordinatorOps onlookers{loop, coordinator, {}};
  const std::string observed = GENERATE("10.0.0.1", "127.0.0.1", "::1", "10.0.0.9", "");
  const bool near = observed != "10.0.0.1";  // 10.0.0.9 is by what it has reached us
  Agent named{coordinator, observed}, other{coordinator, "10.0.0.2"};
  for (const Agent* agent : {&named, &other}) agent->join(own_host_name() + (agent == &named ? "" : "2"));
  for (const Agent* agent : {&named, &other}) {
    if (Looked::is_told_to_host(*agent)) agent->attendance->said(StoreReady{Round{0}, Port{4000}});
  }
  loop.poll();
  const auto asks_here = [&] {
    const OpsRequest request{.method = "GET", .target = "/v1/jobs/a%2Fb/stacks", .headers = {}};
    onlookers.service().perform(request, {.right = Right::control, .by = "user u (uid 7)", .proved = true}, "",
                                [](const OpsReply&) {});
    loop.restart();
    loop.poll();
  };
  asks_here();
  REQUIRE(named.asked().size() == (near ? 1 : 0));
  REQUIRE(other.asked().empty());
  // Another node that is seen at the same place, or has the same name, is not the one whose workers they are.
  other.attendance->said(
      Ask{.number = 4, .control = true, .by = "u", .method = "GET", .target = "/v1/jobs/a%2Fb/stacks"});
  loop.restart();
  loop.poll();
  REQUIRE(named.asked().size() == (near ? 1 : 0));
  REQUIRE(other.asked().size() == 1);
}

TEST_CASE("an agent that hosts records the orders of its own job alone", "[net][ops]") {
  const bool is_own = GENERATE(true, false);
  Looked job{{.token = "the job's token", .own_job = is_own ? run_id.value() : "its own"}};
  int recorded = 0;
  job.onlookers.set_own_agent({.ordered = [&](const OrderReceived& order) {
    ++recorded;
    REQUIRE(order.verb == "restart");
  }});
  REQUIRE(job.ask("POST", "/v1/jobs/a%2Fb/restart", "{}")->status == 202);
  REQUIRE(recorded == (is_own ? 1 : 0));
  // Of the others it is among the events that are told here.
  const std::string events = job.ask("GET", "/v1/jobs/a%2Fb/events?since=0")->body;
  REQUIRE((events.find("order_received") == std::string::npos) == is_own);
}

TEST_CASE("a launcher's pid and program are those of its own job alone", "[net][ops]") {
  Looked job{{.token = "the job's token", .own_job = run_id.value(), .pid = 77, .job_name = "train.py"}};
  const Agent guest{job.coordinator, "10.0.0.2", RunId{"guest"}};
  guest.join("there");
  job.run();
  const json rows = json::parse(job.ask("GET", "/v1/jobs")->body).at("jobs");
  REQUIRE(rows.size() == 2);
  for (const json& row : rows) {
    const bool is_own = row.at("run_id") == run_id.value();
    REQUIRE(row.contains("pid") == is_own);
    REQUIRE(row.at("name") == (is_own ? json("train.py") : json()));
  }
}

TEST_CASE("a node asks for its people, in its own job alone", "[net][ops]") {
  Looked job;
  const auto ask = [&](std::string method, std::string target, bool control, std::string body) {
    job.here.heard.clear();
    job.here.attendance->said(Ask{.number = 9,
                                  .control = control,
                                  .by = "user v (uid 8)",
                                  .method = std::move(method),
                                  .target = std::move(target),
                                  .body = std::move(body)});
    REQUIRE_FALSE(job.here.answered());  // not within what it says
    job.run();
    REQUIRE(job.here.answered());
    return *job.here.answered();
  };
  REQUIRE(ask("GET", "/v1/jobs/a%2Fb", false, "").status == 200);
  REQUIRE(ask("GET", "/v1/jobs/another", true, "").status == 404);
  REQUIRE(ask("POST", "/v1/jobs/a%2Fb/restart", false, "{}").status == 403);
  REQUIRE(ask("POST", "/v1/node/page", true, "{}").status == 403);
  REQUIRE(ask("GET", "/v1/jobs/a%2Fb/stream", true, "").status == 501);
  REQUIRE(ask("POST", "/v1/jobs/a%2Fb/restart", true, "{}").status == 202);
}

TEST_CASE("the status has the store's counters and every job with its nodes", "[net][ops]") {
  Looked job;
  job.onlookers.set_port([] { return PortNumbers{.store = {.connections = 3, .requests = 1ULL << 40U}}; });
  const Agent other{job.coordinator, "10.0.0.1", RunId{"another \"one\"\n"}};
  other.join("third\xff");
  const json status = json::parse(job.ask("GET", "/status")->body);
  REQUIRE(status.at("connections") == 3);
  REQUIRE(status.at("requests") == 1ULL << 40U);
  REQUIRE(status.at("jobs").size() == 2);
  const json& running = status.at("jobs").at("a/b");
  REQUIRE(running.at("phase") == "running");
  REQUIRE((running.at("min_nodes") == 2 && running.at("max_nodes") == 2 && running.at("world_size") == 4));
  REQUIRE_FALSE(running.contains("verdict"));
  REQUIRE(running.at("nodes").size() == 2);
  for (const json& node : running.at("nodes")) {
    REQUIRE((node.at("state") == "seated" && node.at("local_world_size") == 2 && node.contains("group_rank")));
    REQUIRE_FALSE(node.contains("agent"));
  }
  const json& waiting = status.at("jobs").at("another \"one\"\n");
  REQUIRE(waiting.at("phase") == "gathering");
  REQUIRE(waiting.at("nodes").at(0).at("host") == "third\xef\xbf\xbd");
  REQUIRE(job.ask("POST", "/v1/jobs/a%2Fb/stop", "{}")->status == 202);
  const json ended = json::parse(job.ask("GET", "/status")->body).at("jobs").at("a/b").at("verdict");
  REQUIRE(ended.at("exit_code") == 143);
  REQUIRE(ended.at("reason").get<std::string>().starts_with("stopped by"));
}

TEST_CASE("a node learns nothing of jobs that are not its own", "[net][ops]") {
  Looked job;
  const Agent other{job.coordinator, "10.0.0.1", RunId{"another"}};
  other.join("third");
  const auto ask = [&](std::string target) {
    job.here.heard.clear();
    job.here.attendance->said(Ask{.control = true, .by = "u", .method = "GET", .target = std::move(target)});
    job.run();
    return *job.here.answered();
  };
  const json rows = json::parse(ask("/v1/jobs").body).at("jobs");
  REQUIRE(rows.size() == 1);
  REQUIRE(rows.at(0).at("run_id") == "a/b");
  REQUIRE(json::parse(job.ask("GET", "/v1/jobs")->body).at("jobs").size() == 2);
  for (const std::string target : {"/v1/jobs/another", "/status", "/metrics", "/v1/stream"}) {
    REQUIRE(ask(target).status >= 400);
  }
}

#include "rendezvous/net/ops/event_feed.hpp"

#include <nlohmann/json.hpp>

#include "rendezvous/core/link/operations_messages.hpp"
#include "tests/net/ops_server.hpp"

using namespace torchup;
using namespace std::chrono_literals;
using nlohmann::json;
using test::control;
using test::OpsServer;

namespace {

/// The data of all frames of that kind.
std::vector<json> frames(const std::string& heard, const std::string& kind) {
  std::vector<json> found;
  const std::string begin = "event: " + kind + "\n";
  for (std::size_t at = heard.find(begin); at != std::string::npos; at = heard.find(begin, at + 1)) {
    const std::size_t data = heard.find("data: ", at) + 6;
    const std::size_t end = heard.find("\n\n", data);
    if (end == std::string::npos) break;
    found.push_back(json::parse(heard.substr(data, end - data)));
  }
  return found;
}

std::string last_id(const std::string& heard) {
  const std::size_t at = heard.rfind("\nid: ") + 5;
  return heard.substr(at, heard.find('\n', at) - at);
}

/// One whose events the test tells of itself.
struct Feed {
  Feed() { jobs.add("job"); }
  /// Who has had the snapshot.
  std::shared_ptr<FrameSource> follow_behind(std::uint64_t seq) {
    OpsCall call;
    call.route = OpsRoute::job_stream;
    call.caller.right = Right::control;
    call.run_id = "job";
    call.behind = seq;
    auto reader = feed.follow(call);
    REQUIRE(reader->next().frame->starts_with("event: snapshot\n"));
    return reader;
  }
  boost::asio::io_context loop{1};
  test::ToldJobs jobs;
  EventRings rings{{}};
  EventFeed feed{loop, rings, jobs};
};

}  // namespace

TEST_CASE("a stream ends where the jobs are not known any more, or better elsewhere", "[net][ops]") {
  OpsServer server;
  server.jobs.add("a");
  auto job = server.connect(), all = server.connect();
  job.ask("/v1/jobs/a/stream");
  all.ask("/v1/stream");
  REQUIRE((job.hears("event: snapshot\n") && all.hears("event: snapshot\n")));
  server.jobs.hosting = false;
  REQUIRE((job.sees_end() && all.sees_end()));
}

TEST_CASE("a stream begins with the job as it is, and goes on with what happens", "[net][ops]") {
  OpsServer server;
  JobPage& page = server.jobs.add("a/b");
  server.ops.record("a/b", R"({"type":"before"})");
  auto peer = server.connect();
  peer.ask("/v1/jobs/a%2Fb/stream");
  REQUIRE(peer.hears("\n\n"));
  REQUIRE(peer.heard().find("Content-Type: text/event-stream\r\n") != std::string::npos);
  REQUIRE(peer.hears("event: snapshot\n"));
  server.ops.record("a/b", R"({"type":"after"})");
  REQUIRE(peer.hears("event: event\nid: 2\ndata: {\"seq\":2,\"type\":\"after\"}\n\n"));
  server.jobs.show(page, "stopping");
  REQUIRE(peer.hears("event: change\n"));
  REQUIRE(peer.hears("stopping"));
  REQUIRE(frames(peer.heard(), "snapshot").at(0).at("run_id") == "a/b");
  REQUIRE(frames(peer.heard(), "change").at(0).at("phase") == "stopping");
  REQUIRE(frames(peer.heard(), "event").size() == 1);
  server.jobs.jobs.clear();
  server.ops.record("a/b", "{}");
  REQUIRE(peer.sees_end());  // there is no such job any more
}

TEST_CASE("a stream goes on where it broke off", "[net][ops]") {
  OpsServer server{{}, {.events_max = 4}};
  server.jobs.add("job");
  for (int number = 1; number <= 6; ++number) server.ops.record("job", "{}");
  const auto heard_behind = [&](const std::string& last, const std::string& wanted) {
    auto peer = server.connect();
    peer.ask("/v1/jobs/job/stream", "Last-Event-ID: " + last + "\r\n");
    REQUIRE(peer.hears(wanted));
    return peer.heard();
  };
  const std::string near = heard_behind("4", "id: 6\n");
  REQUIRE(frames(near, "event").size() == 2);
  REQUIRE(frames(near, "gap").empty());
  const std::string far = heard_behind("1", "id: 6\n");
  REQUIRE(frames(far, "gap").at(0) == json{{"lost", 1}});
  REQUIRE(frames(far, "event").size() == 4);
  REQUIRE(far.find("event: gap") < far.find("event: event"));
  REQUIRE(frames(heard_behind("7", "event: gap"), "gap").size() == 1);  // which never was
  REQUIRE(frames(heard_behind("rubbish", "event: gap"), "gap").size() == 1);
  REQUIRE(server.ops.feed().lost() >= 1);
}

TEST_CASE("no frame is kept for a number that never was, nor when nobody follows", "[net][ops]") {
  OpsServer server;
  server.jobs.add("job");
  const std::string event = R"({"text":")" + std::string(100'000, 'x') + R"("})";
  for (int number = 0; number < 5; ++number) server.ops.record("job", event);
  auto stays = server.connect();
  stays.ask("/v1/stream");
  REQUIRE(stays.hears("event: snapshot\n"));
  const auto hears_all_behind = [&](const std::string& last) {
    auto peer = server.connect();
    peer.ask("/v1/jobs/job/stream", "Last-Event-ID: " + last + "\r\n");
    REQUIRE(peer.hears("id: 5\n"));
    return server.ops.feed().kept_bytes();
  };
  for (int number = 1'000'000; number < 1'000'005; ++number) REQUIRE(hears_all_behind(std::to_string(number)) == 0);
  auto follows = server.connect();
  follows.ask("/v1/jobs/job/stream", "Last-Event-ID: 0\r\n");
  std::size_t most = 0;
  REQUIRE(server.until([&] {
    most = std::max(most, server.ops.feed().kept_bytes());
    return most > 0;
  }));
  REQUIRE(most > 500'000);
  REQUIRE(server.until([&] { return server.ops.feed().kept_bytes() == 0; }));  // though nothing happens
  REQUIRE(follows.hears("id: 5\n"));
}

TEST_CASE("of many places so much is kept, and no more", "[net][ops]") {
  Feed it;
  const std::string event = R"({"text":")" + std::string(100'000, 'x') + R"("})";
  for (int number = 0; number < 40; ++number) it.rings.add("job", event);
  std::vector<std::shared_ptr<FrameSource>> readers;
  for (std::uint64_t behind = 0; behind < 30; ++behind) {
    readers.push_back(it.follow_behind(behind));
    REQUIRE(readers.back()->next().frame->size() > 900'000);
    REQUIRE(it.feed.kept_bytes() <= EventFeed::kept_bytes_max);
    REQUIRE(it.feed.kept_bytes() > 0);
  }
  readers.clear();
  REQUIRE(it.feed.kept_bytes() == 0);
}

TEST_CASE("who comes when nobody followed sees the jobs as they are", "[net][ops]") {
  OpsServer server;
  server.jobs.add("first");
  {
    auto peer = server.connect();
    peer.ask("/v1/stream");
    REQUIRE(peer.hears("first"));
    peer.leave();
    REQUIRE(server.until([&] { return server.ops.feed().readers() == 0; }));
  }
  server.jobs.add("another one");
  auto peer = server.connect();
  peer.ask("/v1/stream");
  REQUIRE(peer.hears("event: snapshot\n"));
  REQUIRE(server.until([&] { return !frames(peer.heard(), "snapshot").empty(); }));
  REQUIRE(frames(peer.heard(), "snapshot").front().at("jobs").size() == 2);
}

TEST_CASE("events of a further job of the run id are not those of the one before", "[net][ops]") {
  Feed it;
  it.rings.add("job", R"({"of":"the first"})");
  const auto stays = it.follow_behind(0);
  REQUIRE(stays->next().frame->find("the first") != std::string::npos);
  it.rings.keep_only({});
  it.feed.keep_only({});
  it.rings.add("job", R"({"of":"the second"})");
  REQUIRE(it.follow_behind(0)->next().frame->find("the second") != std::string::npos);
}

TEST_CASE("who may only read follows without what workers wrote", "[net][ops]") {
  OpsServer server;
  server.jobs.add("job");
  auto reader = server.connect();
  reader.ask("/v1/jobs/job/stream");
  auto steerer = server.connect();
  steerer.ask("/v1/jobs/job/stream", control);
  REQUIRE(reader.hears("event: snapshot\n"));
  REQUIRE(steerer.hears("event: snapshot\n"));
  server.ops.record("job", R"({"type":"worker_exited","message":"secret"})");
  REQUIRE(steerer.hears("secret"));
  REQUIRE(reader.hears("\"withheld\":true"));
  REQUIRE(reader.heard().find("secret") == std::string::npos);
  REQUIRE(server.text_of("/v1/jobs/job/events?since=0").find("secret") == std::string::npos);
  REQUIRE(server.text_of("/v1/jobs/job/events?since=0", control).find("secret") != std::string::npos);
}

TEST_CASE("a silent stream has a comment now and then", "[net][ops]") {
  OpsServer server{{.comment = 20ms}};
  server.jobs.add("job");
  auto peer = server.connect();
  peer.ask("/v1/jobs/job/stream");
  REQUIRE(peer.hears("\n\n:\n\n:\n\n"));
}

TEST_CASE("so many follow, and no more", "[net][ops]") {
  OpsServer server{{.streams_max = 2}};
  server.jobs.add("job");
  auto first = server.connect();
  first.ask("/v1/jobs/job/stream");
  auto second = server.connect();
  second.ask("/v1/stream");
  REQUIRE(first.hears("event: snapshot\n"));
  REQUIRE(second.hears("event: snapshot\n"));
  REQUIRE(server.ops.feed().readers() == 2);
  REQUIRE(server.status_of("/v1/stream") == 503);
  first.leave();
  REQUIRE(server.until([&] { return server.http.streams() == 1; }));  // it is noticed though nothing is said to it
  auto third = server.connect();
  third.ask("/v1/stream");
  REQUIRE(third.hears("event: snapshot\n"));
}

TEST_CASE("a stream has its place from when it is asked for", "[net][ops]") {
  OpsServer server{{.streams_max = 2}};
  server.jobs.hosting = false;
  std::vector<HttpServer::Reply> asked;
  server.jobs.others = [&](const OpsCall&, HttpServer::Reply reply) { asked.push_back(std::move(reply)); };
  auto first = server.connect();
  first.ask("/v1/stream");
  auto second = server.connect();
  second.ask("/v1/jobs/job/stream");
  REQUIRE(server.until([&] { return asked.size() == 2; }));
  REQUIRE(server.status_of("/v1/stream") == 503);
  REQUIRE(asked.size() == 2);
  asked.front()(OpsAnswer{.status = 404});  // no stream came of it
  REQUIRE(server.until([&] { return server.http.streams() == 1; }));
  auto third = server.connect();
  third.ask("/v1/stream");
  REQUIRE(server.until([&] { return asked.size() == 3; }));
}

TEST_CASE("who follows all jobs sees them come and go", "[net][ops]") {
  OpsServer server;
  server.jobs.add("first");
  auto peer = server.connect();
  peer.ask("/v1/stream");
  REQUIRE(peer.hears("event: snapshot\n"));
  REQUIRE(peer.hears("first"));
  server.jobs.add("another one");
  REQUIRE(peer.hears("another one"));
  REQUIRE(frames(peer.heard(), "change").back().at("jobs").size() == 2);
  peer.forget();
  server.jobs.jobs.clear();
  REQUIRE(peer.hears("event: change\n"));
  REQUIRE(server.until([&] { return !frames(peer.heard(), "change").empty(); }));
  REQUIRE(frames(peer.heard(), "change").back().at("jobs").empty());
}

TEST_CASE("nothing is lost to those who read, and no memory to one who does not", "[net][ops][many]") {
  OpsServer server{{.progress = 300ms}};
  server.jobs.add("job");
  auto deaf = server.connect();
  deaf.ask("/v1/jobs/job/stream");
  auto reader = server.connect();
  reader.ask("/v1/jobs/job/stream");
  REQUIRE(reader.hears("event: snapshot\n"));
  REQUIRE(server.until([&] { return server.ops.feed().readers() == 2; }));
  const std::string event = R"({"type":"progress","text":")" + std::string(1000, 'x') + R"("})";
  std::uint64_t expected = 1;
  for (int round = 0; round < 30; ++round) {
    for (int number = 0; number < 1000; ++number) server.ops.record("job", event);
    REQUIRE(reader.hears("\nid: " + std::to_string((round + 1) * 1000) + "\n"));
    for (const json& seen : frames(reader.heard(), "event")) REQUIRE(seen.at("seq") == expected++);
    REQUIRE(frames(reader.heard(), "gap").empty());
    reader.forget();
  }
  REQUIRE(expected == 30'001);
  REQUIRE(server.until([&] { return server.http.streams() == 1; }));  // the deaf one was closed
}

TEST_CASE("a reader that was away hears how much it has missed", "[net][ops]") {
  OpsServer server{{}, {.events_max = 10}};
  server.jobs.add("job");
  auto peer = server.connect();
  peer.ask("/v1/jobs/job/stream");
  REQUIRE(peer.hears("event: snapshot\n"));
  const std::string event = R"({"text":")" + std::string(300'000, 'x') + R"("})";
  std::uint64_t written = 0;
  for (; written < 100; ++written) {  // it does not read, and the loop runs
    server.ops.record("job", event);
    server.until([end = std::chrono::steady_clock::now() + 25ms] { return std::chrono::steady_clock::now() >= end; });
  }
  REQUIRE(peer.hears("id: 100\n"));
  REQUIRE(server.until([&] { return peer.heard().ends_with("}\n\n"); }));  // and all of that event
  std::uint64_t told = frames(peer.heard(), "event").size();
  for (const json& gap : frames(peer.heard(), "gap")) told += gap.at("lost").get<std::uint64_t>();
  REQUIRE(told == written);
  REQUIRE_FALSE(frames(peer.heard(), "gap").empty());
  REQUIRE(last_id(peer.heard()) == "100");
}

TEST_CASE("who waits for events gets the next one", "[net][ops]") {
  OpsServer server;
  server.jobs.add("job");
  server.jobs.add("other");
  auto waiting = server.connect();
  waiting.ask("/v1/jobs/job/events?since=0&wait_s=20", control);
  auto brief = server.connect();
  brief.ask("/v1/jobs/job/events?since=0&wait_s=1", control);
  REQUIRE(brief.hears("{\"events\":[],\"next\":0,\"lost\":0}"));
  server.ops.record("other", "{}");
  REQUIRE(waiting.heard().empty());
  server.ops.record("job", "{}");
  REQUIRE(waiting.hears("{\"events\":[{\"seq\":1}],\"next\":1,\"lost\":0}"));
  REQUIRE(server.text_of("/v1/jobs/job/events?since=9", control).find("\"next\":1") != std::string::npos);
  REQUIRE(server.status_of("/v1/jobs/none/events") == 404);
  REQUIRE(server.status_of("/v1/jobs/none/stream") == 404);
}

TEST_CASE("another node may ask for what its own people ask it", "[net][ops]") {
  OpsServer server;
  server.jobs.add("job");
  server.ops.record("job", R"({"message":"secret"})");
  const auto answer = [&](std::string method, std::string target, Right right, std::string body) {
    OpsRequest request{.method = std::move(method), .target = std::move(target)};
    if (!body.empty()) request.headers.emplace_back("Content-Type", "application/json");
    std::optional<OpsAnswer> given;
    server.ops.perform(request, {.right = right, .by = "user u (uid 7)"}, body,
                       [&](OpsReply reply) { given = std::get<OpsAnswer>(std::move(reply)); });
    REQUIRE(given);
    return *given;
  };
  REQUIRE(answer("GET", "/v1/jobs/job", Right::read, "").status == 200);
  REQUIRE(answer("GET", "/v1/jobs/job/events?since=0", Right::read, "").body.find("secret") == std::string::npos);
  REQUIRE(answer("GET", "/v1/jobs/job/stream", Right::read, "").status == 501);
  REQUIRE(answer("POST", "/v1/jobs/job/stop", Right::read, "{}").status == 403);
  REQUIRE(answer("POST", "/v1/jobs/job/stop", Right::control, "{\"x\":1}").status == 400);
  OpsCall performed;
  server.jobs.others = [&](const OpsCall& call, const HttpServer::Reply& reply) {
    performed = call;
    reply(OpsAnswer{.status = 202});
  };
  REQUIRE(answer("POST", "/v1/jobs/job/stop", Right::control, "{\"now\":true}").status == 202);
  REQUIRE(performed.order == Order{order::Stop{.now = true}});
  REQUIRE(performed.caller.by == "user u (uid 7)");
}

TEST_CASE("what another node asks for fits their way, and is answered before it gives up", "[net][ops]") {
  OpsServer server;
  server.jobs.add("job");
  const auto ask = [&](const std::string& target) {
    std::optional<OpsAnswer> given;
    server.ops.perform({.method = "GET", .target = target, .headers = {}}, {.right = Right::control, .by = "u"}, "",
                       [&](OpsReply reply) { given = std::get<OpsAnswer>(std::move(reply)); });
    return given;
  };
  const std::string event = R"({"text":")" + std::string(60'000, 'x') + R"("})";
  for (int number = 0; number < 5; ++number) server.ops.record("job", event);
  const auto first = ask("/v1/jobs/job/events?since=0");
  REQUIRE(first);
  REQUIRE(first->body.size() <= answer_body_bytes_max);
  REQUIRE(json::parse(first->body).at("events").size() == 3);  // 192 KiB at most
  REQUIRE(json::parse(first->body).at("next") == 3);
  REQUIRE(json::parse(ask("/v1/jobs/job/events?since=3")->body).at("events").size() == 2);
  server.jobs.hosting = false;
  OpsCall passed;
  server.jobs.others = [&](const OpsCall& call, const HttpServer::Reply&) { passed = call; };
  ask("/v1/jobs/job/events?since=5&wait_s=20");
  REQUIRE(passed.wait == 10s);
  ask("/v1/jobs/job/events?since=5&wait_s=3");
  REQUIRE(passed.wait == 3s);
}

TEST_CASE("what is asked of jobs whose rounds are made elsewhere goes there", "[net][ops]") {
  OpsServer server;
  server.jobs.hosting = false;
  for (const std::string target : {"/v1/jobs", "/v1/jobs/job", "/v1/jobs/job/events", "/v1/jobs/job/stream", "/"}) {
    std::optional<OpsRoute> route;
    server.jobs.others = [&](const OpsCall& call, const HttpServer::Reply& reply) {
      route = call.route;
      reply(OpsAnswer{.status = 202});
    };
    REQUIRE(server.status_of(target) == 202);
    REQUIRE(route);
  }
}

#include "rendezvous/core/ops/ops_route.hpp"

#include <catch2/catch.hpp>
#include <string>

#include "rendezvous/core/text/percent.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

const OpsPeer local{.address = "127.0.0.1", .by_loopback = true};
const OpsPeer elsewhere{.address = "10.0.0.7"};
const OpsAccess with_tokens{.own_uid = 1000,
                            .control_token = "control token",
                            .read_token = "read token",
                            .page_token = "page token",
                            .host_names = {"node1", "Door.example"}};
const OpsAccess without{.own_uid = 1000, .host_names = {"node1"}};

OpsRequest get(std::string target, std::vector<OpsRequest::Header> headers = {{"Host", "127.0.0.1:29400"}}) {
  return {.method = "GET", .target = std::move(target), .headers = std::move(headers)};
}

OpsRequest post(std::string target, std::string type = "application/json") {
  return {.method = "POST", .target = std::move(target), .headers = {{"Content-Type", std::move(type)}}};
}

OpsRequest bearing(std::string token) {
  return get("/status", {{"host", "evil.example"}, {"authorization", "Bearer " + token}});
}

/// Status of a refusal; 0: there was none.
template <class T>
int status_of(const OrRefusal<T>& outcome) {
  const auto* refusal = std::get_if<Refusal>(&outcome);
  return refusal ? refusal->status : 0;
}

Right right_of(const OpsRequest& request, const OpsPeer& peer, const OpsAccess& access) {
  return std::get<OpsCaller>(admitted(request, peer, access)).right;
}

const OpsCaller controller{.right = Right::control, .proved = true, .by_socket = true};
const OpsCaller reading{.right = Right::read};
const OpsCaller stranger{};

OpsCall call_of(const OpsRequest& request) { return std::get<OpsCall>(routed(request, controller)); }

/// The order that a body makes, or the refusal's status.
std::variant<Order, int> order_of(const std::string& target, std::string_view body) {
  OpsCall call = call_of(post(target));
  if (const auto refusal = read_body(call, body)) return refusal->status;
  return *call.order;
}

}  // namespace

TEST_CASE("a right over TCP follows from the token or from loopback", "[unit][ops_route]") {
  REQUIRE(right_of(get("/"), local, with_tokens) == Right::read);
  REQUIRE(right_of(get("/"), elsewhere, with_tokens) == Right::none);
  for (const OpsPeer& peer : {local, elsewhere}) {
    REQUIRE(right_of(bearing("control token"), peer, with_tokens) == Right::control);
    REQUIRE(right_of(bearing("page token"), peer, with_tokens) == Right::control);
    REQUIRE(right_of(bearing("read token"), peer, with_tokens) == Right::read);
    REQUIRE(right_of(bearing("  read token"), peer, with_tokens) == Right::read);
  }
  REQUIRE(right_of(get("/", {{"Host", "x"}, {"Authorization", "bEARER read token"}}), elsewhere, with_tokens) ==
          Right::read);
}

TEST_CASE("a token that is wrong is a 401 wherever it comes from", "[unit][ops_route]") {
  for (const OpsPeer& peer : {local, elsewhere}) {
    for (const std::string wrong : {"", "control toke", "control token ", "control tokex", "read"}) {
      REQUIRE(status_of(admitted(bearing(wrong), peer, with_tokens)) == 401);
      REQUIRE(status_of(admitted(bearing(wrong), peer, without)) == 401);  // where there is none all are wrong
    }
    const auto basic = get("/", {{"Host", "localhost"}, {"Authorization", "Basic control token"}});
    REQUIRE(status_of(admitted(basic, peer, with_tokens)) == 401);
  }
}

TEST_CASE("a token counts in its header alone", "[unit][ops_route]") {
  for (const std::string name : {"token", "access_token", "authorization"}) {
    const auto request = get("/v1/jobs?" + name + "=control%20token");
    REQUIRE(right_of(request, local, with_tokens) == Right::read);
    REQUIRE(right_of(request, elsewhere, with_tokens) == Right::none);
  }
  REQUIRE(right_of(get("/", {{"Host", "localhost"}, {"Cookie", "token=control token"}}), elsewhere, with_tokens) ==
          Right::none);
}

TEST_CASE("without a token a request names this machine", "[unit][ops_route]") {
  for (const std::string host : {"127.0.0.1", "127.0.0.1:80", "10.1.2.3:29400", "[::1]", "[fd00::1]:8080", "localhost",
                                 "LocalHost:1", "localhost.", "node1", "NODE1:29400", "door.example"}) {
    INFO(host);
    REQUIRE(status_of(admitted(get("/healthz", {{"Host", host}}), local, with_tokens)) == 0);
  }
  for (const std::string host :
       {"evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "node2", "", ":80",
        "127.0.0.1:x", "127.0.0.1:1:2", "[::1", "[127.0.0.1]", "[::1]x", "localhost@evil.example", "local host"}) {
    INFO(host);
    REQUIRE(status_of(admitted(get("/healthz", {{"Host", host}}), local, with_tokens)) == 421);
    REQUIRE(status_of(admitted(get("/healthz", {{"Host", host}}), elsewhere, with_tokens)) == 421);
  }
  REQUIRE(status_of(admitted(bearing("control token"), local, with_tokens)) == 0);  // no foreign page has it
}

TEST_CASE("headers that contradict themselves are a 400", "[unit][ops_route]") {
  REQUIRE(status_of(admitted(get("/", {}), local, with_tokens)) == 400);
  REQUIRE(status_of(admitted(get("/", {{"Host", "localhost"}, {"host", "localhost"}}), local, with_tokens)) == 400);
  const auto twice =
      get("/", {{"Host", "localhost"}, {"Authorization", "Bearer read token"}, {"Authorization", "Bearer x"}});
  REQUIRE(status_of(admitted(twice, local, with_tokens)) == 400);
  OpsRequest old = get("/", {});
  old.http_1_1 = false;  // HTTP/1.0 has no Host
  REQUIRE(right_of(old, local, with_tokens) == Right::read);
}

TEST_CASE("a unix socket is for its user and root", "[unit][ops_route]") {
  const auto by = [](std::uint32_t uid, std::string name) {
    return admitted(get("/", {}), {.user = OpsPeer::User{uid, std::move(name)}}, with_tokens);
  };
  REQUIRE(std::get<OpsCaller>(by(1000, "u1000")).right == Right::control);
  REQUIRE(std::get<OpsCaller>(by(1000, "u1000")).by == "user u1000 (uid 1000)");
  REQUIRE(std::get<OpsCaller>(by(0, "root")).right == Right::control);
  REQUIRE(std::get<OpsCaller>(by(1000, "")).by == "user of uid 1000");
  REQUIRE(status_of(by(1001, "other")) == 403);
}

TEST_CASE("who steers by a token is known by his address", "[unit][ops_route]") {
  REQUIRE(std::get<OpsCaller>(admitted(bearing("control token"), elsewhere, with_tokens)).by == "token from 10.0.0.7");
}

TEST_CASE("each route has a right that it needs", "[unit][ops_route]") {
  for (const std::string open : {"/healthz", "/readyz", "/", "/jobs/a"})
    REQUIRE(status_of(routed(get(open), stranger)) == 0);
  for (const std::string read :
       {"/metrics", "/status", "/v1/jobs", "/v1/stream", "/v1/jobs/a", "/v1/jobs/a/events", "/v1/jobs/a/stream"}) {
    REQUIRE(status_of(routed(get(read), stranger)) == 403);
    REQUIRE(status_of(routed(get(read), reading)) == 0);
  }
  for (const std::string control : {"/v1/jobs/a/ranks/3/log", "/v1/jobs/a/stacks"}) {
    REQUIRE(status_of(routed(get(control), reading)) == 403);
    REQUIRE(status_of(routed(get(control), controller)) == 0);
  }
  for (const std::string order : {"/v1/jobs/a/stop", "/v1/jobs/a/restart", "/v1/jobs/a/resize",
                                  "/v1/jobs/a/nodes/n/drain", "/v1/jobs/a/nodes/n/undrain", "/v1/node/page"}) {
    REQUIRE(status_of(routed(post(order), stranger)) == 403);
    REQUIRE(status_of(routed(post(order), reading)) == 403);
    REQUIRE(status_of(routed(post(order), controller)) == 0);
  }
}

TEST_CASE("a right that is missing is a 401 where a token would help", "[unit][ops_route]") {
  const auto status = [](const OpsRequest& request, const OpsPeer& peer, const OpsAccess& access, std::string target) {
    OpsRequest asked = request;
    asked.method = "POST";
    asked.target = std::move(target);
    return status_of(routed(asked, std::get<OpsCaller>(admitted(request, peer, access))));
  };
  REQUIRE(status(get("/"), local, with_tokens, "/v1/jobs/a/stop") == 401);
  REQUIRE(status(get("/"), elsewhere, with_tokens, "/v1/jobs/a/stop") == 401);
  REQUIRE(status(get("/"), local, without, "/v1/jobs/a/stop") == 403);
  REQUIRE(status(get("/"), elsewhere, without, "/v1/jobs/a/stop") == 403);
  REQUIRE(status(bearing("read token"), local, with_tokens, "/v1/jobs/a/stop") == 403);
  REQUIRE(status(bearing("read token"), elsewhere, with_tokens, "/v1/jobs/a/stop") == 403);
  OpsAccess only_read = without;
  only_read.read_token = "read token";
  REQUIRE(status_of(routed(get("/status"), std::get<OpsCaller>(admitted(get("/"), elsewhere, only_read)))) == 401);
  REQUIRE(status(get("/"), local, only_read, "/v1/jobs/a/stop") == 403);  // there is none that would help
  const Refusal missing = std::get<Refusal>(routed(get("/status"), OpsCaller{.token_helps = true}));
  REQUIRE(refusal_headers(missing) == std::vector<OpsRequest::Header>{{"WWW-Authenticate", "Bearer"}});
}

TEST_CASE("strangers do not learn which paths there are", "[unit][ops_route]") {
  REQUIRE(status_of(routed(get("/nothing"), stranger)) == 403);
  REQUIRE(status_of(routed(get("/nothing"), reading)) == 404);
  for (const std::string path : {"/v1", "/v1/", "/v1/jobs/", "//", "/v1/jobs/a/", "/v1/jobs/a/b", "/healthz/", "/jobs/",
                                 "/v1/jobs/a/ranks/3", "/v1/jobs//events", "/V1/jobs"}) {
    INFO(path);
    REQUIRE(status_of(routed(get(path), controller)) == 404);
  }
  for (const std::string target : {"", "*", "healthz", "http://localhost/healthz"}) {
    REQUIRE(status_of(routed(get(target), controller)) == 400);
  }
}

TEST_CASE("a method that a path has not is a 405 that names those it has", "[unit][ops_route]") {
  const auto allow = [](std::string method, std::string target) {
    OpsRequest request = get(std::move(target));
    request.method = std::move(method);
    const auto outcome = routed(request, controller);
    const auto* refusal = std::get_if<Refusal>(&outcome);
    return refusal && refusal->status == 405 ? refusal->allow : "";
  };
  REQUIRE(allow("POST", "/status") == "GET, HEAD");
  REQUIRE(allow("OPTIONS", "/v1/jobs/a/stop") == "POST");
  REQUIRE(allow("GET", "/v1/jobs/a/stop") == "POST");
  REQUIRE(allow("HEAD", "/v1/jobs/a/stream") == "GET");
  REQUIRE(allow("get", "/healthz") == "GET, HEAD");
  REQUIRE(allow("HEAD", "/healthz").empty());
  OpsRequest head = get("/status");
  head.method = "HEAD";
  REQUIRE(call_of(head).head);
  REQUIRE(refusal_headers({405, "", "", "POST"}) == std::vector<OpsRequest::Header>{{"Allow", "POST"}});
}

TEST_CASE("names in a path are whole, whatever is in them", "[unit][ops_route]") {
  const std::string name = "a/b <\"\\>?&#%\xC3\xA4 \x01";
  REQUIRE(percent_decoded(percent_encoded(name)) == name);
  REQUIRE(percent_encoded("a/b") == "a%2Fb");
  REQUIRE(call_of(get("/v1/jobs/" + percent_encoded(name))).run_id == name);
  REQUIRE(call_of(get("/v1/jobs/a+b%2fc/events")).run_id == "a+b/c");
  const OpsCall drain = call_of(post("/v1/jobs/a/nodes/" + percent_encoded(name) + "/drain"));
  REQUIRE(*drain.order == Order{order::Drain{name}});
  for (const std::string broken : {"%", "%4", "%4g", "%+4", "a%"}) {
    REQUIRE_FALSE(percent_decoded(broken));
    REQUIRE(status_of(routed(get("/v1/jobs/" + broken), controller)) == 400);
  }
}

TEST_CASE("what stands behind the question mark is read where it means something", "[unit][ops_route]") {
  const OpsCall events = call_of(get("/v1/jobs/a/events?since=18446744073709551615&wait_s=20&other=%zz"));
  REQUIRE(events.since == 18446744073709551615ULL);
  REQUIRE(events.wait == 20s);
  REQUIRE(call_of(get("/v1/jobs/a/events")).since == 0);
  const OpsCall log = call_of(get("/v1/jobs/a/ranks/12/log?stream=stderr&offset=7"));
  REQUIRE(log.rank == Rank{12});
  REQUIRE(log.stream == LogStream::err);
  REQUIRE(log.offset == 7);
  const OpsCall stacks = call_of(get("/v1/jobs/a/stacks?rank=3&native=1"));
  REQUIRE(stacks.rank == Rank{3});
  REQUIRE(stacks.native);
  REQUIRE_FALSE(call_of(get("/v1/jobs/a/stacks")).rank);
  for (const std::string target :
       {"events?wait_s=21", "events?wait_s=-1", "events?since=", "events?since=1x", "events?since=18446744073709551616",
        "events?since=1&since=2", "events?since=%", "ranks/0/log?stream=both", "ranks/-1/log", "ranks/x/log",
        "ranks/2147483648/log", "stacks?rank=x", "stacks?native=2", "ranks/0/log?offset=1.5"}) {
    INFO(target);
    REQUIRE(status_of(routed(get("/v1/jobs/a/" + target), controller)) == 400);
  }
}

TEST_CASE("a stream goes on behind the event that was the last", "[unit][ops_route]") {
  const auto behind = [](std::string said) {
    return call_of(get("/v1/jobs/a/stream", {{"Host", "localhost"}, {"Last-Event-ID", std::move(said)}})).behind;
  };
  REQUIRE(behind("41") == 41U);
  REQUIRE(behind("none").has_value());  // which was none: there is a gap
  REQUIRE_FALSE(call_of(get("/v1/jobs/a/stream")).behind);
}

TEST_CASE("a page is opened through the unix socket alone", "[unit][ops_route]") {
  REQUIRE(status_of(routed(post("/v1/node/page"), OpsCaller{.right = Right::control, .proved = true})) == 403);
  REQUIRE(call_of(post("/v1/node/page")).route == OpsRoute::open_page);
}

TEST_CASE("a body is JSON, and says so", "[unit][ops_route]") {
  for (const std::string type : {"", "text/plain", "application/x-www-form-urlencoded",
                                 "multipart/form-data; boundary=x", "application/jsonp", "application/json-seq"}) {
    REQUIRE(status_of(routed(post("/v1/jobs/a/restart", type), controller)) == 415);
  }
  REQUIRE(status_of(routed({.method = "POST", .target = "/v1/jobs/a/restart", .headers = {}}, controller)) == 415);
  for (const std::string type : {"application/json", "Application/JSON ; charset=utf-8", "application/json;x"}) {
    REQUIRE(status_of(routed(post("/v1/jobs/a/restart", type), controller)) == 0);
  }
  OpsRequest longer = post("/v1/jobs/a/restart");
  longer.headers.emplace_back("Content-Length", std::to_string(ops_body_bytes_max));
  REQUIRE(status_of(routed(longer, controller)) == 0);
  longer.headers.back().second = std::to_string(ops_body_bytes_max + 1);
  REQUIRE(status_of(routed(longer, controller)) == 413);
  REQUIRE(status_of(routed(longer, reading)) == 403);  // who may not is told so first
}

TEST_CASE("orders take what they have and nothing else", "[unit][ops_route]") {
  using Outcome = std::variant<Order, int>;
  REQUIRE(order_of("/v1/jobs/a/stop", "{}") == Outcome{order::Stop{}});
  REQUIRE(order_of("/v1/jobs/a/stop", R"({"save":true,"now":false})") == Outcome{order::Stop{.save = true}});
  REQUIRE(order_of("/v1/jobs/a/stop", R"( {"now" : true}
)") == Outcome{order::Stop{.now = true}});
  REQUIRE(order_of("/v1/jobs/a/restart", "{}") == Outcome{order::Restart{}});
  REQUIRE(order_of("/v1/jobs/a/resize", R"({"min":2,"max":2})") == Outcome{order::Resize{2, 2}});
  REQUIRE(order_of("/v1/jobs/a/nodes/n%201/undrain", "{}") == Outcome{order::Undrain{"n 1"}});
  for (const std::string body : {"", "[]", "null", "{", "{}x", R"({"save":1})", R"({"save":"true"})",
                                 R"({"safe":true})", R"({"save":true,"now":true})", R"({"save":null})", "\xFF"}) {
    INFO(body);
    REQUIRE(order_of("/v1/jobs/a/stop", body) == Outcome{400});
  }
  for (const std::string body : {"{}", R"({"min":1})", R"({"min":0,"max":1})", R"({"min":2,"max":1})",
                                 R"({"min":1.0,"max":2})", R"({"min":-1,"max":2})", R"({"min":1,"max":2147483648})",
                                 R"({"min":"1","max":2})", R"({"min":1,"max":2,"by":"me"})"}) {
    INFO(body);
    REQUIRE(order_of("/v1/jobs/a/resize", body) == Outcome{400});
  }
  REQUIRE(order_of("/v1/jobs/a/restart", R"({"now":true})") == Outcome{400});
  REQUIRE(order_of("/v1/jobs/a/restart", "{" + std::string(ops_body_bytes_max - 2, ' ') + "}") ==
          Outcome{order::Restart{}});
  REQUIRE(order_of("/v1/jobs/a/restart", "{" + std::string(ops_body_bytes_max - 1, ' ') + "}") == Outcome{413});
  REQUIRE(order_of("/v1/jobs/a/restart", std::string(ops_body_bytes_max, '[')) == Outcome{400});
}

TEST_CASE("at torchrun's rendezvous a node can be stopped, and nothing else is ordered", "[unit][ops_route]") {
  const auto refused = [](const std::string& target, std::string_view body) {
    OpsCall call = call_of(post(target));
    REQUIRE_FALSE(read_body(call, body));
    const auto refusal = refused_at_foreign_store(call);
    return refusal ? refusal->status : 0;
  };
  REQUIRE(refused("/v1/jobs/a/stop", "{}") == 0);
  REQUIRE(refused("/v1/jobs/a/stop", R"({"save":true})") == 501);
  REQUIRE(refused("/v1/jobs/a/stop", R"({"now":true})") == 501);
  REQUIRE(refused("/v1/jobs/a/restart", "{}") == 501);
  REQUIRE(refused("/v1/jobs/a/resize", R"({"min":1,"max":2})") == 501);
  REQUIRE(refused("/v1/jobs/a/nodes/n/drain", "{}") == 501);
  REQUIRE(refused("/v1/jobs/a/nodes/n/undrain", "{}") == 501);
  REQUIRE(refused("/v1/node/page", "{}") == 0);
  REQUIRE_FALSE(refused_at_foreign_store(call_of(get("/v1/jobs/a"))));
}

TEST_CASE("an error is one JSON object, whatever is in it", "[unit][ops_route]") {
  REQUIRE(error_body({404, "no_such_job", "a \"b\" <c>", ""}) ==
          "{\"error\":{\"code\":\"no_such_job\",\"message\":\"a \\\"b\\\" <c>\"}}\n");
  REQUIRE(no_such_job("a\nb\xFF").message == "No job a\\nb\\xff here");
}

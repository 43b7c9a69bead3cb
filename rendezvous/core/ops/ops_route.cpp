#include "rendezvous/core/ops/ops_route.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "rendezvous/core/text/percent.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

/// What is served. A method that is not here is a 405, a path a 404.
struct Pattern {
  std::string_view method;
  std::string_view path;
  OpsRoute route;
  Right needs;
};
constexpr std::array patterns{
    Pattern{"GET", "/healthz", OpsRoute::healthz, Right::none},
    Pattern{"GET", "/readyz", OpsRoute::readyz, Right::none},
    Pattern{"GET", "/", OpsRoute::page, Right::none},
    Pattern{"GET", "/jobs/{job}", OpsRoute::page, Right::none},
    Pattern{"GET", "/metrics", OpsRoute::metrics, Right::read},
    Pattern{"GET", "/status", OpsRoute::status, Right::read},
    Pattern{"GET", "/v1/jobs", OpsRoute::jobs, Right::read},
    Pattern{"GET", "/v1/stream", OpsRoute::jobs_stream, Right::read},
    Pattern{"GET", "/v1/jobs/{job}", OpsRoute::job, Right::read},
    Pattern{"GET", "/v1/jobs/{job}/events", OpsRoute::events, Right::read},
    Pattern{"GET", "/v1/jobs/{job}/stream", OpsRoute::job_stream, Right::read},
    Pattern{"GET", "/v1/jobs/{job}/ranks/{rank}/log", OpsRoute::log, Right::control},
    Pattern{"GET", "/v1/jobs/{job}/stacks", OpsRoute::stacks, Right::control},
    Pattern{"POST", "/v1/jobs/{job}/stop", OpsRoute::order, Right::control},
    Pattern{"POST", "/v1/jobs/{job}/restart", OpsRoute::order, Right::control},
    Pattern{"POST", "/v1/jobs/{job}/resize", OpsRoute::order, Right::control},
    Pattern{"POST", "/v1/jobs/{job}/nodes/{node}/drain", OpsRoute::order, Right::control},
    Pattern{"POST", "/v1/jobs/{job}/nodes/{node}/undrain", OpsRoute::order, Right::control},
    Pattern{"POST", "/v1/node/page", OpsRoute::open_page, Right::control},
};

constexpr std::string_view json_type = "application/json";

Refusal bad_request(std::string message) { return {400, "bad_request", std::move(message), ""}; }

bool is_stream(OpsRoute route) { return route == OpsRoute::job_stream || route == OpsRoute::jobs_stream; }

/// HEAD asks for what GET gives, which of a stream is no end.
bool serves(const Pattern& pattern, std::string_view method) {
  return method == pattern.method || (method == "HEAD" && pattern.method == "GET" && !is_stream(pattern.route));
}

std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

bool fits(std::string_view pattern, std::span<const std::string_view> path) {
  const auto wanted = parts_of(pattern.substr(1), '/');
  return std::equal(wanted.begin(), wanted.end(), path.begin(), path.end(),
                    [](auto part, auto given) { return part.starts_with('{') ? !given.empty() : part == given; });
}

/// All of `text`, in decimal digits.
std::optional<std::uint64_t> read_number(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<Rank> read_rank(std::string_view text) {
  const auto number = read_number(text);
  if (!number || *number > static_cast<std::uint64_t>(std::numeric_limits<int>::max())) return std::nullopt;
  return Rank{static_cast<int>(*number)};
}

std::optional<Order> order_of(std::string_view verb, std::string node) {
  if (verb == "stop") return order::Stop{};
  if (verb == "restart") return order::Restart{};
  if (verb == "resize") return order::Resize{};
  if (verb == "drain") return order::Drain{std::move(node)};
  return order::Undrain{std::move(node)};
}

/// What stands in a path in the place of names in braces.
std::optional<Refusal> read_path(OpsCall& call, std::string_view pattern, std::span<const std::string_view> path) {
  const auto names = parts_of(pattern.substr(1), '/');
  std::string node;
  for (std::size_t at = 0; at < names.size(); ++at) {
    if (!names[at].starts_with('{')) continue;
    auto text = percent_decoded(path[at]);
    if (!text) return bad_request("a % in the path without two hexadecimal digits behind it");
    if (names[at] == "{job}") call.run_id = std::move(*text);
    if (names[at] == "{node}") node = std::move(*text);
    if (names[at] != "{rank}") continue;
    call.rank = read_rank(*text);
    if (!call.rank) return bad_request(fmt::format("a rank is a number, not {}", printable_start(*text)));
  }
  if (call.route == OpsRoute::order) call.order = order_of(names.back(), std::move(node));
  return std::nullopt;
}

/// What stands behind the question mark. Names that a route does not know mean nothing there, a token's among them.
class Query {
 public:
  explicit Query(std::string_view text) : parts_{parts_of(text, '&')} {}

  /// The value of `name`; `otherwise` where it is not there.
  std::string text(std::string_view name, std::string_view otherwise) {
    std::optional<std::string> found;
    for (const std::string_view part : parts_) {
      const std::size_t end = std::min(part.find('='), part.size());
      if (part.substr(0, end) != name) continue;
      if (found) refusal_ = bad_request(fmt::format("{} is there twice", name));
      found = percent_decoded(part.substr(std::min(end + 1, part.size())));
      if (!found) refusal_ = bad_request(fmt::format("{}: a % without two hexadecimal digits behind it", name));
    }
    return found.value_or(std::string{otherwise});
  }

  std::uint64_t number(std::string_view name, std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) {
    const auto value = read_number(text(name, "0"));
    if (!value || *value > most) refusal_ = bad_request(fmt::format("{} is a number from 0 to {}", name, most));
    return value.value_or(0);
  }

  [[nodiscard]] const std::optional<Refusal>& refusal() const { return refusal_; }
  void refuse(std::string message) { refusal_ = bad_request(std::move(message)); }

 private:
  std::vector<std::string_view> parts_;
  std::optional<Refusal> refusal_;
};

std::optional<Refusal> read_query(OpsCall& call, std::string_view text) {
  Query query{text};
  if (call.route == OpsRoute::events || call.route == OpsRoute::log) {
    call.wait = std::chrono::seconds{query.number("wait_s", wait_seconds_max)};
  }
  if (call.route == OpsRoute::events) call.since = query.number("since");
  if (call.route == OpsRoute::log) {
    call.offset = query.number("offset");
    call.log = query.number("log");
    const std::string stream = query.text("stream", "stdout");
    if (stream != "stdout" && stream != "stderr") query.refuse("stream is stdout or stderr");
    call.stream = stream == "stderr" ? LogStream::err : LogStream::out;
  }
  if (call.route == OpsRoute::stacks) {
    call.native = query.number("native", 1) == 1;
    if (const std::string rank = query.text("rank", ""); !rank.empty()) {
      call.rank = read_rank(rank);
      if (!call.rank) query.refuse("rank is a number");
    }
  }
  return query.refusal();
}

/// Why he who may `caller.right` does not get what needs more.
Refusal insufficient(const OpsCaller& caller, Right needs) {
  const std::string_view what = needs == Right::control ? "This wants the job's token" : "This wants a token";
  if (caller.token_helps && !caller.proved) {
    return {401, "unauthorized", fmt::format("{}: Authorization: Bearer <token>", what), ""};
  }
  if (caller.proved) {
    return {403, "forbidden", "A read token does not suffice: this wants the job's token (--token-file)", ""};
  }
  return {403, "forbidden",
          fmt::format("{}, and none was given at the start (--token-file); the job's own user may do it on its "
                      "machine: torchupctl",
                      what),
          ""};
}

/// How long the body is, as far as it says so.
std::optional<Refusal> refused_body(const OpsRequest& request) {
  const std::string_view sent = header(request, "content-type").value_or("");
  std::string type{sent.substr(0, sent.find(';'))};
  while (type.ends_with(' ') || type.ends_with('\t')) type.pop_back();
  std::transform(type.begin(), type.end(), type.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (type != json_type) {
    return Refusal{415, "unsupported_media_type", "The body is a JSON object: Content-Type: application/json", ""};
  }
  const auto length = header(request, "content-length");
  if (length && read_number(*length).value_or(ops_body_bytes_max + 1) > ops_body_bytes_max) return body_too_long();
  return std::nullopt;
}

/// Takes members out of a body one by one: what is left at the end is unknown.
class Members {
 public:
  explicit Members(std::string_view body) : json_(nlohmann::json::parse(body, nullptr, false)) {  // braces make a list
    if (!json_.is_object()) refusal_ = bad_request("The body is no JSON object");
  }

  bool flag(const char* name) {
    const auto member = taken(name);
    if (member && !member->is_boolean()) refuse(fmt::format("{} is true or false", name));
    return member && member->is_boolean() && member->get<bool>();
  }

  int count(const char* name) {
    const auto member = taken(name);
    constexpr std::int64_t most = std::numeric_limits<int>::max();
    const bool unsigned_number = member && member->is_number_unsigned();
    const std::uint64_t number = unsigned_number ? member->get<std::uint64_t>() : 0;
    if (number >= 1 && number <= most) return static_cast<int>(number);
    refuse(fmt::format("{} is a number from 1 on", name));
    return 1;
  }

  std::optional<Refusal> end() {
    if (!refusal_ && !json_.empty()) refuse(fmt::format("unknown member {}", printable_start(json_.begin().key())));
    return refusal_;
  }
  void refuse(std::string message) {
    if (!refusal_) refusal_ = bad_request(std::move(message));
  }

 private:
  std::optional<nlohmann::json> taken(const char* name) {
    if (!json_.is_object() || !json_.contains(name)) return std::nullopt;
    nlohmann::json member = std::move(json_[name]);
    json_.erase(name);
    return member;
  }

  nlohmann::json json_;
  std::optional<Refusal> refusal_;
};

void read_order(Order& order, Members& members) {
  if (auto* stop = std::get_if<order::Stop>(&order)) {
    stop->save = members.flag("save");
    stop->now = members.flag("now");
    if (stop->save && stop->now) members.refuse("save and now exclude each other");
  } else if (auto* resize = std::get_if<order::Resize>(&order)) {
    resize->min_nodes = members.count("min");
    resize->max_nodes = members.count("max");
    if (resize->min_nodes > resize->max_nodes) members.refuse("min is at most max");
  }
}

}  // namespace

std::string_view to_text(Right right) {
  switch (right) {
    case Right::none:
      return "none";
    case Right::read:
      return "read";
    case Right::control:
      return "control";
  }
  return "";
}

Refusal no_such_job(std::string_view run_id) {
  return {404, "no_such_job", fmt::format("No job {} here", printable_start(run_id)), ""};
}

Refusal no_such_rank(Rank rank) { return {404, "no_such_rank", fmt::format("No rank {} here", rank.value()), ""}; }

Refusal body_too_long() {
  return {413, "body_too_long", fmt::format("A body has {} bytes at most", ops_body_bytes_max), ""};
}

std::string error_body(const Refusal& refusal) {
  const nlohmann::ordered_json body{{"error", {{"code", refusal.code}, {"message", refusal.message}}}};
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::vector<OpsRequest::Header> refusal_headers(const Refusal& refusal) {
  std::vector<OpsRequest::Header> headers;
  if (refusal.status == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  if (!refusal.allow.empty()) headers.emplace_back("Allow", refusal.allow);
  return headers;
}

OrRefusal<OpsCall> routed(const OpsRequest& request, const OpsCaller& caller) {
  const std::string_view target = request.target;
  if (!target.starts_with('/')) return bad_request("The target of a request is a path");
  const std::size_t end = std::min(target.find('?'), target.size());
  const auto path = parts_of(target.substr(1, end - 1), '/');
  const Pattern* found = nullptr;
  std::string allow;
  Right needs = Right::read;  // a path that is not there is no news for strangers
  for (const Pattern& pattern : patterns) {
    if (!fits(pattern.path, path)) continue;
    needs = pattern.needs;
    if (serves(pattern, request.method)) found = &pattern;
    allow = pattern.method == "GET" && !is_stream(pattern.route) ? "GET, HEAD" : pattern.method;
  }
  if (caller.right < needs) return insufficient(caller, needs);
  if (allow.empty()) return Refusal{404, "no_such_route", "Nothing is here; GET /v1/jobs names the jobs", ""};
  if (!found) return Refusal{405, "method_not_allowed", fmt::format("{} only", allow), allow};
  OpsCall call{.route = found->route, .caller = caller, .target = request.target, .head = request.method == "HEAD"};
  if (call.route == OpsRoute::open_page && !caller.by_socket) {
    return Refusal{403, "forbidden", "A page is opened through the job's unix socket alone: torchupctl page", ""};
  }
  if (auto refusal = read_path(call, found->path, path)) return *refusal;
  if (auto refusal = read_query(call, target.substr(std::min(end + 1, target.size())))) return *refusal;
  if (takes_body(call)) {
    if (auto refusal = refused_body(request)) return *refusal;
  }
  if (const auto last = header(request, "last-event-id"); last && call.route == OpsRoute::job_stream) {
    call.behind = read_number(*last).value_or(std::numeric_limits<std::uint64_t>::max());
  }
  return call;
}

bool takes_body(const OpsCall& call) { return call.route == OpsRoute::order || call.route == OpsRoute::open_page; }

std::optional<Refusal> read_body(OpsCall& call, std::string_view body) {
  if (body.size() > ops_body_bytes_max) return body_too_long();
  Members members{body};
  call.body = body;
  if (call.order) read_order(*call.order, members);
  return members.end();
}

std::optional<Refusal> refused_at_foreign_store(const OpsCall& call) {
  if (call.route != OpsRoute::order || call.order == Order{order::Stop{}}) return std::nullopt;
  return Refusal{
      501, "foreign_store",
      fmt::format("The rendezvous of this job is torchrun's, which obeys no orders: {} cannot be done; a stop "
                  "without save and now ends this node",
                  verb_of(*call.order)),
      ""};
}

}  // namespace torchup

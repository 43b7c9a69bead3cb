#include "rendezvous/net/ops/ops_service.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>
#include <vector>

#include "rendezvous/core/ops/page_text.hpp"
#include "rendezvous/core/text/base64.hpp"
#include "rendezvous/net/io/token.hpp"

namespace torchup {
namespace {

/// What one node asks for another must fit into a frame of their link.
constexpr std::size_t forwarded_events_bytes_max = 192 * 1024;
/// Whoever has passed a question on gives it up after OpenQuestions' limit.
constexpr auto forwarded_wait_max = std::chrono::seconds{10};

bool is_stream(const OpsCall& call) {
  return call.route == OpsRoute::job_stream || call.route == OpsRoute::jobs_stream;
}

bool is_about_jobs(OpsRoute route) {
  return route == OpsRoute::jobs || route == OpsRoute::job || route == OpsRoute::events ||
         route == OpsRoute::job_stream || route == OpsRoute::jobs_stream;
}

}  // namespace

/// Somebody who waits for an event.
struct OpsService::Waiting {
  Waiting(boost::asio::io_context& loop, OpsCall what, HttpServer::Reply to)
      : call{std::move(what)}, reply{std::move(to)}, limit{loop} {}
  OpsCall call;
  HttpServer::Reply reply;
  boost::asio::steady_timer limit;
};

OpsService::OpsService(boost::asio::io_context& loop, OpsSource& source, EventRings::Limits limits)
    : loop_{loop}, source_{source}, rings_{limits}, feed_{loop, rings_, source}, self_{std::make_shared<OpsService*>(
                                                                                     this)} {}

OpsService::~OpsService() { *self_ = nullptr; }

/// More than one event a microsecond there cannot have been.
EventRings::Limits numbered_anew(EventRings::Limits limits) {
  limits.above = static_cast<std::uint64_t>(this_moment().utc_us);
  return limits;
}

void OpsService::perform(const OpsCall& call, HttpServer::Reply reply) {
  if (is_about_jobs(call.route) && source_.hosts()) return perform_hosted(call, std::move(reply));
  if (call.route == OpsRoute::page && source_.hosts()) return reply(page_answer());
  source_.perform(call, std::move(reply));
}

void OpsService::perform(const OpsRequest& request, const OpsCaller& caller, std::string_view body,
                         HttpServer::Reply reply) {
  auto call = routed(request, caller);
  if (const auto* refusal = std::get_if<Refusal>(&call)) return reply(answer_of(*refusal));
  auto& asked = std::get<OpsCall>(call);
  asked.bytes_max = forwarded_events_bytes_max;
  asked.wait = std::min<Duration>(asked.wait, forwarded_wait_max);
  if (takes_body(asked)) {
    if (const auto refusal = read_body(asked, body)) return reply(answer_of(*refusal));
  }
  if (is_stream(asked)) {
    return reply(
        answer_of({501, "not_here", "A stream is followed at the job's host; here: GET …/events?wait_s=20", ""}));
  }
  perform(asked, std::move(reply));
}

/// Brings a job's text up to date, a bit in each turn of the loop; then calls `then`.
template <class Then>
void OpsService::prepare(const std::string& run_id, Then then) {
  JobPage* const page = source_.page(run_id);
  if (!page || page->prepare(nodes_a_turn)) return then();
  boost::asio::post(loop_, [self = self_, run_id, then = std::move(then)]() mutable {
    if (*self) (*self)->prepare(run_id, std::move(then));
  });
}

void OpsService::perform_hosted(const OpsCall& call, HttpServer::Reply reply) {
  if (call.route == OpsRoute::jobs_stream) return reply(feed_.follow(call));
  if (call.route == OpsRoute::jobs) {
    std::vector<std::string> rows;
    for (JobPage* const page : source_.pages()) {
      rows.push_back(page->row(this_moment(), rings_.last(page->run_id().value())));
    }
    OpsAnswer answer;
    answer.body = jobs_text(rows, call.caller.right, this_moment());
    return reply(std::move(answer));
  }
  if (!source_.page(call.run_id)) return reply(answer_of(no_such_job(call.run_id)));
  if (call.route == OpsRoute::events) return give_events(call, std::move(reply));
  prepare(call.run_id, [this, call, reply = std::move(reply)] {
    JobPage* const page = source_.page(call.run_id);
    if (!page) return reply(answer_of(no_such_job(call.run_id)));
    if (call.route == OpsRoute::job_stream) return reply(feed_.follow(call));
    OpsAnswer answer;
    answer.body = page->snapshot(call.caller.right, this_moment(), rings_.last(call.run_id));
    reply(std::move(answer));
  });
}

/// Nothing: there is no event yet.
std::optional<OpsAnswer> OpsService::events_answer(const OpsCall& call, bool even_none) const {
  std::string list;
  const auto add = [&list](std::uint64_t, std::string_view event) {
    if (!list.empty()) list += ',';
    list += event;
  };
  const auto seen = rings_.read(call.run_id, call.since, call.caller.right, call.bytes_max, add);
  if (list.empty() && !seen.gap && !even_none) return std::nullopt;
  OpsAnswer answer;
  answer.body = fmt::format("{{\"events\":[{}],\"next\":{},\"lost\":{}{}}}\n", list, seen.next, seen.lost,
                            call.caller.right == Right::read ? ",\"withheld\":true" : "");
  return answer;
}

void OpsService::give_events(const OpsCall& call, HttpServer::Reply reply) {
  if (auto answer = events_answer(call, call.wait == Duration{0})) return reply(std::move(*answer));
  const auto waiting = std::make_shared<Waiting>(loop_, call, std::move(reply));
  waiting->limit.expires_after(call.wait);
  waiting->limit.async_wait([self = self_, waiting](boost::system::error_code error) {
    if (error || !*self) return;
    if ((*self)->waiting_.remove(waiting) == 0) return;  // an event was faster than this handler, which was due already
    waiting->reply(*(*self)->events_answer(waiting->call, true));
  });
  waiting_.push_back(waiting);
}

void OpsService::answer_waiting(const std::string& run_id) {
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const auto waiting = *at;
    auto answer = waiting->call.run_id == run_id ? events_answer(waiting->call, false) : std::nullopt;
    at = answer ? waiting_.erase(at) : std::next(at);
    if (!answer) continue;
    waiting->limit.cancel();
    waiting->reply(std::move(*answer));
  }
}

std::uint64_t OpsService::record(const std::string& run_id, std::string_view event) {
  const std::uint64_t seq = rings_.add(run_id, event);
  if (recorded_) recorded_(run_id, seq, event);
  feed_.added(run_id);
  answer_waiting(run_id);
  return seq;
}

void OpsService::keep_only(const std::set<std::string>& run_ids) {
  rings_.keep_only(run_ids);
  feed_.keep_only(run_ids);
}

OpsAnswer page_answer() {
  const Nonce chance = fresh_nonce();
  const std::string nonce = to_base64({reinterpret_cast<const char*>(chance.data()), chance.size()});
  OpsAnswer answer;
  answer.content_type = "text/html; charset=utf-8";
  answer.body = page_text(nonce);
  answer.headers.emplace_back("Content-Security-Policy", page_policy(nonce));
  return answer;
}

}  // namespace torchup

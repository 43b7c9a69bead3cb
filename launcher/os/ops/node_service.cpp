#include "launcher/os/ops/node_service.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "launcher/core/ops/relayed.hpp"
#include "rendezvous/core/text/json_text.hpp"
#include "rendezvous/net/agent/attach.hpp"
#include "rendezvous/net/ops/process_numbers.hpp"

namespace torchup {
namespace {

/// `ps` asks everybody at once and waits for no one: a coordinator that is slower is not waited for.
constexpr Duration rows_limit = std::chrono::milliseconds{300};
/// What the node knows by itself is not looked at more often.
constexpr Duration show_interval = std::chrono::milliseconds{200};
/// The coordinator gives its own question up before long.
constexpr Duration asked_wait_max = std::chrono::seconds{10};

bool is_of_workers(OpsRoute route) { return route == OpsRoute::log || route == OpsRoute::stacks; }
bool is_stream(OpsRoute route) { return route == OpsRoute::job_stream || route == OpsRoute::jobs_stream; }

OpsAnswer text_answer(std::string text, int status = 200) {
  return {.status = status, .content_type = text_content, .body = std::move(text)};
}

}  // namespace

NodeService::NodeService(asio::io_context& loop, NodeServiceSettings settings, DiskThread& disk, WorkerDesk& workers,
                         Hooks hooks)
    : loop_{loop}, settings_{std::move(settings)}, workers_{workers}, hooks_{std::move(hooks)},
      page_of_own_{settings_.run_id, settings_.host, settings_.pid}, service_{loop, *this,
                                                                              numbered_anew(
                                                                                  {.events_max = agent_events_max})},
      http_{loop,
            [this](const OpsCall& call, HttpServer::Reply reply) {
              OpsService& service = onlookers_ ? onlookers_->service() : service_;
              service.perform(call, awaited(std::move(reply)));
            }},
      questions_{loop}, page_{loop, http_, {.access = access()}}, socket_{loop, http_, disk,
                                                                          static_cast<pid_t>(settings_.pid),
                                                                          hooks_.words.warn} {
  page_of_own_.set_name(settings_.name);
}

/// One that is dropped is awaited no more either.
HttpServer::Reply NodeService::awaited(HttpServer::Reply reply) {
  return [share = awaited_, reply = std::move(reply)](OpsReply given) mutable {
    share.reset();
    reply(std::move(given));
  };
}

// ---- doors

OpsAccess NodeService::access() const {
  OpsAccess access{.own_uid = ::geteuid(),
                   .control_token = settings_.token,
                   .read_token = settings_.doors.read_token,
                   .host_names = settings_.doors.host_names};
  for (std::string& name : own_names()) access.host_names.push_back(std::move(name));
  return access;
}

void NodeService::open() {
  if (settings_.doors.control_socket) socket_.open();
  status_.open(loop_, http_, settings_.doors, access(), settings_.run_id, hooks_.words);
}

// ---- what happens

void NodeService::host(CoordinatorOps& onlookers) {
  onlookers_ = &onlookers;
  for (const std::string& event : std::exchange(early_, {})) onlookers.happened(settings_.run_id, event);
}

void NodeService::happened(std::string_view event) {
  if (onlookers_) return onlookers_->happened(settings_.run_id, event);
  if (!is_event(event)) return;
  service_.record(settings_.run_id.value(), event);
  decided_ = decided_ || hooks_.reaches();
  if (!decided_ && early_.size() < agent_events_max) early_.emplace_back(event);
  if (decided_) early_.clear();
}

void NodeService::ended(std::string_view event) {
  for (const auto& followed : std::exchange(relayed_, {})) {
    if (const auto stream = followed.lock()) stream->end_with(event);
  }
}

void NodeService::answer(const Ask& question) {
  const auto tell = [this, number = question.number](OpsReply reply) {
    hooks_.say(answer_to(number, std::get<OpsAnswer>(std::move(reply))));
  };
  auto asked = routed(request_of(question), caller_of(question));
  if (const auto* refusal = std::get_if<Refusal>(&asked)) return tell(answer_of(*refusal));
  auto& call = std::get<OpsCall>(asked);
  call.wait = std::min<Duration>(call.wait, asked_wait_max);
  if (!is_of_workers(call.route)) {
    return tell(answer_of({404, "no_such_route", "A node is asked about its workers alone", ""}));
  }
  workers_.perform(call, tell);
}

// ---- what is asked, where the rounds are made elsewhere

std::vector<JobPage*> NodeService::pages() { return {page(settings_.run_id.value())}; }

JobPage* NodeService::page(const std::string& run_id) {
  if (run_id != settings_.run_id.value()) return nullptr;
  const TimePoint now = std::chrono::steady_clock::now();
  if (shown_ == TimePoint{} || now - shown_ >= show_interval) {
    shown_ = now;
    hooks_.show(page_of_own_);
  }
  return &page_of_own_;
}

void NodeService::perform(const OpsCall& call, HttpServer::Reply reply) {
  switch (call.route) {
    case OpsRoute::healthz:
      return reply(text_answer("ok\n"));
    case OpsRoute::readyz: {
      const std::string word = hooks_.readiness();
      return reply(text_answer(word + "\n", word == "ok" ? 200 : 503));
    }
    case OpsRoute::metrics: {
      OpsAnswer answer{.body = metrics()};
      answer.content_type = metrics_content_type;
      return reply(std::move(answer));
    }
    case OpsRoute::status:
      return reply(hosts() ? own_rows(call.caller.right) : not_here("The status"));
    case OpsRoute::page:
      return reply(not_here("The page"));
    case OpsRoute::open_page:
      return hosts() ? open_page(reply) : reply(not_here("The page"));
    default:
      break;
  }
  const bool all_jobs = call.route == OpsRoute::jobs || call.route == OpsRoute::jobs_stream;
  if (!all_jobs && call.run_id != settings_.run_id.value()) return reply(answer_of(no_such_job(call.run_id)));
  // A rank that was here, and is elsewhere now, is the other node's.
  const bool of_own = call.rank ? workers_.has_now(*call.rank) || (hosts() && workers_.has(*call.rank)) : hosts();
  if (is_of_workers(call.route) && of_own) return workers_.perform(call, std::move(reply));
  if (call.route == OpsRoute::order && hosts()) return obey(call, reply);
  if (hosts()) return reply(answer_of(no_such_rank(call.rank.value_or(Rank{0}))));
  pass_on(call, std::move(reply));
}

void NodeService::pass_on(const OpsCall& call, HttpServer::Reply reply) {
  if (call.route == OpsRoute::jobs) return give_jobs(call, reply);
  if (is_stream(call.route)) return follow(call, reply);
  ask(call, std::move(reply));
}

void NodeService::ask(const OpsCall& call, HttpServer::Reply reply, std::optional<Duration> limit) {
  const auto send = [this](Ask question) {
    if (!hooks_.reaches()) return false;
    hooks_.say(std::move(question));
    return true;
  };
  questions_.ask("", call, send, std::move(reply), limit);
}

void NodeService::give_jobs(const OpsCall& call, const HttpServer::Reply& reply) {
  const auto take = [this, right = call.caller.right, reply](OpsReply given) {
    auto& answer = std::get<OpsAnswer>(given);
    auto rows = answer.status == 200
                    ? with_launcher(answer.body, settings_.run_id.value(), settings_.pid, settings_.name)
                    : std::nullopt;
    if (!rows) return reply(own_rows(right));
    answer.body = *std::move(rows);
    reply(std::move(answer));
  };
  ask(call, take, rows_limit);
}

OpsAnswer NodeService::own_rows(Right right) {
  const std::string& run_id = settings_.run_id.value();
  const std::string row = page(run_id)->row(this_moment(), service_.events().last(run_id));
  return {.body = jobs_text({row}, right, this_moment())};
}

void NodeService::follow(const OpsCall& call, const HttpServer::Reply& reply) {
  OpsCall first = call;
  first.route = call.route == OpsRoute::jobs_stream ? OpsRoute::jobs : OpsRoute::job;
  first.target = call.target.substr(0, call.target.find('?'));
  const std::size_t word = first.target.rfind("/stream");
  first.target.erase(word);
  if (first.route == OpsRoute::jobs) first.target += "/jobs";
  pass_on(first, [this, call, reply](OpsReply given) {
    auto& answer = std::get<OpsAnswer>(given);
    if (answer.status != 200) return reply(std::move(answer));
    const auto asker = [this](const OpsCall& question, std::function<void(OpsAnswer)> take) {
      if (hosts()) return take(answer_of({503, "cut_off", "The coordinator is out of reach", ""}));
      pass_on(question, [take = std::move(take)](OpsReply told) { take(std::get<OpsAnswer>(std::move(told))); });
    };
    auto stream = std::make_shared<RelayedStream>(loop_, asker, call, answer.body);
    std::erase_if(relayed_, [](const auto& followed) { return followed.expired(); });
    relayed_.push_back(stream);
    reply(std::shared_ptr<FrameSource>{std::move(stream)});
  });
}

/// Nobody is there who could be told.
void NodeService::obey(const OpsCall& call, const HttpServer::Reply& reply) {
  if (!hooks_.is_foreign()) {
    return reply(answer_of({503, "cut_off", "The coordinator is out of reach, and obeys no order now", ""}));
  }
  if (const auto refused = refused_at_foreign_store(call)) return reply(answer_of(*refused));
  OpsAnswer answer{.status = 202};
  JsonObject{answer.body}.text("accepted", "this node ends; torchrun's agents decide on the others").end();
  reply(std::move(answer));
  hooks_.end_node(call.caller.by);
}

void NodeService::open_page(const HttpServer::Reply& reply) {
  const auto url = page_.open(settings_.run_id.value());
  if (!url) return reply(answer_of({503, "no_port", url.error().message(), ""}));
  OpsAnswer answer;
  JsonObject{answer.body}.text("url", *url).end();
  reply(std::move(answer));
}

OpsAnswer NodeService::not_here(const char* what) const {
  return answer_of({404, "not_here",
                    fmt::format("{} is served where the job is hosted, at {}: ask there", what, settings_.meets_at),
                    ""});
}

std::string NodeService::metrics() const {
  return process_metrics(process_numbers(TORCHUP_VERSION)) + hooks_.metrics();
}

}  // namespace torchup

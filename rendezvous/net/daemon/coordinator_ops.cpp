#include "rendezvous/net/daemon/coordinator_ops.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <nlohmann/json.hpp>
#include <utility>

#include "rendezvous/core/membership/ended_jobs.hpp"
#include "rendezvous/core/ops/note_event.hpp"
#include "rendezvous/core/text/json_text.hpp"
#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/net/daemon/status_text.hpp"
#include "rendezvous/net/io/node_identity.hpp"

namespace torchup {
namespace {

/// An incident has a place of its own on a job's page.
bool is_incident(std::string_view line) {
  if (line.find("\"incident_recorded\"") == std::string_view::npos) return false;
  const auto event = nlohmann::json::parse(line, nullptr, false);
  return event.is_object() && event.value("event", nlohmann::json{}) == "incident_recorded";
}

bool has_rank(const JobView::Node& node, Rank rank) {
  return node.first_rank && rank.value() >= node.first_rank->value() &&
         rank.value() < node.first_rank->value() + node.local_world_size;
}

/// Agents of which it is remembered what they have said so far; beyond that some begin anew.
constexpr std::size_t allowed_max = 16384;
/// An agent's own count is believed up to so many more at a time.
constexpr std::uint64_t lost_at_once_max = 1'000'000;

/// Among all nodes of all jobs.
std::string name_of(const RunId& run_id, const NodeId& node) { return node.value() + "\n" + run_id.value(); }

/// Why a node has not given what it was asked for, in one line.
std::string reason_of(const OpsAnswer& refused) {
  constexpr std::size_t reason_bytes_max = 512;
  static const nlohmann::json::json_pointer message{"/error/message"};
  const auto json = nlohmann::json::parse(refused.body, nullptr, false);
  const bool has_message = json.is_object() && json.contains(message) && json.at(message).is_string();
  const std::string reason = has_message ? json.at(message).get<std::string>() : refused.body;
  return printable_start(reason.substr(0, reason.find('\n')), reason_bytes_max);
}

/// Answers of several nodes, put together in their order. Of one that has none to give it says why; where none has, the
/// first refusal is that of all.
struct Gathered {
  HttpServer::Reply reply;
  std::vector<std::string> hosts;
  std::vector<OpsAnswer> answers;
  std::size_t open = 0;

  void close_if_all() {
    if (open > 0) return;
    const auto good = std::ranges::find(answers, 200, &OpsAnswer::status);
    if (good == answers.end()) return reply(std::move(answers.front()));
    std::string text;
    for (std::size_t at = 0; at < answers.size(); ++at) {
      if (answers[at].status == 200) {
        text += answers[at].body;
        continue;
      }
      if (!text.empty() && !text.ends_with('\n')) text += '\n';
      text += fmt::format("node {}: {}\n", printable(hosts[at]), reason_of(answers[at]));
    }
    OpsAnswer all = std::move(*good);
    all.body = std::move(text);
    reply(std::move(all));
  }
};

}  // namespace

CoordinatorOps::CoordinatorOps(boost::asio::io_context& loop, Coordinator& coordinator, CoordinatorOpsOptions options)
    : loop_{loop}, coordinator_{coordinator}, options_{std::move(options)}, host_{own_host_name()}, port_{[] {
        return PortNumbers{};
      }},
      jobs_{loop, coordinator, source_options()}, service_{loop, jobs_, numbered_anew(options_.events)},
      http_{loop, [this](const OpsCall& call, HttpServer::Reply reply) { service_.perform(call, std::move(reply)); }},
      page_{loop, http_, {.access = access()}}, questions_{loop}, self_{std::make_shared<CoordinatorOps*>(this)} {
  Coordinator::Onlooker onlooker;
  onlooker.heard = [self = self_](const RunId& run_id, const NodeId& node, Coordinator::NodeWord word) {
    if (*self) (*self)->heard(run_id, node, std::move(word));
  };
  onlooker.noted = [self = self_](const RunId& run_id, const Note& note) {
    if (*self) (*self)->noted(run_id, note);
  };
  coordinator_.set_onlooker(std::move(onlooker));
}

CoordinatorOps::~CoordinatorOps() { *self_ = nullptr; }

OpsAccess CoordinatorOps::access() const {
  OpsAccess access{
      .control_token = options_.token, .read_token = options_.read_token, .host_names = options_.host_names};
  for (std::string& name : own_names()) access.host_names.push_back(std::move(name));
  return access;
}

CoordinatorSourceOptions CoordinatorOps::source_options() {
  CoordinatorSourceOptions source;
  source.own_job = options_.own_job;
  source.pid = options_.pid;
  source.job_name = options_.job_name;
  source.more_metrics = [this] { return own_.metrics ? own_.metrics() : std::string{}; };
  source.status = [this] { return status_text(port_().store, coordinator_); };
  source.numbers = [this] { return numbers(); };
  source.others = [this](const OpsCall& call, HttpServer::Reply reply) { perform(call, std::move(reply)); };
  source.shown = [this](const std::set<std::string>& run_ids) { keep_only(run_ids); };
  return source;
}

CoordinatorNumbers CoordinatorOps::numbers() const {
  PortNumbers port = port_();
  std::map<int, std::uint64_t> requests = http_.answers();
  if (own_.doors) {
    for (const auto& [status, count] : own_.doors->answers()) requests[status] += count;
  }
  return {.store = std::move(port.store),
          .turns = options_.turns ? *options_.turns : TurnHistogram{},
          .agents = port.agents,
          .http_requests = std::move(requests),
          .event_readers = service_.feed().readers(),
          .events_lost = service_.feed().lost() + events_lost_};
}

// ---- what is asked

void CoordinatorOps::perform(const OpsCall& call, HttpServer::Reply reply) {
  if (call.route == OpsRoute::open_page) return open_page(reply);
  if (call.route == OpsRoute::order) return obey(call, reply);
  ask_nodes(call, std::move(reply));
}

void CoordinatorOps::open_page(const HttpServer::Reply& reply) {
  const auto url = page_.open(options_.own_job);
  if (!url) return reply(answer_of({503, "no_port", url.error().message(), ""}));
  OpsAnswer answer;
  JsonObject{answer.body}.text("url", *url).end();
  reply(std::move(answer));
}

/// Of a job that is shown, though no agent of ours is in it.
std::string CoordinatorOps::why_nobody_obeys(const std::string& run_id) const {
  const JobPage* const page = jobs_.known(run_id);
  if (page && !page->ended_at())
    return "torchrun's agents have this job to themselves, who obey no orders but their own";
  return "the job has ended (phase: ended)";
}

void CoordinatorOps::obey(const OpsCall& call, const HttpServer::Reply& reply) {
  const RunId run_id{call.run_id};
  drop_lost_orders();
  const auto order = orders_.insert(orders_.end(), {run_id, reply});
  const auto obeyed = coordinator_.order(run_id, *call.order, call.caller.by);
  if (!obeyed || !obeyed->accepted) {
    orders_.erase(order);
    return reply(answer_of(Refusal{409, "cannot_be", obeyed ? obeyed->text : why_nobody_obeys(call.run_id), ""}));
  }
  OpsAnswer answer;
  answer.status = 202;
  JsonObject{answer.body}.text("accepted", obeyed->text).end();
  order->answer = std::move(answer);
  if (order->noted) answer_order(order);
}

/// Orders of a job are noted in their order: now, or when the job's state has been written.
void CoordinatorOps::order_noted(const RunId& run_id) {
  const auto order =
      std::ranges::find_if(orders_, [&](const Order& each) { return each.run_id == run_id && !each.noted; });
  if (order == orders_.end()) return;
  order->noted = true;
  if (order->answer) answer_order(order);
}

/// What a fault of ours has ended notes nothing more, and a further job of the run id notes orders of its own.
void CoordinatorOps::drop_lost_orders() {
  for (auto at = orders_.begin(); at != orders_.end();) {
    const auto order = at++;
    if (coordinator_.obeys(order->run_id)) continue;
    order->answer = answer_of({409, "cannot_be", "a fault of the coordinator has ended the job (phase: ended)", ""});
    answer_order(order);
  }
}

void CoordinatorOps::answer_order(std::list<Order>::iterator order) {
  const Order answered = std::move(*order);
  orders_.erase(order);
  answered.reply(*answered.answer);
}

/// Without a token nobody can tell who asks from another machine: what workers wrote stays on theirs. A node's name
/// says nothing of that, for it chose that itself.
bool CoordinatorOps::may_cross(const OpsCall& call, const std::string& node) const {
  if (!options_.token.empty()) return true;
  return call.caller.node.empty() ? coordinator_.is_near(RunId{call.run_id}, NodeId{node}) : call.caller.node == node;
}

/// Logs and stacks are nodes' own.
void CoordinatorOps::ask_nodes(const OpsCall& call, HttpServer::Reply reply) {
  const RunId run_id{call.run_id};
  std::optional<JobView> job = coordinator_.view(run_id);
  std::vector<JobView::Node> nodes = job ? std::move(job->nodes) : std::vector<JobView::Node>{};
  std::erase_if(nodes, [&](const JobView::Node& node) {
    return node.node.empty() || node.torchruns || !node.first_rank || (call.rank && !has_rank(node, *call.rank));
  });
  std::sort(nodes.begin(), nodes.end(), [](const JobView::Node& left, const JobView::Node& right) {
    return left.first_rank->value() < right.first_rank->value();
  });
  if (nodes.empty() && call.rank) return reply(answer_of(no_such_rank(*call.rank)));
  if (nodes.empty()) return reply(answer_of({409, "no_round", "No node has a place in the job now", ""}));
  if (nodes.size() > OpenQuestions::open_max) {
    return reply(answer_of({409, "too_many_nodes", "Of so large a job one rank at a time: ?rank=R", ""}));
  }
  const auto gathered = std::make_shared<Gathered>();
  gathered->reply = std::move(reply);
  gathered->open = nodes.size();
  gathered->answers.resize(nodes.size());
  for (const JobView::Node& node : nodes) gathered->hosts.push_back(node.host);
  for (std::size_t at = 0; at < nodes.size(); ++at) {
    const auto take = [gathered, at](OpsAnswer answer) {
      gathered->answers[at] = std::move(answer);
      --gathered->open;
      gathered->close_if_all();
    };
    if (may_cross(call, nodes[at].node)) {
      const NodeId node{nodes[at].node};
      const auto send = [&](Ask question) { return coordinator_.tell_node(run_id, node, std::move(question)); };
      questions_.ask(name_of(run_id, node), call, send, take);
    } else {
      take(answer_of({403, "forbidden",
                      "Without a token (--token-file) what workers wrote crosses no machine; ask on " + nodes[at].host,
                      ""}));
    }
  }
}

// ---- what is heard

void CoordinatorOps::heard(const RunId& run_id, const NodeId& node, Coordinator::NodeWord word) {
  if (auto* report = std::get_if<NodeReport>(&word)) {
    if (JobPage* const page = jobs_.known(run_id.value())) {
      page->report(node, std::move(*report), std::chrono::steady_clock::now());
    }
  } else if (auto* event = std::get_if<NodeEvent>(&word)) {
    heard_event(run_id, node, std::move(*event));
  } else if (auto* answer = std::get_if<Answer>(&word)) {
    questions_.answered(name_of(run_id, node), std::move(*answer));
  } else {
    heard_question(run_id, node, std::get<Ask>(std::move(word)));
  }
}

CoordinatorOps::Allowed& CoordinatorOps::allowed(const RunId& run_id, const NodeId& node) {
  const std::pair key{run_id.value(), agent_name(node)};
  if (const auto known = allowed_.find(key); known != allowed_.end()) return known->second;
  if (allowed_.size() >= allowed_max) {
    const auto idle = std::ranges::find_if(allowed_, [](const auto& entry) { return entry.second.questions == 0; });
    if (idle != allowed_.end()) allowed_.erase(idle);
  }
  return allowed_[key];
}

void CoordinatorOps::heard_event(const RunId& run_id, const NodeId& node, NodeEvent event) {
  Allowed& from = allowed(run_id, node);
  if (event.lost > from.lost) events_lost_ += std::min(event.lost - from.lost, lost_at_once_max);
  from.lost = event.lost;
  const auto told = from.events.admit(std::move(event.line), std::chrono::steady_clock::now());
  if (!told) {
    ++events_lost_;
    return;
  }
  happened(run_id, told->line);
}

/// An order may follow, of which nothing must happen before the coordinator is done with this word.
void CoordinatorOps::heard_question(const RunId& run_id, const NodeId& node, Ask question) {
  Allowed& from = allowed(run_id, node);
  const bool too_many = from.questions >= open_questions_max;
  if (!too_many) ++from.questions;
  boost::asio::post(loop_, [self = self_, run_id, node, question = std::move(question), too_many] {
    if (!*self) return;
    if (!too_many) return (*self)->answer(run_id, node, question);
    const OpsAnswer refused = answer_of({503, "too_many_questions", "Too many questions of this node are open", ""});
    (*self)->coordinator_.tell_node(run_id, node, answer_to(question.number, refused));
  });
}

void CoordinatorOps::keep_only(const std::set<std::string>& run_ids) {
  service_.keep_only(run_ids);
  drop_lost_orders();
  std::erase_if(allowed_, [&](const auto& entry) { return !run_ids.contains(entry.first.first); });
}

void CoordinatorOps::happened(const RunId& run_id, std::string_view event) {
  if (!is_event(event)) return;
  const std::uint64_t seq = service_.record(run_id.value(), event);
  if (!is_incident(event)) return;
  if (JobPage* const page = jobs_.known(run_id.value())) return page->add_incident(seq, event);
  // A young job has no page yet, and the coordinator may be in the middle of a word.
  boost::asio::post(loop_, [self = self_, run_id, seq, line = std::string{event}] {
    JobPage* const page = *self ? (*self)->page_of(run_id) : nullptr;
    if (page) page->add_incident(seq, line);
  });
}

/// A node asks for its people, in its own job alone.
void CoordinatorOps::answer(const RunId& run_id, const NodeId& node, const Ask& question) {
  const auto tell = [this, run_id, node, number = question.number](OpsReply reply) {
    const auto from = allowed_.find({run_id.value(), agent_name(node)});
    if (from != allowed_.end() && from->second.questions > 0) --from->second.questions;
    coordinator_.tell_node(run_id, node, answer_to(number, std::get<OpsAnswer>(std::move(reply))));
  };
  OpsCaller caller = caller_of(question);
  caller.node = node.value();
  const OpsRequest request = request_of(question);
  const auto asked = routed(request, caller);
  const auto* call = std::get_if<OpsCall>(&asked);
  if (call && call->route == OpsRoute::jobs) return tell(own_row(run_id, caller.right));
  if (call && call->run_id != run_id.value()) return tell(answer_of(no_such_job(call->run_id)));
  service_.perform(request, caller, question.body, tell);
}

/// What a node may know of all jobs.
OpsAnswer CoordinatorOps::own_row(const RunId& run_id, Right right) {
  std::vector<std::string> rows;
  if (JobPage* const page = jobs_.page(run_id.value())) {
    rows.push_back(page->row(this_moment(), service_.events().last(run_id.value())));
  }
  OpsAnswer answer;
  answer.body = jobs_text(rows, right, this_moment());
  return answer;
}

void CoordinatorOps::noted(const RunId& run_id, const Note& note) {
  if (const auto* order = std::get_if<OrderReceived>(&note)) {
    order_noted(run_id);
    if (JobPage* const page = jobs_.known(run_id.value())) page->count_order(order->verb);
  }
  const auto* const order = std::get_if<OrderReceived>(&note);
  if (order && own_.ordered && run_id.value() == options_.own_job) return own_.ordered(*order);
  const std::string event = note_event(note, host_, this_moment());
  if (!event.empty()) service_.record(run_id.value(), event);
}

}  // namespace torchup

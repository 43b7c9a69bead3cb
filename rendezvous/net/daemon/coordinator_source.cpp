#include "rendezvous/net/daemon/coordinator_source.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/io/node_identity.hpp"
#include "rendezvous/net/ops/process_numbers.hpp"

namespace torchup {
namespace {

constexpr Duration refresh_interval = std::chrono::seconds{1};
/// Who asks often is shown what is a little old: no more than this part of the time goes into making it new.
constexpr int refresh_share = 20;

bool told_no_more(const JobPage& page, TimePoint now) {
  const auto ended = page.ended_at();
  return ended && now - *ended >= ended_job_told;
}

}  // namespace

CoordinatorSource::CoordinatorSource(boost::asio::io_context& loop, const Coordinator& coordinator,
                                     CoordinatorSourceOptions options)
    : coordinator_{coordinator}, options_{std::move(options)}, host_{own_host_name()}, second_{loop} {
  wait_second();
}

void CoordinatorSource::wait_second() {
  second_.expires_after(refresh_interval);
  second_.async_wait([this, alive = std::weak_ptr{alive_}](boost::system::error_code error) {
    if (error || alive.expired()) return;
    refresh(refresh_interval / 2);
    wait_second();
  });
}

/// Unless that was done less than `age` ago.
void CoordinatorSource::refresh(Duration age) {
  const Moment at = this_moment();
  if (refreshed_ != TimePoint{} && at.now - refreshed_ < std::min<Duration>(age, refresh_interval)) return;
  std::set<std::string> seen;
  for (const auto& [run_id, view] : coordinator_.jobs()) {
    auto& page = pages_[run_id.value()];
    if (!page) {
      page = std::make_unique<JobPage>(run_id, host_, options_.pid);
      page->set_name(options_.job_name);
    }
    page->show(view, at);
    seen.insert(run_id.value());
  }
  std::erase_if(pages_, [&](const auto& entry) {
    return !seen.contains(entry.first) && (!entry.second->ended_at() || told_no_more(*entry.second, at.now));
  });
  for (const auto& [run_id, page] : pages_) seen.insert(run_id);
  if (options_.shown) options_.shown(seen);
  refreshed_ = std::chrono::steady_clock::now();
  cost_ = refreshed_ - at.now;
}

std::vector<JobPage*> CoordinatorSource::pages() {
  refresh(refresh_share * cost_);
  std::vector<JobPage*> shown;
  const TimePoint now = std::chrono::steady_clock::now();
  for (const auto& [run_id, page] : pages_) {
    if (!told_no_more(*page, now)) shown.push_back(page.get());
  }
  return shown;
}

JobPage* CoordinatorSource::page(const std::string& run_id) {
  refresh(refresh_share * cost_);
  return known(run_id);
}

namespace {

std::string why_not_ready(const Coordinator::Role& role) {
  std::string text = "standby";
  if (!role.endpoints.empty()) text += "; the active one is " + role.endpoints.front();
  if (!role.error.empty()) text += "; etcd does not answer (" + role.error + ")";
  return text + "\n";
}

}  // namespace

JobPage* CoordinatorSource::known(const std::string& run_id) const {
  const auto found = pages_.find(run_id);
  return found == pages_.end() ? nullptr : found->second.get();
}

std::string CoordinatorSource::metrics() {
  CoordinatorNumbers numbers = options_.numbers();
  for (const JobPage* page : pages()) numbers.jobs.push_back(page->numbers(this_moment()));
  numbers.late_workers = coordinator_.late_workers();
  return process_metrics(process_numbers(TORCHUP_VERSION)) + coordinator_metrics(numbers) + options_.more_metrics();
}

void CoordinatorSource::perform(const OpsCall& call, HttpServer::Reply reply) {
  OpsAnswer answer;
  switch (call.route) {
    case OpsRoute::readyz:  // who is not, does not answer, or is one of several and not the active one
      if (const auto role = coordinator_.role()) {
        const bool active = !coordinator_.elsewhere();
        answer.status = active ? 200 : 503;
        answer.content_type = text_content;
        answer.body = active ? "active\n" : why_not_ready(*role);
        return reply(std::move(answer));
      }
      [[fallthrough]];
    case OpsRoute::healthz:
      answer.content_type = text_content;
      answer.body = "ok\n";
      return reply(std::move(answer));
    case OpsRoute::metrics:
      answer.content_type = metrics_content_type;
      answer.body = metrics();
      return reply(std::move(answer));
    case OpsRoute::status:
      answer.body = options_.status();
      return reply(std::move(answer));
    default:
      break;
  }
  if (!call.run_id.empty() && !page(call.run_id)) return reply(answer_of(no_such_job(call.run_id)));
  options_.others(call, std::move(reply));
}

}  // namespace torchup

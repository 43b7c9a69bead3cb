#include "launcher/core/record/timeline.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "launcher/core/text/json.hpp"
#include "rendezvous/core/text/json_text.hpp"
#include "rendezvous/core/text/utc_text.hpp"

namespace torchup {
namespace {

namespace te = time_event;

constexpr std::int64_t time_max_us = std::int64_t{1} << 60;
/// Of what people read beside an instant.
constexpr std::size_t detail_bytes_max = 1024;

std::string text_of(const json& event, const char* name) {
  const json* const value = member(event, name);
  return value != nullptr && value->is_string() ? value->get<std::string>().substr(0, detail_bytes_max) : std::string{};
}

/// Events that are an instant of the job, and what says more of them.
struct JobInstant {
  std::string_view event;
  const char* detail;
};
constexpr std::array job_instants{
    JobInstant{"restarting", "reason"}, JobInstant{"membership_changed", "reason"},
    JobInstant{"order_received", "by"}, JobInstant{"hang_found", "summary"},
    JobInstant{"hang_over", ""},        JobInstant{"signal_received", "consequence"},
    JobInstant{"time_ends", ""},        JobInstant{"incident_recorded", "summary"},
    JobInstant{"job_ended", "reason"},
};

std::int64_t median(std::vector<std::int64_t> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

void put_name(std::string& out, std::int64_t process, std::int64_t thread, std::string_view what,
              std::string_view name) {
  std::string arguments;
  JsonObject{arguments}.text("name", name).end();
  JsonObject object{out};
  object.text("ph", "M").text("name", what).number("pid", process).number("tid", thread);
  object.json("args", arguments);
  object.end();
  out += ",\n";
}

}  // namespace

/// What an event does to its node.
struct Timeline::Apply {
  Node& node;
  std::int64_t at;

  void slice(std::int64_t thread, std::int64_t begin, std::int64_t end, std::string name) const {
    if (end > begin) node.marks.push_back({Mark::Kind::slice, thread, begin, end, std::move(name)});
  }
  void rank_ends(std::int64_t rank, std::int64_t started, const std::optional<te::Steps>& steps) const {
    const std::int64_t first = steps ? std::clamp(steps->first_us, started, at) : started;
    const std::int64_t stop = std::clamp(node.stopping.value_or(at), first, at);
    const std::int64_t last = steps ? std::clamp(steps->last_us, first, at) : stop;
    slice(rank + 1, started, first, "start-up");
    slice(rank + 1, first, last, "running");
    slice(rank + 1, last, at, "stopping");
  }

  void operator()(const te::JobStarted&) const {
    if (node.completed) end_attempt(node, at);
    node.waits = at;
  }
  void operator()(const te::RoundCompleted& event) const {
    if (node.completed) end_attempt(node, at);
    if (node.waits) slice(0, *std::exchange(node.waits, std::nullopt), at, "waiting");
    node.completed = at;
    node.stopping.reset();
    node.first_rank = event.first_rank;
    node.attempt = "round " + std::to_string(event.round);
  }
  void operator()(const te::WorkerStarted& event) const {
    const std::int64_t rank = node.first_rank + event.local_rank;
    node.started[rank] = at;
    node.ranks.insert(rank);
  }
  void operator()(const te::WorkerExited& event) const {
    const auto living = node.started.find(node.first_rank + event.local_rank);
    if (living == node.started.end()) return;
    rank_ends(living->first, living->second, event.steps);
    if (event.failed) node.marks.push_back({Mark::Kind::instant, living->first + 1, at, at, "failed"});
    node.started.erase(living);
  }
  void operator()(const te::Stopping&) const {
    if (!node.stopping) node.stopping = at;
  }
  void operator()(const te::AttemptEnded&) const {
    if (node.completed) end_attempt(node, at);
    node.waits = at;
  }
  void operator()(const te::JobEnded&) const {
    if (node.completed) end_attempt(node, at);
    node.waits.reset();
  }
  template <class Other>
  void operator()(const Other&) const {}
};

/// Also of ranks that live on: each attempt has its own slices.
void Timeline::end_attempt(Node& node, std::int64_t at) {
  const Apply end{node, at};
  for (const auto& [rank, started] : std::exchange(node.started, {})) end.rank_ends(rank, started, std::nullopt);
  end.slice(0, *node.completed, at, node.attempt);
  node.completed.reset();
}

void Timeline::add_instant(Node& node, const json& event, std::int64_t at) {
  const std::string name = text_of(event, "event");
  if (name == "attempt_started") node.attempt = text_of(event, "name");
  const json* const pace = member(event, "steps_per_second");
  if (name == "progress" && pace != nullptr && pace->is_number()) {
    node.marks.push_back({Mark::Kind::counter, 0, at, at, "steps/s", "", pace->get<double>()});
  }
  const json* const rank = member(event, "rank");
  if ((name == "worker_hung" || name == "spawn_failed") && rank != nullptr && rank->is_number_unsigned()) {
    const auto thread = static_cast<std::int64_t>(std::min(rank->get<std::uint64_t>(), std::uint64_t{1} << 31));
    node.ranks.insert(thread);
    node.marks.push_back({Mark::Kind::instant, thread + 1, at, at, name, text_of(event, "reason")});
  }
  const auto of_job = std::ranges::find(job_instants, name, &JobInstant::event);
  if (of_job == job_instants.end()) return;
  const std::string verb = text_of(event, "verb");
  node.marks.push_back({Mark::Kind::instant, 0, at, at, verb.empty() ? name : verb, text_of(event, of_job->detail)});
}

Result<> Timeline::add(std::string_view line, const json& event) {
  auto of_time = read_time_event(line);
  if (!of_time) return of_time.error();
  const json* const clock = member(event, "monotonic_us");
  Node& node = nodes_[text_of(event, "host")];
  auto at = std::clamp<std::int64_t>(clock->is_number_integer() ? clock->get<std::int64_t>() : 0, 0, time_max_us);
  at = std::max(at, node.last_us);  // of one node it never goes backwards
  if (const auto day = read_utc(text_of(event, "time"))) node.offsets.push_back(*day - at);
  node.last_us = at;
  if (*of_time) std::visit(Apply{node, at}, (*of_time)->body);
  add_instant(node, event, at);
  return {};
}

void Timeline::put(std::string& out, std::int64_t process, const Mark& mark, std::int64_t shift) {
  std::string arguments;
  JsonObject more{arguments};
  JsonObject object{out};
  object.text("name", mark.name).number("pid", process).number("tid", mark.thread).number("ts", mark.begin_us + shift);
  switch (mark.kind) {
    case Mark::Kind::slice:
      object.text("ph", "X").number("dur", mark.end_us - mark.begin_us);
      break;
    case Mark::Kind::instant:
      object.text("ph", "i").text("s", mark.thread == 0 ? "p" : "t");
      more.text("detail", mark.detail);
      break;
    case Mark::Kind::counter:
      object.text("ph", "C");
      more.real("value", mark.value);
      break;
  }
  more.end();
  object.json("args", arguments);
  object.end();
  out += ",\n";
}

std::string Timeline::text() const {
  std::map<std::string, std::int64_t> offsets;
  std::int64_t begin = std::numeric_limits<std::int64_t>::max();
  for (const auto& [host, node] : nodes_) {
    offsets[host] = median(node.offsets);
    for (const Mark& mark : node.marks) begin = std::min(begin, mark.begin_us + offsets[host]);
    for (const auto& open : {node.waits, node.completed}) {
      if (open) begin = std::min(begin, *open + offsets[host]);
    }
  }
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  std::int64_t process = 0;
  for (const auto& [host, told] : nodes_) {
    Node node = told;
    ++process;
    if (node.completed) end_attempt(node, node.last_us);
    if (node.waits) Apply{node, node.last_us}.slice(0, *node.waits, node.last_us, "waiting");
    put_name(out, process, 0, "process_name", host);
    put_name(out, process, 0, "thread_name", "job");
    for (const std::int64_t rank : node.ranks) {
      put_name(out, process, rank + 1, "thread_name", "rank " + std::to_string(rank));
    }
    for (const Mark& mark : node.marks) put(out, process, mark, offsets[host] - begin);
  }
  if (out.ends_with(",\n")) out.resize(out.size() - 2);
  return out + "\n]}\n";
}

}  // namespace torchup

// A job's page: its JSON.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "rendezvous/core/ops/job_page.hpp"
#include "rendezvous/core/ops/withheld.hpp"
#include "rendezvous/core/text/json_text.hpp"
#include "rendezvous/core/text/names.hpp"
#include "rendezvous/core/text/utc_text.hpp"

namespace torchup {
namespace {

std::string in_json(std::string_view text) {
  std::string out;
  put_json(out, text);
  return out;
}

std::string in_json_or_null(std::string_view text) { return text.empty() ? "null" : in_json(text); }

std::string time_or_null(std::optional<std::int64_t> utc_us) {
  return utc_us ? in_json(utc_text(*utc_us)) : std::string{"null"};
}

/// Of jobs that only torchrun's agents know these are not known.
std::string count_or_null(const JobView& view, int count) {
  return view.max_nodes == 0 ? "null" : std::to_string(count);
}

std::string ranks_text(const std::array<std::int64_t, rank_states.size()>& ranks) {
  std::string out;
  JsonObject object{out};
  for (std::size_t state = 0; state < ranks.size(); ++state) object.number(rank_states[state].word, ranks[state]);
  object.end();
  return out;
}

std::string nodes_count_text(const std::map<std::string, std::int64_t, std::less<>>& nodes, std::size_t more_missing) {
  std::string out;
  JsonObject object{out};
  for (const std::string_view state : node_states) {
    const auto found = nodes.find(state);
    const std::int64_t count = found == nodes.end() ? 0 : found->second;
    object.number(state, count + (state == "missing" ? static_cast<std::int64_t>(more_missing) : 0));
  }
  object.end();
  return out;
}

std::string failure_text(const WorkerFailure& failure) {
  std::string out;
  JsonObject{out}
      .number("rank", failure.rank.value())
      .number("local_rank", failure.local_rank.value())
      .number("exit_code", failure.exit_code)
      .number("pid", failure.pid)
      .text("host", failure.host)
      .text("time", utc_text(failure.time_us))
      .text("message", cut_text(failure.message, shown_text_bytes_max))
      .text("error_file", failure.error_file)
      .flag("consequence", failure.consequence)
      .end();
  return out;
}

double per_second(const StepReport& steps) { return static_cast<double>(steps.milli_per_second) / 1000; }

double seconds_of(Duration duration) { return std::chrono::duration<double>{duration}.count(); }

}  // namespace

std::string JobPage::verdict_text(const std::optional<Verdict>& verdict) {
  if (!verdict) return "null";
  std::string failures = "[";
  for (const WorkerFailure& failure : verdict->failures) {
    failures += (failures.size() > 1 ? "," : "") + failure_text(failure);
  }
  std::string out;
  JsonObject{out}
      .number("exit_code", verdict->exit_code)
      .text("reason", cut_text(verdict->reason, shown_text_bytes_max))
      .json("failures", failures + "]")
      .end();
  return out;
}

JobPage::Told::Told(std::string text) : whole{std::move(text)} { cut = whole == "null" ? whole : withheld(whole); }

// A node's members stand in two texts: what the coordinator knows of it, and what its agent tells.

void JobPage::make(Row& row) {
  const JobView::Node& node = row.seen;
  const auto number = [](const auto& index) {
    return index ? std::optional<std::int64_t>{index->value()} : std::nullopt;
  };
  if (row.place_text.empty()) {
    std::string text;
    JsonObject{text}
        .text("host", node.host)
        .text("state", node.state)
        .text_or_null("reason", cut_text(node.reason, shown_text_bytes_max))
        .number_or_null("group_rank", number(node.group_rank))
        .number_or_null("first_rank", number(node.first_rank))
        .number("local_world_size", node.local_world_size)
        .text("agent", node.torchruns ? "torchrun" : "torchup");
    row.place_text = text.substr(1);
  }
  if (!row.report_text.empty()) return;
  const bool steps = row.report && row.report->steps;
  const auto workers = static_cast<std::size_t>(node.local_world_size);
  std::string text;
  JsonObject{text}
      .text("ranks", row.report ? row.report->ranks : std::string(workers, rank_states.back().letter))
      .number_or_null("step", steps ? std::optional{row.report->steps->most} : std::nullopt);
  row.report_text = text.substr(1);
}

bool JobPage::prepare(std::size_t nodes) {
  while (stale_ > 0 && nodes > 0) {
    prepared_ = prepared_ + 1 < rows_.size() ? prepared_ + 1 : 0;
    Row& row = rows_[prepared_];
    if (!row.place_text.empty() && !row.report_text.empty()) continue;
    make(row);
    --stale_;
    --nodes;
  }
  return stale_ == 0;
}

// The job's other members: those that change with a revision, those that change with time, and those that not everybody
// is told whole.

void JobPage::refresh(std::string_view name, std::string text) {
  const auto member = std::ranges::find(members_, name, &Member::name);
  if (member == members_.end()) {
    members_.push_back({name, std::move(text), revision_});
  } else if (member->text != text) {
    member->text = std::move(text);
    member->revision = revision_;
  }
}

void JobPage::refresh_members() {
  if (members_made_ == revision_) return;
  members_made_ = revision_;
  const Sums& all = sums();
  refresh("name", in_json_or_null(name_));
  refresh("phase", in_json(view_.phase));
  refresh("started", time_or_null(started_us_));
  refresh("ended", time_or_null(ended_us_));
  refresh("round", std::to_string(view_.round.value()));
  refresh("world_size", std::to_string(view_.world_size));
  refresh("min_nodes", count_or_null(view_, view_.min_nodes));
  refresh("max_nodes", count_or_null(view_, view_.max_nodes));
  refresh("restart_count", count_or_null(view_, view_.restart_count));
  refresh("max_restarts", count_or_null(view_, view_.max_restarts));
  refresh("membership_changes", count_or_null(view_, view_.membership_changes));
  refresh("master", in_json_or_null(view_.master));
  refresh("waits_for", in_json_or_null(view_.waits_for));
  refresh("last", in_json_or_null(view_.last));
  refresh("ranks", ranks_text(all.ranks));
  refresh("node_states", nodes_count_text(all.nodes, view_.more_missing));
  refresh("ledger", ledger_json(all.ledger));
}

void JobPage::put_passing(JsonObject& out, const Moment& at, std::uint64_t seq) const {
  out.text("now", utc_text(at.utc_us)).number("seq", static_cast<std::int64_t>(seq));
  const Sums& all = sums();
  if (!all.steps) {
    out.null("step");
    return;
  }
  std::string step;
  JsonObject{step}
      .number("min", all.steps->least)
      .number("max", all.steps->most)
      .real("per_second", per_second(*all.steps))
      .real("age_s", seconds_of(at.now - all.newest_step))
      .end();
  out.json("step", step);
}

void JobPage::put_told(JsonObject& out, Right right, std::uint64_t since) const {
  bool cut = false;
  if (verdict_revision_ > since) {
    out.json("verdict", verdict_ ? verdict_->to(right) : "null");
    cut = verdict_ && verdict_->to(right) != verdict_->whole;
  }
  if (incidents_revision_ > since) {
    std::string list = "[";
    for (const Told& incident : incidents_) {
      list += (list.size() > 1 ? "," : "") + incident.to(right);
      cut = cut || incident.to(right) != incident.whole;
    }
    out.json("incidents", list + "]");
  }
  if (cut) out.flag("withheld", true);
}

std::string JobPage::snapshot(Right right, const Moment& at, std::uint64_t seq) {
  prepare(rows_.size());
  refresh_members();
  std::string out;
  out.reserve(4096 + rows_.size() * 256);
  JsonObject object{out};
  object.number("schema", job_page_schema).text("run_id", run_id_.value());
  for (const Member& member : members_) object.json(member.name, member.text);
  put_passing(object, at, seq);
  put_told(object, right, 0);
  object.json("nodes", "{");
  for (const Row& row : rows_) {
    put_json(out, row.id);
    out += ":{";
    out += row.place_text;
    out += ',';
    out += row.report_text;
    out += "},";
  }
  if (out.back() == ',') out.pop_back();
  out += '}';
  object.end();
  return out;
}

void JobPage::put_changed_nodes(JsonObject& out, std::uint64_t since) {
  std::string nodes;
  const auto name = [&](std::string_view id) {
    nodes += nodes.empty() ? '{' : ',';
    put_json(nodes, id);
    nodes += ':';
  };
  for (const auto& [revision, id] : gone_) {
    if (revision <= since || row_of_.contains(id)) continue;
    name(id);
    nodes += "null";
  }
  for (const Row& row : rows_) {
    const bool moved = row.place_revision > since;
    if (!moved && row.report_revision <= since) continue;
    name(row.id);
    nodes += '{';
    if (moved) nodes += row.place_text + ",";
    nodes += row.report_text;
    nodes += '}';
  }
  if (!nodes.empty()) out.json("nodes", nodes + "}");
}

std::optional<std::string> JobPage::changes(Right right, std::uint64_t since, const Moment& at, std::uint64_t seq) {
  if (since < gone_since_ || since > revision_) return std::nullopt;
  prepare(rows_.size());
  refresh_members();
  std::string out;
  JsonObject object{out};
  for (const Member& member : members_) {
    if (member.revision > since) object.json(member.name, member.text);
  }
  put_passing(object, at, seq);
  put_told(object, right, since);
  put_changed_nodes(object, since);
  object.end();
  return out;
}

std::string JobPage::row(const Moment& at, std::uint64_t seq) {
  refresh_members();
  std::string out;
  JsonObject object{out};
  object.number("schema", job_page_schema).text("run_id", run_id_.value()).text("host", host_);
  if (pid_) object.number("pid", *pid_);
  for (const Member& member : members_) {
    if (member.name == "ledger" || member.name == "waits_for" || member.name == "last") continue;
    object.json(member.name, member.text);
  }
  object.text_or_null("waits_for", cut_text(view_.waits_for, listed_text_bytes_max));
  object.text_or_null("last", cut_text(view_.last, listed_text_bytes_max));
  object.text("now", utc_text(at.utc_us)).number("seq", static_cast<std::int64_t>(seq));
  if (const Sums& all = sums(); all.steps) {
    object.number("step", all.steps->most).real("steps_per_second", per_second(*all.steps));
  } else {
    object.null("step").null("steps_per_second");
  }
  std::string verdict = "null";
  if (view_.verdict) {
    verdict.clear();
    JsonObject{verdict}
        .number("exit_code", view_.verdict->exit_code)
        .text("reason", cut_text(view_.verdict->reason, listed_text_bytes_max))
        .end();
  }
  object.json("verdict", verdict);
  object.end();
  return out;
}

std::string jobs_text(const std::vector<std::string>& rows, Right right, const Moment& at) {
  std::string list = "[";
  for (const std::string& row : rows) list += (list.size() > 1 ? "," : "") + row;
  std::string out;
  JsonObject{out}
      .number("schema", job_page_schema)
      .text("right", to_text(right))
      .text("now", utc_text(at.utc_us))
      .json("jobs", list + "]")
      .end();
  return out;
}

}  // namespace torchup

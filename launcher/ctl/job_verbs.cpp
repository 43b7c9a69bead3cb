// ps and status.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include "launcher/ctl/job_text.hpp"
#include "launcher/ctl/target.hpp"
#include "launcher/ctl/values.hpp"
#include "launcher/ctl/verbs.hpp"
#include "rendezvous/core/text/utc_text.hpp"

namespace torchup {
namespace {

/// What is listed, from what each door has said.
struct Listing {
  json head = json::object();  ///< what a port says beside the rows
  std::vector<json> rows;
  std::optional<Trouble> trouble;  ///< of one that answers with no

  void add(const Door& door, const Result<HttpAnswer>& answer);

 private:
  void add_silent(const Door& door);
};

void Listing::add_silent(const Door& door) {
  if (const auto* socket = std::get_if<SocketFile>(&door.at))
    rows.push_back({{"pid", socket->pid}, {"socket", socket->path}, {"answering", false}});
}

void Listing::add(const Door& door, const Result<HttpAnswer>& answer) {
  if (!answer && nobody_is_there(answer.error())) return;
  const auto body = json_of(door, answer);
  if (const auto* silent = std::get_if<Trouble>(&body)) {
    trouble = *silent;
    return add_silent(door);
  }
  const json& said = std::get<json>(body);
  if (std::holds_alternative<Endpoint>(door.at)) head = said;
  for (SeenJob& job : seen_jobs(0, said)) {
    if (const auto* socket = std::get_if<SocketFile>(&door.at)) {
      job.row["socket"] = socket->path;
      job.row["answering"] = true;
    }
    rows.push_back(std::move(job.row));
  }
}

std::string utc_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return utc_text(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

/// A daemon here tells of jobs that launchers here tell of too.
void drop_told_twice(std::vector<json>& rows) {
  std::map<std::string, std::set<std::string>> by_launchers;  // by run id: when those jobs have begun
  for (const json& row : rows) {
    if (integer_in(row, "pid")) by_launchers[text_in(row, "run_id")].insert(begin_of(row));
  }
  std::erase_if(rows, [&](const json& row) {
    if (integer_in(row, "pid")) return false;
    const auto told = by_launchers.find(text_in(row, "run_id"));
    if (told == by_launchers.end()) return false;
    const std::string begin = begin_of(row);
    return begin.empty() || told->second.contains(begin);  // one that is cut off may be of another job of that name
  });
}

}  // namespace

int give(std::string_view text, int code) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (written) return code;
  std::perror("torchupctl: stdout");
  return CtlExit::no;
}

bool shows_colours() {
  const char* const refused = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && !(refused && *refused) && !(terminal && std::string_view{terminal} == "dumb");
}

int run_ps(const Command& command) {
  const auto found = find_doors(command);
  if (const int* const code = std::get_if<int>(&found)) return *code;
  const auto& [doors, local] = std::get<Doors>(found);
  const auto answers = ask_everybody(doors, {.target = "/v1/jobs"}, local ? first_look_limit : answer_limit);
  Listing listing;
  for (std::size_t i = 0; i < doors.size(); ++i) listing.add(doors[i], answers[i]);
  if (!local && listing.trouble) return complain(*listing.trouble);
  drop_told_twice(listing.rows);
  if (!command.options.flag("json")) return give(ps_text(listing.rows));
  json all = std::move(listing.head);
  if (local) all = {{"schema", 1}, {"right", "control"}, {"now", utc_now()}};  // whose sockets answer us may do all
  all["jobs"] = std::move(listing.rows);
  return give(json_line(all));
}

int run_status(const Command& command) {
  const auto found = find_target(command, command.operands.empty() ? "" : command.operands[0]);
  if (const int* const code = std::get_if<int>(&found)) return *code;
  const auto& target = std::get<Target>(found);
  const auto snapshot = ask_json(target.door, {.target = target.path()});
  if (const auto* trouble = std::get_if<Trouble>(&snapshot)) return complain(*trouble);
  const json& job = std::get<json>(snapshot);
  if (command.options.flag("json")) return give(json_line(job));
  return give(joined_lines(status_lines(job, {.colour = shows_colours() ? Colour::terminal : Colour::none})));
}

}  // namespace torchup

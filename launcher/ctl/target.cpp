#include "launcher/ctl/target.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "rendezvous/core/text/percent.hpp"
#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/core/text/wording.hpp"
#include "rendezvous/net/io/token.hpp"

namespace torchup {
namespace {

std::variant<Doors, int> port_door(const Command& command, const std::string& endpoint, std::string token) {
  auto parsed = parse_endpoint(endpoint);
  if (!parsed || parsed->port.value() == 0) {
    return complain(fmt::format("--endpoint: {}", parsed ? "port 0 is none" : parsed.error().message()),
                    CtlExit::usage);
  }
  if (command.options.has("token-file")) {
    auto read = read_token_file(command.options.text("token-file"));
    if (!read) return complain(fmt::format("--token-file: {}", read.error().message()), CtlExit::usage);
    token = *std::move(read);
  } else if (!token.empty()) {
    auto checked = checked_token(std::move(token), "TORCHUP_TOKEN");
    if (!checked) return complain(checked.error().message(), CtlExit::usage);
    token = *std::move(checked);
  }
  return Doors{{Door{*std::move(parsed), std::move(token)}}, false};
}

/// What everybody has told of jobs so far.
struct Heard {
  std::vector<SeenJob> jobs;
  std::optional<Trouble> trouble;        ///< of somebody who did answer, with no
  std::vector<std::string> untold = {};  ///< doors where nobody has said what is there
  bool silent = false;                   ///< for some of them that may come yet
};

Heard hear(const std::vector<Door>& doors, const std::vector<Exchange>& exchanges) {
  Heard heard;
  for (std::size_t i = 0; i < exchanges.size(); ++i) {
    const auto answer = exchanges[i].answer();
    if (!answer && nobody_is_there(answer.error())) continue;
    heard.silent = heard.silent || !exchanges[i].done();
    const auto body = json_of(doors[i], answer);
    if (const auto* trouble = std::get_if<Trouble>(&body)) {
      heard.trouble = *trouble;
      heard.untold.push_back(doors[i].name());
      continue;
    }
    for (SeenJob& job : seen_jobs(i, std::get<json>(body), doors[i].owner())) heard.jobs.push_back(std::move(job));
  }
  return heard;
}

/// A launcher that does not say which job is its own may still be named by its pid.
bool is_silent_launcher(const std::vector<Door>& doors, const std::vector<Exchange>& exchanges,
                        const std::string& word) {
  for (std::size_t i = 0; i < doors.size(); ++i) {
    const auto* socket = std::get_if<SocketFile>(&doors[i].at);
    if (socket && !exchanges[i].answer() && std::to_string(socket->pid) == word) return true;
  }
  return false;
}

int tell_no_choice(const NoChoice& none, const Heard& heard) {
  if (none.may_come && heard.trouble && heard.jobs.empty()) return complain(*heard.trouble);
  std::string text = none.text;
  for (const std::string& name : none.candidates) text += "\n  " + name;
  if (none.may_come && heard.silent) text += ", and somebody does not answer (torchupctl ps)";
  return complain(text, CtlExit::no);
}

/// The job that was found; a number: it may be another that is meant.
std::variant<Target, int> checked(Target target, const Heard& heard, bool named_whole, Errand errand) {
  if (named_whole || heard.untold.empty()) return target;
  const std::string who = join_names(heard.untold);
  if (errand == Errand::look) {
    complain(fmt::format("what is at {} does not answer, and may be meant too", who), 0);
    return target;
  }
  return complain(fmt::format("what is at {} does not answer, and may be meant: name the job by its whole run id, or "
                              "its launcher's pid",
                              who),
                  CtlExit::no);
}

}  // namespace

std::variant<Doors, int> find_doors(const Command& command) {
  std::string token = take_token_variable();
  const char* const variable = std::getenv("TORCHUP_ENDPOINT");
  const std::string endpoint = command.options.text("endpoint", variable ? variable : "");
  if (!endpoint.empty()) return port_door(command, endpoint, std::move(token));
  const bool all_users = command.options.flag("all-users");
  if (all_users && ::geteuid() != 0) return complain("--all-users is for root", CtlExit::forbidden);
  const FoundSockets found = find_control_sockets(all_users);
  for (const std::string& complaint : found.complaints) complain(complaint, 0);
  Doors doors;
  for (const SocketFile& socket : found.sockets) doors.doors.push_back({socket});
  return doors;
}

std::vector<Result<HttpAnswer>> ask_everybody(const std::vector<Door>& doors, const HttpQuestion& question,
                                              Duration limit) {
  const TimePoint until = std::chrono::steady_clock::now() + limit;
  std::vector<Exchange> exchanges;
  exchanges.reserve(doors.size());
  for (const Door& door : doors) exchanges.push_back(begin_exchange(door, question, until));
  run_exchanges(exchanges, until);
  std::vector<Result<HttpAnswer>> answers;
  answers.reserve(exchanges.size());
  for (const Exchange& exchange : exchanges) answers.push_back(exchange.answer());
  return answers;
}

std::string Target::path(std::string_view rest) const {
  return fmt::format("/v1/jobs/{}{}", percent_encoded(run_id), rest);
}

std::variant<Target, int> find_target(const Command& command, const std::string& word, Errand errand) {
  const auto found = find_doors(command);
  if (const int* const code = std::get_if<int>(&found)) return *code;
  const auto& [doors, local] = std::get<Doors>(found);
  const TimePoint begin = std::chrono::steady_clock::now();
  const TimePoint until = begin + answer_limit;
  std::vector<Exchange> exchanges;
  exchanges.reserve(doors.size());
  for (const Door& door : doors) exchanges.push_back(begin_exchange(door, {.target = "/v1/jobs"}, until));
  // One that has stopped keeps nobody waiting who says which other he means.
  for (const TimePoint limit : {local ? begin + first_look_limit : until, until}) {
    run_exchanges(exchanges, limit);
    const Heard heard = hear(doors, exchanges);
    auto choice = choose_job(heard.jobs, word);
    const auto* const job = std::get_if<const SeenJob*>(&choice);
    const bool named_whole = job && is_named_whole(**job, word);
    if (heard.silent && !named_whole && limit < until) continue;
    if (job) return checked({doors[(*job)->door], (*job)->run_id, (*job)->row}, heard, named_whole, errand);
    const auto& none = std::get<NoChoice>(choice);
    if (none.may_come && is_silent_launcher(doors, exchanges, word))
      return complain(fmt::format("the launcher {} does not answer", word), CtlExit::nobody);
    return tell_no_choice(none, heard);
  }
  return CtlExit::nobody;
}

}  // namespace torchup

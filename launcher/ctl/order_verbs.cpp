// stop, restart, resize, drain, undrain and page: what a job is told.

#include <fmt/format.h>

#include <charconv>

#include "launcher/core/text/text.hpp"
#include "launcher/ctl/job_text.hpp"
#include "launcher/ctl/node_choice.hpp"
#include "launcher/ctl/target.hpp"
#include "launcher/ctl/values.hpp"
#include "launcher/ctl/verbs.hpp"
#include "rendezvous/core/text/percent.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

/// Posts an order and tells what was answered.
int give_order(const Command& command, const Target& target, const std::string& path, const json& body) {
  const auto answer = ask_json(target.door, {.method = "POST", .target = path, .body = body.dump()});
  if (const auto* trouble = std::get_if<Trouble>(&answer)) return complain(*trouble);
  const json& said = std::get<json>(answer);
  if (command.options.flag("json")) return give(json_line(said));
  return give(printable_start(text_in(said, "accepted"), 2000) + "\n");
}

/// The job that the command is about.
std::variant<Target, int> find_ordered(const Command& command) {
  return find_target(command, command.operands.empty() ? "" : command.operands[0], Errand::order);
}

int order_job(const Command& command, std::string_view verb, const json& body) {
  const auto found = find_ordered(command);
  if (const int* const code = std::get_if<int>(&found)) return *code;
  const auto& target = std::get<Target>(found);
  return give_order(command, target, target.path(fmt::format("/{}", verb)), body);
}

std::optional<int> whole_number(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional{number} : std::nullopt;
}

/// A daemon opens the page of all its jobs, and a launcher its own job's: the one that is asked for stands in the path.
std::string address_of_job(std::string url, const std::string& run_id) {
  const std::size_t host = url.find("://"), end = url.find("#token=");
  if (host == std::string::npos || end == std::string::npos) return url;
  const std::size_t path = url.find('/', host + 3);
  if (path < end) url.replace(path, end - path, "/jobs/" + percent_encoded(run_id));
  return url;
}

}  // namespace

int run_stop(const Command& command) {
  const bool save = command.options.flag("save"), now = command.options.flag("now");
  if (save && now) return complain("--save and --now: who is killed cannot save", CtlExit::usage);
  return order_job(command, "stop", {{"save", save}, {"now", now}});
}

int run_restart(const Command& command) { return order_job(command, "restart", json::object()); }

int run_resize(const Command& command) {
  if (!command.options.has("nodes")) return complain("resize needs --nodes MIN:MAX", CtlExit::usage);
  const std::string text = command.options.text("nodes");
  const std::size_t colon = text.find(':');
  const auto least = whole_number(std::string_view{text}.substr(0, colon));
  const auto most = colon == std::string::npos ? least : whole_number(std::string_view{text}.substr(colon + 1));
  if (!least || !most || *least < 1 || *most < *least)
    return complain(fmt::format("--nodes: '{}' is not MIN:MAX with 1 <= MIN <= MAX", printable_start(text)),
                    CtlExit::usage);
  return order_job(command, "resize", {{"min", *least}, {"max", *most}});
}

int run_drain(const Command& command) {
  if (!command.options.has("node"))
    return complain(fmt::format("{} needs --node N: node id, group rank or host", command.verb->name), CtlExit::usage);
  const auto found = find_ordered(command);
  if (const int* const code = std::get_if<int>(&found)) return *code;
  const auto& target = std::get<Target>(found);
  const auto snapshot = ask_json(target.door, {.target = target.path()});
  if (const auto* trouble = std::get_if<Trouble>(&snapshot)) return complain(*trouble);
  const auto node = choose_node(std::get<json>(snapshot), command.options.text("node"));
  if (!node) return complain(node.error().message(), CtlExit::no);
  return give_order(command, target,
                    target.path(fmt::format("/nodes/{}/{}", percent_encoded(*node), command.verb->name)),
                    json::object());
}

int run_page(const Command& command) {
  const auto found = find_target(command, command.operands.empty() ? "" : command.operands[0]);
  if (const int* const code = std::get_if<int>(&found)) return *code;
  const auto& target = std::get<Target>(found);
  if (const auto* endpoint = std::get_if<Endpoint>(&target.door.at)) {
    // It serves the page itself; who opens it is asked for the token there.
    const std::string url = fmt::format("http://{}/jobs/{}", to_string(*endpoint), percent_encoded(target.run_id));
    if (command.options.flag("json")) return give(json_line(json{{"url", url}}));
    return give(url + "\n");
  }
  const auto answer = ask_json(target.door, {.method = "POST", .target = "/v1/node/page", .body = "{}"});
  if (const auto* trouble = std::get_if<Trouble>(&answer)) return complain(*trouble);
  json said = std::get<json>(answer);
  const std::string url = address_of_job(text_in(said, "url"), target.run_id);
  said["url"] = url;
  if (command.options.flag("json")) return give(json_line(said));
  return give(printable_start(url, 4096) + "\n");
}

}  // namespace torchup

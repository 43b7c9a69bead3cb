#include <catch2/catch.hpp>

#include "launcher/ctl/command.hpp"
#include "launcher/ctl/control_sockets.hpp"
#include "launcher/ctl/ctl_completion.hpp"
#include "launcher/ctl/ctl_manual.hpp"
#include "launcher/ctl/job_choice.hpp"
#include "launcher/ctl/node_choice.hpp"
#include "launcher/ctl/stream_events.hpp"
#include "rendezvous/core/text/utc_text.hpp"

namespace torchup {
namespace {

SeenJob job(std::string run_id, std::optional<std::int64_t> pid, int max_nodes = 2) {
  return {0, std::move(run_id), pid, json{{"max_nodes", max_nodes}}};
}

std::string chosen(const std::vector<SeenJob>& jobs, std::string_view word) {
  const auto choice = choose_job(jobs, word);
  const auto* const* found = std::get_if<const SeenJob*>(&choice);
  if (!found) return "";
  return (*found)->run_id + (*found)->row.value("mark", "");
}

std::vector<std::string> candidates(const std::vector<SeenJob>& jobs, std::string_view word) {
  return std::get<NoChoice>(choose_job(jobs, word)).candidates;
}

Command command(const std::vector<std::string>& words) { return std::get<Command>(parse_command(words)); }
EarlyEnd refusal(const std::vector<std::string>& words) { return std::get<EarlyEnd>(parse_command(words)); }

}  // namespace

TEST_CASE("a job is meant by its run id, a launcher's pid, or a beginning that only it has", "[unit][ctl]") {
  const std::vector<SeenJob> jobs{job("mnist", 10), job("mnist-2", 11), job("11", 12), job("gpt", 13)};
  REQUIRE(chosen(jobs, "mnist") == "mnist");  // whole, though it is a beginning too
  REQUIRE(chosen(jobs, "11") == "11");        // a run id before a pid
  REQUIRE(chosen(jobs, "13") == "gpt");
  REQUIRE(chosen(jobs, "g") == "gpt");
  REQUIRE(candidates(jobs, "mn") == std::vector<std::string>{"mnist (pid 10)", "mnist-2 (pid 11)"});
  REQUIRE(candidates(jobs, "").size() == 4);
  REQUIRE(std::get<NoChoice>(choose_job(jobs, "other")).may_come);
  REQUIRE(std::get<NoChoice>(choose_job({}, "")).may_come);
}

TEST_CASE("a job is named whole by its run id or its pid", "[unit][ctl]") {
  for (const char* word : {"mnist", "10"}) CHECK(is_named_whole(job("mnist", 10), word));
  for (const char* word : {"", "mn", "1", "010x", "mnist-2"}) CHECK_FALSE(is_named_whole(job("mnist", 10), word));
  CHECK_FALSE(is_named_whole(job("mnist", {}), "10"));
  CHECK_FALSE(is_named_whole(job("mnist", {}), ""));
}

TEST_CASE("launchers of one job of several nodes are one job, two of one node each are two", "[unit][ctl]") {
  std::vector<SeenJob> jobs{job("a", {}), job("a", 10), job("a", 11)};
  jobs[1].row["mark"] = "!";
  REQUIRE(chosen(jobs, "") == "a!");  // a launcher before a daemon
  const std::vector<SeenJob> two{job("a", 10, 1), job("a", 11, 1)};
  REQUIRE(candidates(two, "a") == std::vector<std::string>{"a (pid 10)", "a (pid 11)"});
  REQUIRE(chosen(two, "11") == "a");
}

TEST_CASE("launchers of one run id whose jobs have begun at two times are of two jobs", "[unit][ctl]") {
  std::vector<SeenJob> jobs{job("a", 10), job("a", 11), job("a", 12)};
  const std::vector<std::string> all{"a (pid 10)", "a (pid 11)", "a (pid 12)"};
  jobs[1].row["started"] = "2026-11-21T04:00:00.000000Z";
  jobs[2].row["started"] = "2026-11-21T04:00:01.000000Z";
  REQUIRE(candidates(jobs, "a") == all);  // also behind one that does not say when
  jobs[1].row["mark"] = "!";       // of those that may be one job, an order is given to who has a coordinator's word
  jobs[2].row["phase"] = "ended";  // it may know of that by itself alone
  REQUIRE(chosen(jobs, "a") == "a!");
  jobs[2].row["phase"] = "running";
  REQUIRE(candidates(jobs, "a") == all);
  jobs[2].row["started"] = jobs[1].row["started"];
  REQUIRE(chosen(jobs, "a") == "a!");
  for (SeenJob& each : jobs) each.row["started"] = nullptr;  // torchrun's agents have no coordinator that says when
  REQUIRE(chosen(jobs, "a") == "a");
}

TEST_CASE("launchers of two users are of two jobs, and a daemon tells of all", "[unit][ctl]") {
  std::vector<SeenJob> jobs{job("a", 10), job("a", 11), job("a", {})};
  jobs[0].owner = 1000;
  jobs[1].owner = 1001;
  jobs[2].owner = 0;
  REQUIRE(candidates(jobs, "a") == std::vector<std::string>{"a", "a (pid 10)", "a (pid 11)"});
  REQUIRE(chosen(jobs, "11") == "a");
  jobs[1].owner = 1000;
  jobs[0].row["mark"] = "!";
  REQUIRE(chosen(jobs, "a") == "a!");
  jobs[0].pid.reset();  // what passes itself off as a daemon
  jobs[2].row["mark"] = "?";
  REQUIRE(candidates({jobs[0], jobs[2]}, "a") == std::vector<std::string>{"a"});
}

TEST_CASE("a pid that stands in rows of two jobs names none", "[unit][ctl]") {
  REQUIRE(candidates({job("a", 10), job("b", 10)}, "10") == std::vector<std::string>{"a (pid 10)", "b (pid 10)"});
}

TEST_CASE("a node is meant by its id, its group rank, or a host that has one", "[unit][ctl]") {
  const json snapshot = json::parse(R"({"nodes": {"n0": {"host": "h", "group_rank": 1}, "n1": {"host": "h"},
                                        "n2": {"host": "k"}, "0": {"host": "x", "group_rank": 7}, "n3": 3}})");
  REQUIRE(*choose_node(snapshot, "n1") == "n1");
  REQUIRE(*choose_node(snapshot, "1") == "n0");
  REQUIRE(*choose_node(snapshot, "0") == "0");
  REQUIRE(*choose_node(snapshot, "k") == "n2");
  REQUIRE(choose_node(snapshot, "h").error().message().find("n0, n1") != std::string::npos);
  REQUIRE_FALSE(choose_node(snapshot, "none").has_value());
  REQUIRE_FALSE(choose_node(json::array(), "n0").has_value());
}

TEST_CASE("a socket's name tells its launcher, and others are none", "[unit][ctl]") {
  REQUIRE(pid_in_socket_name("4242-0badcafe.sock") == 4242);
  for (const char* name :
       {"4242.sock", "4242-0badcaf.sock", "4242-0badcafeX.sock", "-1-0badcafe.sock", "x-0badcafe.sock",
        "4242-0badcafe.new", "0-0badcafe.sock", "99999999999999-0badcafe.sock", ".sock", ""})
    REQUIRE_FALSE(pid_in_socket_name(name));
}

TEST_CASE("events of a stream, in whatever pieces they come", "[unit][ctl]") {
  const std::string text = ": hello\n\nevent: event\nid: 7\ndata: {\"a\":\r\ndata: 1}\n\nid: 8\n\ndata:x\n\ndata: cut";
  for (const std::size_t size : {std::size_t{1}, std::size_t{3}, text.size()}) {
    StreamEvents events;
    std::vector<StreamEvent> seen;
    for (std::size_t at = 0; at < text.size(); at += size) {
      events.add(std::string_view{text}.substr(at, size));
      while (auto event = events.next()) seen.push_back(*event);
    }
    REQUIRE(seen == std::vector<StreamEvent>{{"event", "7", "{\"a\":\n1}"}, {"", "", "x"}});
  }
}

TEST_CASE("a stream whose event has no end is given up", "[unit][ctl]") {
  StreamEvents events;
  const std::string much(std::size_t{1} << 20, 'x');
  for (std::size_t i = 0; i <= stream_event_bytes_max / much.size() && !events.too_long(); ++i) {
    events.add(much);
    REQUIRE_FALSE(events.next());
  }
  REQUIRE(events.too_long());
}

TEST_CASE("words are read as verb, operands and options, wherever the verb stands", "[unit][ctl]") {
  const Command logs = command({"--endpoint", "ps:1", "logs", "a", "--rank=3", "-f"});
  REQUIRE(logs.verb->name == "logs");
  REQUIRE(logs.operands == std::vector<std::string>{"a"});
  REQUIRE(logs.options.text("endpoint") == "ps:1");
  REQUIRE(logs.options.integer("rank", 0).value() == 3);
  REQUIRE(logs.options.flag("follow"));
  REQUIRE(command({"explain", "-9"}).operands == std::vector<std::string>{"-9"});
  REQUIRE(command({"ledger", "a", "b", "c"}).operands.size() == 3);
  REQUIRE(command({"status", "--json", "--", "-f"}).operands == std::vector<std::string>{"-f"});
}

TEST_CASE("what is no command is refused with 2 and the way out", "[unit][ctl]") {
  const std::vector<std::vector<std::string>> wrong{{},
                                                    {"pss"},
                                                    {"status", "a", "b"},
                                                    {"ps", "a"},
                                                    {"status", "--rank", "3"},
                                                    {"logs", "--rank", "x"},
                                                    {"explain"},
                                                    {"logs", "--stream", "both"},
                                                    {"report"},
                                                    {"--endpoint"},
                                                    {"status", "--nothing"},
                                                    {"logs", "-x"}};
  for (const auto& words : wrong) {
    const EarlyEnd end = refusal(words);
    REQUIRE(end.status == CtlExit::usage);
    REQUIRE(end.err.find("torchupctl: error: ") != std::string::npos);
    REQUIRE(end.out.empty());
  }
  REQUIRE(refusal({"statsu"}).err.find("did you mean status?") != std::string::npos);
}

TEST_CASE("help, manual and completion have each verb and option", "[unit][ctl]") {
  const std::string help = refusal({"--help"}).out;
  const std::string manual = ctl_manual_page("1");
  for (const Verb& verb : verb_table()) {
    REQUIRE(help.find("  " + std::string{verb.name} + " ") != std::string::npos);
    REQUIRE(manual.find("\\fB" + std::string{verb.name} + "\\fR") != std::string::npos);
    const EarlyEnd own = refusal({std::string{verb.name}, "--help"});
    REQUIRE(own.status == 0);
    for (const OptionSpec& option : verb.options) {
      REQUIRE(own.out.find("--" + std::string{option.name}) != std::string::npos);
      for (const char* shell : {"bash", "zsh", "fish", "tcsh"})
        REQUIRE(ctl_completion(shell)->find(option.name) != std::string::npos);
    }
  }
  REQUIRE_FALSE(ctl_completion("cmd"));
}

TEST_CASE("a time that was written is read back", "[unit][ctl]") {
  for (const std::int64_t us :
       {std::int64_t{0}, std::int64_t{1'763'697'838'000'001}, std::int64_t{951'782'400'123'456}})
    REQUIRE(read_utc(utc_text(us)) == us);
  REQUIRE(read_utc("2026-11-21T04:03:58Z") == read_utc("2026-11-21T04:03:58.000000Z"));
  for (const char* none :
       {"", "2026-11-21T04:03:58", "2026-02-30T04:03:58Z", "2026-11-21T24:00:00Z", "2026-11-21 04:03:58Z",
        "2026-11-21T04:03:58.Z", "2026-11-21T04:03:58.1xZ", "x026-11-21T04:03:58Z", "Z"})
    REQUIRE_FALSE(read_utc(none));
}

}  // namespace torchup

#include "launcher/core/record/incident.hpp"

#include <catch2/catch.hpp>
#include <csignal>
#include <nlohmann/json.hpp>

#include "rendezvous/core/text/utc_text.hpp"

using namespace torchup;

namespace {

constexpr std::int64_t second = 1'000'000;
constexpr std::int64_t noon = 1'795'234'093 * second;

WorkerFailure failure(int rank, int exit_code, std::int64_t time_us = noon) {
  WorkerFailure made;
  made.rank = Rank{rank};
  made.local_rank = LocalRank{rank % 4};
  made.exit_code = exit_code;
  made.pid = 100 + rank;
  made.host = "node1";
  made.time_us = time_us;
  return made;
}

Incident crash() {
  Incident incident;
  incident.run_id = "run";
  incident.host = "node1";
  incident.attempt = "attempt_1";
  incident.failures = {failure(6, 1, noon + 2 * second), failure(5, -SIGSEGV)};
  incident.evidence.last_lines = {"step 7", "step 8"};
  incident.evidence.core_file = "/cores/core.105";
  incident.stdout_log = "/logs/attempt_1/1/stdout.log";
  incident.others = {{Rank{4}, LocalRank{0}, 104, "sleeping in futex_wait_queue", 20},
                     {Rank{7}, LocalRank{3}, 107, "sleeping in futex_wait_queue", 30}};
  AttemptRecord first;
  first.name = "attempt_0";
  first.start_us = noon - 100 * second;
  first.end_us = noon - 40 * second;
  first.end_reason = "rank 5 was killed by SIGSEGV";
  AttemptRecord last;
  last.name = "attempt_1";
  last.start_us = noon - 39 * second;
  incident.history = {first, last};
  incident.consequence = "giving up";
  return incident;
}

std::string time_text(std::int64_t us) { return utc_text(us).substr(11, 8); }

}  // namespace

TEST_CASE("an incident says in plain words what the last words mean, and what was found of it", "[unit][incident]") {
  Incident incident = crash();
  incident.failures = {failure(5, 1)};
  add_backtraces(
      incident.evidence, incident.failures[0],
      {"Traceback (most recent call last):", "  File \"t.py\"", "OSError: [Errno 28] No space left on device"});
  incident.evidence.findings = {"the file system of /x is full: 0 of 7 MiB are free"};
  CHECK(incident.evidence.last_words == "OSError: [Errno 28] No space left on device");
  CHECK(kind_of_death(1, incident.evidence) == CauseKind::disk_full);
  CHECK_THAT(incident_summary(incident), Catch::EndsWith("; a file system is full"));
  CHECK_THAT(incident_text(incident, time_text), Catch::Contains("\n  the file system of /x is full: 0 of 7 MiB"));
  const auto json = nlohmann::json::parse(incident_json(incident));
  CHECK(json["evidence"]["findings"] == incident.evidence.findings);
  CHECK(json["evidence"]["last_words"] == incident.evidence.last_words);
  CHECK(json["failures"][0]["consequence"] == false);
  SECTION("a worker that was killed had nothing to say") {
    CHECK(kind_of_death(-SIGKILL, incident.evidence) == CauseKind::unknown);
    CHECK(kind_of_death(-SIGABRT, incident.evidence) == CauseKind::disk_full);
    CHECK(kind_of_death(-SIGBUS, {}) == CauseKind::shared_memory);
  }
}

TEST_CASE("an incident without a cause says so", "[unit][incident]") {
  Incident incident = crash();
  incident.failures = {failure(5, 1), failure(6, 1)};
  incident.failures[0].consequence = true;
  CHECK_THAT(incident_summary(incident), Catch::StartsWith("rank 6 "));
  incident.failures[1].consequence = true;
  incident.evidence.last_words = "Connection closed by peer";
  CHECK_THAT(incident_summary(incident),
             Catch::StartsWith("rank 5 ") && Catch::EndsWith("; it lost another rank, or the store; no rank failed by "
                                                             "itself: a network, or a node that is gone"));
  incident.others[0].state = ended_well;
  CHECK_THAT(incident_summary(incident), Catch::EndsWith("; no rank failed by itself, but rank 4 had ended with 0"));
  incident.others[0].state = "running";
  incident.history.back().placement = Placement{};
  incident.history.back().placement->group_world_size = 2;
  CHECK_THAT(incident_summary(incident), Catch::EndsWith("; no rank of this node failed by itself"));
}

TEST_CASE("an exit code is explained", "[unit][incident]") {
  const DeathEvidence nothing;
  CHECK(explain_exit(7, nothing) == "exit code 7");
  CHECK(explain_exit(127, nothing) == "exit code 127 (a shell did not find the program)");
  CHECK(explain_exit(137, nothing) == "exit code 137 (128 + 9: a child of it was perhaps killed by SIGKILL)");
  CHECK(explain_exit(255, nothing) == "exit code 255");
  CHECK(explain_exit(-SIGSEGV, nothing) == "killed by SIGSEGV (invalid memory access)");
  CHECK(explain_exit(-40, nothing) == "killed by signal 40");
}

TEST_CASE("who was aborted because it hung did not give up by itself", "[unit][incident]") {
  Incident incident = crash();
  incident.failures = {failure(5, -SIGABRT)};
  incident.failures[0].message = "No progress for 64 s: rank 5 on node1 is stuck";
  incident.evidence.ended_for = "No progress for 64 s: rank 5 on node1 is stuck";
  REQUIRE(incident_summary(incident) ==
          "rank 5 (local rank 1, pid 105) on node1: it hung, and was aborted: No progress for 64 s: rank 5 on node1 is "
          "stuck");
  REQUIRE(nlohmann::json::parse(incident_json(incident))["evidence"]["ended_for"] == incident.evidence.ended_for);
  incident.evidence.ended_for.clear();
  REQUIRE(incident_summary(incident).find("it gave up by itself") != std::string::npos);
}

TEST_CASE("an out-of-memory kill is told from other kills", "[unit][incident]") {
  DeathEvidence evidence;
  CHECK(explain_exit(-SIGKILL, evidence) ==
        "killed by SIGKILL: possibly out of memory (its counters cannot be read here)");
  evidence.oom_kills = 0;
  CHECK(explain_exit(-SIGKILL, evidence) ==
        "killed by SIGKILL: sent by somebody; the out-of-memory killer has not struck in this memory cgroup");
  evidence.machine_oom_kills = 1;
  CHECK(explain_exit(-SIGKILL, evidence) ==
        "killed by SIGKILL: probably the out-of-memory killer, which struck on this machine in that time");
  evidence.oom_kills = 2;
  evidence.memory_limit_bytes = 64 << 20;
  evidence.memory_peak_bytes = 64 << 20;
  CHECK(explain_exit(-SIGKILL, evidence) ==
        "killed by SIGKILL: the out-of-memory killer, memory limit 64 MiB, peak 64 MiB");
  DeathEvidence log;
  log.oom_kills = 0;
  log.kernel_lines = {"Memory cgroup out of memory: Killed process 105 (python3) total-vm:1kB"};
  CHECK(explain_exit(-SIGKILL, log) == "killed by SIGKILL: the out-of-memory killer");
}

TEST_CASE("the incident's text begins with the root cause", "[unit][incident]") {
  CHECK(incident_text(crash(), time_text) ==
        R"(What went wrong: rank 5 (local rank 1, pid 105) on node1: killed by SIGSEGV (invalid memory access)
  at 04:08:13 in attempt_1; giving up
  its last lines:
    | step 7
    | step 8
  core: /cores/core.105
  log: /logs/attempt_1/1/stdout.log
  other failures: 1
  the others when it happened:
    | rank 4,7: sleeping in futex_wait_queue
  attempts:
    | attempt_0 from 04:06:33, 60.0 s: rank 5 was killed by SIGSEGV
    | attempt_1 from 04:07:34
)");
}

TEST_CASE("the innermost frames of a crash are shown, and all are recorded", "[unit][incident]") {
  Incident incident = crash();
  incident.evidence.python_stack = {"Segmentation fault"};
  for (int line = 0; line < 20; ++line) incident.evidence.python_stack.push_back("a.py:" + std::to_string(line) + " f");
  const std::string text = incident_text(incident, time_text);
  CHECK(text.find("  Python stack, innermost first:\n    | Segmentation fault\n    | a.py:0 f\n") != std::string::npos);
  CHECK(text.find("    | a.py:13 f\n    | ... 6 more\n") != std::string::npos);
  CHECK(nlohmann::json::parse(incident_json(incident)).at("evidence").at("python_stack").size() == 21);
}

TEST_CASE("the incident's text fits on a screen whatever happened", "[unit][incident]") {
  Incident incident = crash();
  incident.failures[1].message = "x";
  for (int line = 0; line < 1000; ++line) {
    incident.evidence.native_backtrace.push_back("#" + std::to_string(line) + " 0x1 in f");
    incident.evidence.python_stack.push_back("a.py:1 f");
    incident.evidence.traceback += std::string(10'000, 'y') + "\n";
    incident.evidence.kernel_lines.push_back("kernel");
    incident.others.push_back({Rank{line}, LocalRank{0}, 1, "state " + std::to_string(line), 0});
    incident.history.push_back(incident.history.front());
  }
  const std::string text = incident_text(incident, time_text);
  CHECK(std::count(text.begin(), text.end(), '\n') <= 70);
  CHECK(text.find("... 985 more before\n    | #985") != std::string::npos);
  CHECK(text.size() < 10'000);
}

TEST_CASE("the incident as JSON has all of it", "[unit][incident]") {
  const auto record = nlohmann::json::parse(incident_json(crash()));
  CHECK(record.at("schema") == 1);
  CHECK(record.at("root_cause") == 1);
  CHECK(record.at("failures")[1].at("signal") == "SIGSEGV");
  CHECK(record.at("failures")[0].at("signal").is_null());
  CHECK(record.at("evidence").at("oom_kills").is_null());
  CHECK(record.at("evidence").at("last_lines").size() == 2);
  CHECK(record.at("others")[1].at("silent_ms") == 30);
  CHECK(record.at("attempts")[1].at("end").is_null());
  CHECK(record.at("attempts")[0].at("end_reason") == "rank 5 was killed by SIGSEGV");
}

TEST_CASE("the event of an incident has its last lines, as many as there is room for", "[unit][incident]") {
  const auto told = [](std::vector<std::string> lines) {
    Incident incident = crash();
    incident.evidence.last_lines = std::move(lines);
    const event::IncidentRecorded event = incident_event(incident, "/i.json", true);
    CHECK(event.path == "/i.json");
    CHECK(event.summary == incident_summary(incident));
    CHECK(event.restarted);
    CHECK(nlohmann::json(event.last_lines).dump().size() <= event_lines_bytes_max + 1);
    return event.last_lines;
  };
  using Lines = std::vector<std::string>;
  CHECK(told({}).empty());
  CHECK(told({"step 7", "step 8"}) == Lines{"step 7", "step 8"});
  // Of an escape JSON makes six bytes, and there are two quotes and a comma.
  const std::string half((event_lines_bytes_max / 2 - 3 - 4) / 6, '\x1b'), rest(event_lines_bytes_max / 2 - 3, 'x');
  CHECK(told({"before", half, rest}) == Lines{half, rest});
  constexpr std::size_t surely = (event_lines_bytes_max - 3) / 6;
  CHECK(told({"step 7", std::string(event_lines_bytes_max, 'x') + "end"}) ==
        Lines{std::string(surely - 3, 'x') + "end"});
  CHECK(told({std::string(event_lines_bytes_max, '\x1b')}) == Lines{std::string(surely, '\x1b')});
  std::string wide;
  for (std::size_t i = 0; i < event_lines_bytes_max; ++i) wide += "\u4e16";
  const Lines cut = told({wide + "y"});  // no character of three bytes is
  REQUIRE(cut.size() == 1);
  CHECK(cut[0].size() % 3 == 1);
  CHECK(cut[0].size() > surely - 3);
}

TEST_CASE("Python's last traceback is found in the output", "[unit][incident]") {
  CHECK(find_traceback({"a", "b"}).empty());
  CHECK(find_traceback({"Traceback (most recent call last):", "  File 1", "KeyError: 1", "",
                        "During handling of the above exception, another exception occurred:", "",
                        "[rank0]: Traceback (most recent call last):", "[rank0]:   File 2", "[rank0]:     raise",
                        "[rank0]: ValueError: bad", "[rank0]: more"}) ==
        "Traceback (most recent call last):\n  File 2\n    raise\nValueError: bad\n");
  CHECK(find_traceback({"Traceback (most recent call last):", "  cut off"}) ==
        "Traceback (most recent call last):\n  cut off\n");
  // One that was handled, after which the worker has gone on, says nothing of its end.
  std::vector<std::string> gone_on{"Traceback (most recent call last):", "  File 1", "ConnectionError: reset"};
  gone_on.insert(gone_on.end(), 60, "step");
  CHECK(find_traceback(gone_on).empty());
}

TEST_CASE("native backtraces are found in the output", "[unit][incident]") {
  using Lines = std::vector<std::string>;
  CHECK(find_native_backtrace({"a", "# comment", "#1 priority"}) == Lines{"# comment", "#1 priority"});
  CHECK(find_native_backtrace({"x", "terminate called", "frame #0: a", "frame #1: b", "end"}) ==
        Lines{"terminate called", "frame #0: a", "frame #1: b"});
  CHECK(find_native_backtrace({"x", "Fatal Python error: Segmentation fault", "", "Current thread", "  File"}) ==
        Lines{"Fatal Python error: Segmentation fault", "", "Current thread", "  File"});
  CHECK(find_native_backtrace({"#hash", "plain"}).empty());
}

TEST_CASE("backtraces come from the error file before the output", "[unit][incident]") {
  const std::vector<std::string> output{"Traceback (most recent call last):", "KeyError: from the output"};
  DeathEvidence evidence;
  WorkerFailure python = failure(5, 1);
  python.error_file = "/e";
  python.message = "Traceback (most recent call last):\n    File\n  ValueError: bad\n  ";
  add_backtraces(evidence, python, output);
  CHECK(evidence.traceback == "Traceback (most recent call last):\n  File\nValueError: bad\n");

  WorkerFailure native = failure(5, -SIGSEGV);
  native.error_file = "/e";
  native.message = "SIGSEGV at 0x0\n  #0 f\n  #1 g";
  evidence = {};
  add_backtraces(evidence, native, output);
  CHECK(evidence.traceback.empty());
  CHECK(evidence.native_backtrace == std::vector<std::string>{"SIGSEGV at 0x0", "#0 f", "#1 g"});
  Incident incident;
  incident.failures = {native};
  incident.evidence = evidence;
  CHECK(incident_summary(incident).ends_with(": SIGSEGV at 0x0"));

  incident.evidence = {};
  incident.evidence.traceback = "+-+---- 1 ----\n  | ValueError: 1\n  +-------------\n";
  CHECK(incident_summary(incident).ends_with(": ValueError: 1"));

  evidence = {};
  add_backtraces(evidence, failure(5, 1), output);
  CHECK(evidence.traceback == "Traceback (most recent call last):\nKeyError: from the output\n");
}

#include "launcher/core/record/launch_event.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "launcher/core/record/run_record.hpp"

using namespace torchup;

namespace {

LaunchEvent at(std::int64_t us, EventBody body) { return {{1'795'234'093'000'000 + us, us}, std::move(body)}; }

std::vector<LaunchEvent> failed_then_succeeded() {
  const WorkerId first{Rank{4}, LocalRank{0}, 100};
  const WorkerId second{Rank{5}, LocalRank{1}, 101};
  const WorkerId again{Rank{4}, LocalRank{0}, 200};
  const WorkerId also{Rank{5}, LocalRank{1}, 201};
  Placement placement;
  placement.round = Round{3};
  placement.first_rank = Rank{4};
  placement.world_size = 6;
  event::JobStarted job;
  job.run_id = "run";
  job.name = "train.py";
  job.local_world_size = 2;
  return {at(0, job),
          at(1'000, event::RoundCompleted{placement}),
          at(1'100, event::AttemptStarted{"attempt_0", "/logs/attempt_0", 0}),
          at(1'500, event::WorkerStarted{first, "/logs/attempt_0/0/stdout.log", ""}),
          at(2'000, event::WorkerStarted{second, "", ""}),
          at(5'000, event::WorkerExited{second, 7, WorkerEnd::failed, "boom", ""}),
          at(5'000, event::Stopping{"rank 5 failed"}),
          at(5'500, event::WorkerExited{first, -15, WorkerEnd::terminated, "", ""}),
          at(5'600, event::AttemptEnded{"rank 5 failed"}),
          at(6'000, event::RoundCompleted{placement}),
          at(6'000, event::AttemptStarted{"attempt_1", "/logs/attempt_1", 1}),
          at(6'200, event::WorkerStarted{again, "", ""}),
          at(6'200, event::WorkerStarted{also, "", ""}),
          at(7'000, event::LogWriteFailed{"/logs/a", "No space left on device", 10}),
          at(7'100, event::LogWriteFailed{"/logs/a", "No space left on device", 30}),
          at(7'200, event::LogWriteFailed{"/logs/b", "No space left on device", 5}),
          at(8'000, event::WorkerExited{again, 0, WorkerEnd::succeeded, "", ""}),
          at(8'000, event::WorkerExited{also, 0, WorkerEnd::succeeded, "", ""}),
          at(8'100, event::AttemptEnded{"all workers succeeded"}),
          at(8'200, event::JobEnded{Verdict{0, "all workers succeeded", {}}})};
}

}  // namespace

TEST_CASE("an event is one line of JSON", "[unit][events]") {
  CHECK(to_json_line(at(1, event::WorkerExited{{Rank{5}, LocalRank{1}, 101}, -9, WorkerEnd::failed, "a\nb \xff", "/e"}),
                     "node1") ==
        R"({"schema":1,"time":"2026-11-21T04:08:13.000001Z","monotonic_us":1,"host":"node1","event":"worker_exited",)"
        R"("rank":5,"local_rank":1,"pid":101,"exit_code":-9,"end":"failed","message":"a\nb )"
        "\uFFFD"
        R"(","error_file":"/e"})"
        "\n");
  for (const LaunchEvent& event : failed_then_succeeded()) {
    const std::string line = to_json_line(event, "h");
    CHECK(line.find('\n') == line.size() - 1);
    CHECK(nlohmann::json::parse(line).at("event").is_string());
  }
}

TEST_CASE("a node is ready while all its workers of a round run", "[unit][events]") {
  RunRecord record;
  std::string said{record.readiness()};
  for (const LaunchEvent& event : failed_then_succeeded()) {
    record.apply(event);
    if (!said.ends_with(record.readiness())) said += " " + std::string{record.readiness()};
  }
  CHECK(said == "beginning waiting starting ok stopping waiting starting ok ended waiting ended");
}

TEST_CASE("the record is a fold over the events", "[unit][events]") {
  RunRecord record;
  for (const LaunchEvent& event : failed_then_succeeded()) record.apply(event);
  REQUIRE(record.attempts().size() == 2);
  const AttemptRecord& failed = record.attempts()[0];
  CHECK(failed.end_reason == "rank 5 failed");
  REQUIRE(failed.workers.size() == 2);
  CHECK(failed.workers[0].exit_code == -15);
  CHECK(failed.workers[0].end == WorkerEnd::terminated);
  CHECK(failed.workers[1].exit_code == 7);
  CHECK(failed.workers[1].message == "boom");
  CHECK(record.attempts()[1].workers[0].worker.pid == 200);
  CHECK(record.phases().waiting_us == 1'000 + 400 + 100);
  CHECK(record.phases().starting_us == 1'000 + 200);
  CHECK(record.phases().running_us == 3'000 + 1'900);
  CHECK(record.phases().stopping_us == 600);
  CHECK(record.log_bytes_lost() == 35);
  CHECK(record.console_bytes_lost() == 0);
}

TEST_CASE("the result file says how it went", "[unit][events]") {
  RunRecord record;
  for (const LaunchEvent& event : failed_then_succeeded()) record.apply(event);
  const auto result = nlohmann::json::parse(result_json(record, "node1"));
  CHECK(result.at("schema") == 1);
  CHECK(result.at("exit_code") == 0);
  CHECK(result.at("phases_s").at("running") == Approx(0.0049));
  CHECK(result.at("attempts").size() == 2);
  const auto& worker = result.at("attempts")[0].at("workers")[1];
  CHECK(worker.at("rank") == 5);
  CHECK(worker.at("exit_code") == 7);
  CHECK(worker.at("seconds") == Approx(0.003));
  CHECK(result.at("attempts")[0].at("workers")[0].at("stdout_log") == "/logs/attempt_0/0/stdout.log");
  CHECK(result.at("log_bytes_lost") == 35);
}

TEST_CASE("the record of an unfinished job has gaps, not guesses", "[unit][events]") {
  auto events = failed_then_succeeded();
  events.resize(5);
  RunRecord record;
  for (const LaunchEvent& event : events) record.apply(event);
  const auto result = nlohmann::json::parse(result_json(record, "node1"));
  CHECK(result.at("exit_code").is_null());
  CHECK(result.at("attempts")[0].at("end").is_null());
  CHECK(result.at("attempts")[0].at("workers")[0].at("exit_code").is_null());
}

TEST_CASE("a long life is remembered by its last attempts", "[unit][events]") {
  RunRecord record;
  const auto attempts = GENERATE(static_cast<int>(attempts_kept_max), static_cast<int>(attempts_kept_max) + 1);
  for (int i = 0; i < attempts; ++i) {
    record.apply(at(i, event::AttemptStarted{"attempt_" + std::to_string(i), "", i}));
    record.apply(at(i, event::AttemptEnded{"rank 0 failed"}));
    record.apply(at(i, event::AttemptEnded{"an attempt that did not begin"}));
  }
  const bool forgot = attempts > static_cast<int>(attempts_kept_max);
  REQUIRE(record.attempts().size() == attempts_kept_max);
  REQUIRE(record.attempts_forgotten() == (forgot ? 1 : 0));
  REQUIRE(record.attempts().front().name == (forgot ? "attempt_1" : "attempt_0"));
  REQUIRE(record.attempts().back().end_reason == "rank 0 failed");
  REQUIRE(record.history().size() == history_max);
  REQUIRE(record.history().back().name == record.attempts().back().name);
}

TEST_CASE("losses in more places than are remembered keep their sum", "[unit][events]") {
  RunRecord record;
  for (std::size_t i = 0; i < loss_places_max + 3; ++i) {
    record.apply(at(0, event::LogWriteFailed{"/logs/" + std::to_string(i), "full", 2}));
  }
  REQUIRE(record.log_bytes_lost() == 2 * (loss_places_max + 3));
}

TEST_CASE("of a long message the record keeps the beginning", "[unit][events]") {
  const auto kept = [](std::size_t bytes) {
    RunRecord record;
    const WorkerId worker{Rank{0}, LocalRank{0}, 7};
    record.apply(at(0, event::AttemptStarted{"attempt_0", "", 0}));
    record.apply(at(0, event::WorkerStarted{worker, "", ""}));
    record.apply(at(1, event::WorkerExited{worker, 1, WorkerEnd::failed, std::string(bytes, 'm'), "e.json"}));
    return record.attempts().front().workers.front().message;
  };
  CHECK(kept(message_bytes_kept_max) == std::string(message_bytes_kept_max, 'm'));
  CHECK(kept(message_bytes_kept_max + 1) ==
        std::string(message_bytes_kept_max, 'm') + "\n... [1 bytes more, in the error file]");
}

TEST_CASE("warnings of a long life are the last ones", "[unit][events]") {
  RunRecord record;
  for (std::size_t i = 0; i <= lines_kept_max; ++i) record.apply(at(0, event::Warning{std::to_string(i)}));
  REQUIRE(record.warnings().size() == lines_kept_max);
  REQUIRE(record.warnings().front() == "1");
}

TEST_CASE("a probe is told from the record how many workers live", "[unit][events]") {
  RunRecord record;
  REQUIRE(health_json(record) == "{\"status\": \"ok\", \"workers_alive\": 0, \"restart_count\": 0}\n");
  std::size_t applied = 0;
  for (const LaunchEvent& event : failed_then_succeeded()) {
    record.apply(event);
    if (++applied == 5) REQUIRE(record.workers_alive() == 2);
    if (applied == 6) REQUIRE(record.workers_alive() == 1);
  }
  REQUIRE(record.workers_alive() == 0);
}

TEST_CASE("what people read of events", "[unit][events]") {
  const WorkerId worker{Rank{5}, LocalRank{1}, 101};
  const auto text = [](const EventBody& event) {
    const auto line = to_text(event);
    return line ? line->text : "";
  };
  CHECK(text(event::WorkerExited{worker, 7, WorkerEnd::failed, "", "", {}, "/bin/prog"}) ==
        "failed (exitcode: 7) local_rank: 1 (pid: 101) of binary: /bin/prog");
  CHECK(text(event::SignalReceived{15, SignalUse::ends, "shutting down workers"}) ==
        "Received 15 death signal, shutting down workers");
  CHECK(text(event::SignalReceived{10, SignalUse::forwards, "passed on"}).empty());
  CHECK(text(event::ClosingSignalSent{worker, 40}) == "Sending process 101 closing signal signal 40");
  CHECK(text(event::WorkerKilled{worker, 15, "the grace is over"}) ==
        "Unable to shutdown process 101 via 15, forcefully exiting via 9");
  CHECK(text(event::SpawnFailed{worker, "no"}) == "rank 5 (local rank 1) could not be started: no");
  CHECK(text(event::IncidentRecorded{"/i.json", "it", true}) == "restarted after it; details: /i.json");
  CHECK(text(event::IncidentRecorded{"/i.json", "it", false}).empty());
  CHECK(to_text(event::Fault{"x"})->level == LogLevel::error);
}

TEST_CASE("what goes as planned is a line for those who debug", "[unit][events]") {
  const WorkerId worker{Rank{5}, LocalRank{1}, 101};
  Placement placement{Round{2}, GroupRank{1}, 3, Rank{4}, 12};
  placement.master_addr = "node0";
  placement.master_port = Port{4711};
  const auto debug = [](std::string text) { return EventText{LogLevel::debug, std::move(text)}; };
  CHECK(to_text(event::RoundCompleted{placement}) ==
        debug("round 2 is complete: we are node 1 of 3, our ranks begin with 4 of 12; master node0:4711"));
  CHECK(to_text(event::AttemptStarted{"attempt_1", "/logs", 1}) == debug("attempt_1 begins, its files: /logs"));
  CHECK(to_text(event::WorkerStarted{worker, "", ""}) == debug("rank 5 runs as process 101"));
  CHECK(to_text(event::WorkerExited{worker, -15, WorkerEnd::terminated, "", ""}) ==
        debug("rank 5 has ended: terminated, exit code -15"));
  CHECK(to_text(event::Stopping{"rank 0 failed"}) == debug("the workers are stopped: rank 0 failed"));
}

TEST_CASE("a hang is told in full to programs, and as a page to people", "[unit][events]") {
  event::HangFound found;
  found.number = 2;
  found.kind = HangKind::mismatch;
  found.summary = "No progress for 64 s";
  found.culprits = {Rank{3}};
  found.silent_s = 64.9;
  found.collective = AwaitedCollective{.group = "0", .number = 7, .operation = "all_reduce"};
  found.page = {"  rank 3: sleeping", "    train.py:41 main"};
  auto line = nlohmann::json::parse(to_json_line(at(1, found), "h"));
  CHECK(line.at("event") == "hang_found");
  CHECK(line.at("number") == 2);
  CHECK(line.at("kind") == "mismatch");
  CHECK(line.at("culprits") == std::vector{3});
  CHECK(line.at("silent_s") == 64.9);
  CHECK(line.at("collective").at("group") == "0");
  CHECK(line.at("action") == "none");
  CHECK_FALSE(line.contains("page"));
  CHECK(to_text(found) == EventText{LogLevel::warning, "No progress for 64 s"});
  CHECK(page_of(found) == found.page);
  found.action = HangAction::restart;
  CHECK(to_text(found)->level == LogLevel::error);
  found.collective.reset();
  line = nlohmann::json::parse(to_json_line(at(1, found), "h"));
  CHECK(line.at("collective").is_null());
  CHECK(line.at("action") == "restart");

  CHECK(to_text(event::HangOver{2, 182.9}) == EventText{LogLevel::warning, "it goes on after 182 s"});
  line = nlohmann::json::parse(to_json_line(at(1, event::HangOver{2, 182.9}), "h"));
  CHECK((line.at("number") == 2 && line.at("after_s") == 182.9));
  const event::WorkerHung hung{{Rank{5}, LocalRank{1}, 101}, "it does not move"};
  CHECK_FALSE(to_text(hung));  // the page has told
  line = nlohmann::json::parse(to_json_line(at(1, hung), "h"));
  CHECK((line.at("event") == "worker_hung" && line.at("rank") == 5 && line.at("reason") == "it does not move"));
}

TEST_CASE("what the ranks do is shown even to who wants to hear of errors alone", "[unit][events]") {
  const event::RanksShown shown{2, "What the ranks do: rank 3 is busy", {"  rank 3: running"}};
  CHECK(to_text(shown) == EventText{LogLevel::error, shown.summary});
  CHECK(page_of(shown) == shown.page);
  event::WorkerSeen seen{{Rank{5}, LocalRank{1}, 101}, "sleeping", 7};
  CHECK(to_text(seen)->text == "rank 5 (pid 101): sleeping, step 7");
  seen.on_page = true;
  CHECK_FALSE(to_text(seen));
  CHECK(page_of(seen).empty());
}

TEST_CASE("a rehearsal's faults and its end are lines, and a table", "[unit][events]") {
  using namespace std::chrono_literals;
  const event::FaultInjected injected{"kill rank=1 at 5 s"};
  CHECK(to_text(injected) == EventText{LogLevel::warning, "rehearsal: kill rank=1 at 5 s"});
  CHECK(nlohmann::json::parse(to_json_line(at(1, injected), "h")).at("text") == "kill rank=1 at 5 s");
  RehearsalResult result;
  result.text = "rehearsal failed: expected restarts=0, was 1";
  result.faults = {{"kill rank=1", 5s, false, 250ms, {}, 3}, {"kill rank=9", 6s, true, {}, {}, {}}};
  const event::RehearsalEnded over{result};
  CHECK(to_text(over) == EventText{LogLevel::error, result.text});
  CHECK(page_of(over) ==
        std::vector<std::string>{"fault                   at   noticed after  going on after  steps lost",
                                 "kill rank=1             5 s  250 ms         never           3",
                                 "kill rank=9: not there  6 s  -              -               -"});
  const auto line = nlohmann::json::parse(to_json_line(at(1, over), "h"));
  CHECK(line.at("event") == "rehearsal_ended");
  CHECK((line.at("passed") == false && line.at("text") == result.text));
  const nlohmann::json faults = {{{"text", "kill rank=1"},
                                  {"at_s", 5.0},
                                  {"missing", false},
                                  {"noticed_after_s", 0.25},
                                  {"going_on_after_s", nullptr},
                                  {"steps_lost", 3}},
                                 {{"text", "kill rank=9"},
                                  {"at_s", 6.0},
                                  {"missing", true},
                                  {"noticed_after_s", nullptr},
                                  {"going_on_after_s", nullptr},
                                  {"steps_lost", nullptr}}};
  CHECK(line.at("faults") == faults);
  result.passed = true;
  CHECK(to_text(event::RehearsalEnded{result})->level == LogLevel::info);
  CHECK(page_of(event::RehearsalEnded{}).empty());
}

TEST_CASE("a straggler is one line where it is told, and an event everywhere", "[unit][events]") {
  event::StragglerFound late;
  late.found.rank = Rank{3};
  late.found.host = "nodeb";
  late.found.share_percent = 22;
  late.found.operation = "all_reduce";
  CHECK(to_text(late)->level == LogLevel::debug);
  late.told_here = true;
  CHECK(to_text(late) == EventText{LogLevel::warning, to_text(late.found)});
  auto line = nlohmann::json::parse(to_json_line(at(1, late), "h"));
  CHECK(line.at("event") == "straggler_found");
  CHECK((line.at("rank") == 3 && line.at("host") == "nodeb" && line.at("share_percent") == 22));
  CHECK((line.contains("late_ms") && line.contains("step_ms") && line.contains("last_percent")));
  line = nlohmann::json::parse(to_json_line(at(1, event::StragglerOver{{std::nullopt, "nodeb"}, true}), "h"));
  CHECK((line.at("event") == "straggler_over" && line.at("rank").is_null() && line.at("host") == "nodeb"));
}

TEST_CASE("a worker's words stand beside our text, and are shown behind it", "[unit][events]") {
  for (const EventBody& event : {EventBody{event::Warning{"a timer ran out", "step 7"}},
                                 EventBody{event::Notice{"a timer ran out", LogLevel::warning, "step 7"}}}) {
    const auto line = nlohmann::json::parse(to_json_line(at(0, event), "h"));
    CHECK(line.at("text") == "a timer ran out");
    CHECK(line.at("said") == "step 7");
    CHECK(to_text(event)->text == "a timer ran out: step 7");
  }
  CHECK_FALSE(nlohmann::json::parse(to_json_line(at(0, event::Warning{"alone"}), "h")).contains("said"));
  CHECK(to_text(event::Warning{"alone"})->text == "alone");
}

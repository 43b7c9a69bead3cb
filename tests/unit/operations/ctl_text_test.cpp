#include <catch2/catch.hpp>
#include <set>

#include "launcher/ctl/explanation.hpp"
#include "launcher/ctl/gpu_lines.hpp"
#include "launcher/ctl/job_text.hpp"

namespace torchup {
namespace {

json a_job() {
  return json::parse(R"({
    "schema": 1, "run_id": "mnist", "name": "train.py", "phase": "running",
    "started": "2026-11-21T04:00:00.000000Z", "now": "2026-11-21T05:12:03.500000Z", "ended": null,
    "round": 3, "world_size": 6, "min_nodes": 1, "max_nodes": 4, "restart_count": 1, "max_restarts": 3,
    "membership_changes": 2, "node_states": {"seated": 3}, "step": {"min": 41190, "max": 41200, "per_second": 3.14159,
    "age_s": 0.3}, "ledger": {"rank_seconds": 200, "useful": 150}, "last": "node1 came back",
    "incidents": [{"seq": 3, "summary": "old"}, {"seq": 7, "summary": "rank 1: killed", "path": "/tmp/i.json"}],
    "nodes": {"n1": {"host": "node1", "state": "seated", "group_rank": 1, "first_rank": 2, "ranks": "rh",
                     "step": 41190},
              "n0": {"host": "node0", "state": "seated", "group_rank": 0, "first_rank": 0, "ranks": "rr",
                     "step": 41200},
              "n2": {"host": "node2", "state": "unfit", "reason": "no GPU", "ranks": "??"}}})");
}

}  // namespace

TEST_CASE("a row of ps has a launcher, and dashes for what nobody says", "[unit][ctl]") {
  json row = a_job();
  row["pid"] = 4242;
  row["step"] = 41200;
  row["steps_per_second"] = 3.14159;
  const json silent{{"pid", 7}, {"answering", false}};
  const std::vector<json> rows{row, silent};
  REQUIRE(ps_text(rows) ==
          "RUN ID   PID  PHASE          NODES  RANKS   STEP  STEPS/S  RESTARTS       UP  PROGRAM\n"
          "mnist   4242  running        3/1:4      6  41200     3.14       1/3  1:12:03  train.py\n"
          "-          7  not answering      -      -      -        -         -        -  -\n");
}

TEST_CASE("what strangers put into a row stays in its cell", "[unit][ctl]") {
  const std::vector<json> rows{json{{"run_id", "a\x1b[31m\nb"},
                                    {"phase", 3},
                                    {"pid", "x"},
                                    {"started", "yesterday"},
                                    {"name", std::string(100'000, 'x')},
                                    {"min_nodes", -1},
                                    {"node_states", "no"}}};
  const std::string text = ps_text(rows);
  REQUIRE(text.find('\x1b') == std::string::npos);
  REQUIRE(text.find("a\\x1b[31m\\nb") != std::string::npos);
  REQUIRE(std::count(text.begin(), text.end(), '\n') == 2);
  REQUIRE(text.size() < 2000);
}

TEST_CASE("a job's status tells how it goes, its nodes and its last incident", "[unit][ctl]") {
  REQUIRE(status_lines(a_job(), {}) == std::vector<std::string>{
                                           "mnist  running  train.py  1:12:03",
                                           "6 ranks, nodes 3/1:4, round 3, restarts 1/3, membership changes 2",
                                           "steps 41190 to 41200, 3.14 steps/s, the last one 0:00 ago",
                                           "75.0 % of the time useful",
                                           "last: node1 came back",
                                           "",
                                           "NODE  HOST   STATE           GROUP RANK  FIRST RANK   STEP  RANKS",
                                           "n0    node0  seated                   0           0  41200  rr",
                                           "n1    node1  seated                   1           2  41190  rh",
                                           "n2    node2  unfit (no GPU)           -           -      -  ??",
                                           "",
                                           "last incident of 2: rank 1: killed",
                                           "  /tmp/i.json",
                                       });
}

TEST_CASE("the worst nodes are shown where there is no room for all", "[unit][ctl]") {
  const auto lines = status_lines(a_job(), {.worst_first = true, .nodes_max = 1});
  const auto has = [&](std::string_view start) {
    return std::ranges::any_of(lines, [&](const std::string& line) { return line.starts_with(start); });
  };
  REQUIRE(has("n1 "));  // a rank of it hangs
  REQUIRE_FALSE(has("n0 "));
  REQUIRE(has("and 2 more nodes"));
}

TEST_CASE("an answer without any member is shown without a fault", "[unit][ctl]") {
  for (const char* text :
       {"{}", "[]", "null", R"({"nodes": [1], "incidents": {}, "step": 3, "verdict": [], "ledger": 1})",
        R"({"nodes": {"a": null, "b": 3, "c": {"ranks": 3}}, "incidents": [3]})"})
    REQUIRE_FALSE(status_lines(json::parse(text), {.colour = Colour::terminal}).empty());
}

TEST_CASE("letters of ranks have the colours of their states, on terminals alone", "[unit][ctl]") {
  REQUIRE(rank_letters("rrh", Colour::none) == "rrh");
  REQUIRE(rank_letters("rrh", Colour::terminal) == "\x1b[32mrr\x1b[0m\x1b[1;31mh\x1b[0m");
  REQUIRE(rank_letters("\x1b[2J", Colour::none) == "\\x1b[2J");
}

TEST_CASE("an event is one line with its fields", "[unit][ctl]") {
  REQUIRE(event_line(json::parse(R"({"schema": 1, "time": "2026-11-21T04:03:58.123456Z", "monotonic_us": 5,
            "host": "node1", "event": "worker_exited", "seq": 4, "rank": 3,
            "message": "bad \u001b[31m thing\n", "ok": true})")) ==
          R"(2026-11-21T04:03:58.123 node1 worker_exited message="bad \x1b[31m thing\n" ok=true rank=3)");
  REQUIRE(event_line(json::parse("[]")) == " - -");
}

TEST_CASE("an event in a file of several jobs says of which it is", "[unit][ctl]") {
  REQUIRE(event_line(json::parse(R"({"run_id": "a b", "seq": 4, "schema": 1, "time": "2026-11-21T04:03:58.123456Z",
            "host": "node1", "event": "node_left"})")) == R"(2026-11-21T04:03:58.123 node1 node_left run_id="a b")");
}

TEST_CASE("JSON that is printed steers no terminal, and means the same", "[unit][ctl]") {
  const json told{{"a", "\x7f \xc2\x9b\xc2\x80\xc2\x9f \xc3\xa9 \xc2\xa0 \x1b[31m"}};
  const std::string line = json_line(told);
  REQUIRE(line == "{\"a\":\"\\u007f \\u009b\\u0080\\u009f \xc3\xa9 \xc2\xa0 \\u001b[31m\"}\n");
  REQUIRE(json::parse(line) == told);
  REQUIRE(harmless_json("{\"a\":1,\r\"b\":2}\r") == "{\"a\":1, \"b\":2} ");
  REQUIRE(harmless_json("\xc2") == "\xc2");
}

TEST_CASE("lines are cut by what is seen of them", "[unit][ctl]") {
  REQUIRE(cut_line("abcdef", 3) == "abc");
  REQUIRE(cut_line("\x1b[32mab\x1b[0mcd", 3) == "\x1b[32mab\x1b[0mc\x1b[0m");
  REQUIRE(cut_line("äöü", 2) == "äö");
}

TEST_CASE("times and rates as people read them", "[unit][ctl]") {
  REQUIRE(lasting_text(35.9) == "0:35");
  REQUIRE(lasting_text(4323) == "1:12:03");
  REQUIRE(lasting_text(3 * 86400 + 4 * 3600 + 5 * 60 + 6) == "3d 04:05:06");
  REQUIRE(lasting_text(-1) == "-");
  REQUIRE(rate_text(0.0421) == "0.0421");
  REQUIRE(rate_text(31.41) == "31.4");
  REQUIRE(rate_text(1234.5) == "1234");
}

TEST_CASE("a code is explained as the launcher's and as a worker's", "[unit][ctl]") {
  const auto text = [](std::string_view word) { return explanation_text(*explain(word)); };
  REQUIRE(text("66").find("too few nodes") != std::string::npos);
  REQUIRE(text("137").find("SIGKILL") != std::string::npos);
  REQUIRE(text("137").find("memory") != std::string::npos);
  for (const char* same : {"-9", "KILL", "SIGKILL"}) REQUIRE(text(same) == text("SIGKILL"));
  REQUIRE(text("SIGBUS").find("/dev/shm") != std::string::npos);
  REQUIRE(text("200").find("the program's own code") != std::string::npos);
  for (const char* none : {"", "256", "-65", "SIGNONE", "12x", "99999999999"}) REQUIRE_FALSE(explain(none));
}

TEST_CASE("every code of the launcher that is not success has a remedy", "[unit][ctl]") {
  for (const char* code : {"1", "2", "65", "66", "67", "68", "70", "75"}) {
    INFO(code);
    REQUIRE_FALSE(explain(code)->parts[0].remedy.empty());
  }
}

TEST_CASE("GPUs are listed with those who hold them", "[unit][ctl]") {
  Gpus gpus;
  Gpu& gpu = gpus.list.emplace_back();
  gpu.uuid = "GPU-1";
  gpu.name = "H200";
  GpuFacts& facts = gpus.facts.emplace_back();
  facts.name = "H200";
  facts.memory_bytes = std::int64_t{1} << 30;
  facts.holders = {{42, "python3", std::int64_t{3} << 29}, {43, "x", 0}};
  HoldersByPid holders;
  holders[42] = {.user = "ann", .run_id = "mnist", .rank = 3};
  REQUIRE(gpus_text(gpus, holders) ==
          "GPU 0: H200 (UUID: GPU-1)\n"
          "    pid 42  ann  1.5 GiB  python3  run mnist rank 3\n"
          "    pid 43  -  -  x\n");
  REQUIRE(gpus_json(gpus, holders)["gpus"][0]["holders"][0]["rank"] == 3);
  REQUIRE(gpus_json(gpus, holders)["gpus"][0]["holders"][1]["run_id"] == nullptr);
  const Gpus none{{}, "no NVIDIA driver is loaded"};
  REQUIRE(gpus_text(none, {}).find("driver") != std::string::npos);
  REQUIRE(gpus_json(none, {}) == json{{"gpus", json::array()}, {"reason", "no NVIDIA driver is loaded"}});
}

TEST_CASE("a process is a worker's by its environment", "[unit][ctl]") {
  const auto facts = holder_of_environment(std::string{"A=1\0RANK=3\0TORCHELASTIC_RUN_ID=mnist\0", 36});
  REQUIRE(facts.run_id == "mnist");
  REQUIRE(facts.rank == 3);
  REQUIRE_FALSE(holder_of_environment("RANK=3").rank);  // of another program's job
}

}  // namespace torchup

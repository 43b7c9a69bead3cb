#include "launcher/core/record/torchelastic_events.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

namespace {

LaunchEvent at(std::int64_t ms, EventBody body) { return {{0, ms * 1000}, std::move(body)}; }

event::JobStarted job() {
  event::JobStarted started;
  started.run_id = "2bd754ea";
  started.role = "default";
  started.command = {"/usr/bin/python3", "-u", "f.py"};
  return started;
}

Placement two_workers(int restart_count = 0) {
  Placement placement;
  placement.world_size = 2;
  placement.role_world_size = 2;
  placement.restart_count = restart_count;
  return placement;
}

event::WorkerExited exited(int local_rank, int exit_code) {
  event::WorkerExited end;
  end.worker = {Rank{local_rank}, LocalRank{local_rank}, 10583 + local_rank};
  end.exit_code = exit_code;
  end.end = exit_code == 0 ? WorkerEnd::succeeded : WorkerEnd::failed;
  return end;
}

}  // namespace

TEST_CASE("torchrun's events, to the byte", "[unit][torchelastic_events]") {
  TorchelasticEvents events{"localhost", "c10d"};
  REQUIRE(events.apply(at(100, job())).empty());
  // Lines of torchrun 2.15; the durations are ours.
  REQUIRE(
      events.apply(at(102, event::RoundCompleted{two_workers()})) ==
      R"({"name": "torchelastic.worker.status.RENDEZVOUS", "source": "AGENT", "timestamp": 0, "metadata": {"run_id": "2bd754ea", "global_rank": null, "group_rank": null, "worker_id": null, "role": "default", "hostname": "localhost", "state": "RENDEZVOUS", "total_run_time": 0, "rdzv_backend": "c10d", "raw_error": null, "metadata": "{\"group_world_size\": null, \"entry_point\": \"python3\"}", "agent_restarts": 0, "duration_ms": 2.0}})"
      "\n"
      R"({"name": "torchelastic.worker.status.ASSIGN_WORKER_RANKS", "source": "AGENT", "timestamp": 0, "metadata": {"run_id": "2bd754ea", "global_rank": null, "group_rank": null, "worker_id": null, "role": "default", "hostname": "localhost", "state": "ASSIGN_WORKER_RANKS", "total_run_time": 0, "rdzv_backend": "c10d", "raw_error": null, "metadata": "{\"group_world_size\": null, \"entry_point\": \"python3\"}", "agent_restarts": 0, "duration_ms": 0.0}})"
      "\n");
  REQUIRE(
      events.apply(at(103, event::WorkerStarted{{Rank{1}, LocalRank{1}, 10584}, "", ""})) ==
      R"({"name": "torchelastic.worker.status.START", "source": "WORKER", "timestamp": 0, "metadata": {"run_id": "2bd754ea", "global_rank": 1, "group_rank": 0, "worker_id": "10584", "role": "default", "hostname": "localhost", "state": "START", "total_run_time": 0, "rdzv_backend": "c10d", "raw_error": null, "metadata": "{\"group_world_size\": 1, \"entry_point\": \"python3\", \"local_rank\": [1], \"role_rank\": [1], \"role_world_size\": [2], \"exit_code\": [null], \"worker_pid\": [null]}", "agent_restarts": 0, "duration_ms": null}})"
      "\n");
  REQUIRE(events.apply(at(200, exited(1, 3))).empty());
  Verdict verdict;
  verdict.exit_code = 1;
  REQUIRE(
      events.apply(at(3300, event::JobEnded{verdict})) ==
      R"({"name": "torchelastic.worker.status.FAILED", "source": "WORKER", "timestamp": 0, "metadata": {"run_id": "2bd754ea", "global_rank": 1, "group_rank": 0, "worker_id": "10584", "role": "default", "hostname": "localhost", "state": "FAILED", "total_run_time": 3, "rdzv_backend": "c10d", "raw_error": "{\"message\": \"<NONE>\", \"errorTraits\": {\"category\": \"system_terminated_error\", \"retryability\": \"False\"}}", "metadata": "{\"group_world_size\": 1, \"entry_point\": \"python3\", \"local_rank\": [1], \"role_rank\": [1], \"role_world_size\": [2], \"exit_code\": [3], \"worker_pid\": [10584]}", "agent_restarts": 0, "duration_ms": null}})"
      "\n"
      R"({"name": "torchelastic.worker.status.SUCCEEDED", "source": "AGENT", "timestamp": 0, "metadata": {"run_id": "2bd754ea", "global_rank": null, "group_rank": 0, "worker_id": null, "role": "default", "hostname": "localhost", "state": "SUCCEEDED", "total_run_time": 3, "rdzv_backend": "c10d", "raw_error": null, "metadata": "{\"group_world_size\": 1, \"entry_point\": \"python3\"}", "agent_restarts": 0, "duration_ms": null}})"
      "\n");
}

TEST_CASE("who failed, who was only stopped", "[unit][torchelastic_events]") {
  TorchelasticEvents events{"h", "static"};
  REQUIRE(events.apply(at(0, job())).empty());
  REQUIRE_FALSE(events.apply(at(0, event::RoundCompleted{two_workers()})).empty());
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE_FALSE(events.apply(at(0, event::WorkerStarted{exited(rank, 0).worker, "", ""})).empty());
  }
  Verdict verdict;
  SECTION("a worker that ends with 0 when it is stopped is TERMINATED") {
    REQUIRE(events.apply(at(1, exited(0, 0))).empty());
    REQUIRE(events.apply(at(1, exited(1, -9))).empty());
    verdict.exit_code = 1;
    const std::string lines = events.apply(at(2, event::JobEnded{verdict}));
    REQUIRE(lines.find("status.TERMINATED\", \"source\": \"WORKER\"") < lines.find("status.FAILED\""));
    REQUIRE(lines.find("\"raw_error\": \"{\\\"message\\\": \\\"<NONE>\\\"}\"") != std::string::npos);
  }
  SECTION("after a signal the agent FAILED, and workers are not told") {
    verdict.exit_code = 143;
    verdict.reason = "SIGTERM";
    const std::string lines = events.apply(at(2, event::JobEnded{verdict}));
    REQUIRE(lines.find("status.FAILED\", \"source\": \"AGENT\"") != std::string::npos);
    REQUIRE(lines.find("\"raw_error\": \"SIGTERM\"") != std::string::npos);
    REQUIRE(lines.find("WORKER") == std::string::npos);
  }
  SECTION("only the last attempt's workers are told at the end, with its restart count") {
    REQUIRE(events.apply(at(1, exited(0, 1))).empty());
    REQUIRE(events.apply(at(5, event::AttemptEnded{})).empty());
    const std::string again = events.apply(at(9, event::RoundCompleted{two_workers(1)}));
    REQUIRE(again.find("\"agent_restarts\": 1, \"duration_ms\": 4.0") != std::string::npos);
    REQUIRE(again.find("\"group_rank\": 0") != std::string::npos);
    REQUIRE_FALSE(events.apply(at(9, event::WorkerStarted{exited(0, 0).worker, "", ""})).empty());
    const std::string lines = events.apply(at(10, event::JobEnded{verdict}));
    REQUIRE(lines.find("FAILED") == std::string::npos);
    REQUIRE(lines.find("status.SUCCEEDED\", \"source\": \"WORKER\"") != std::string::npos);
  }
}

#include "rendezvous/core/membership/job_codec.hpp"

#include <catch2/catch.hpp>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

SavedJob full_job() {
  JobSnapshot job;
  job.terms = JobTerms{.min_nodes = 1, .max_nodes = 3, .max_restarts = 2, .lease = 1s, .hostlist = "n[0-2]"};
  job.terms->hang_timeout = {.mode = HangTimeout::Mode::given, .silence = 20s, .start = 40s};
  job.terms->on_hang = OnHang::abort;
  job.terms->straggler_window = 30s;
  job.facts = {{"torch", "2.15.0"}};
  job.coordinator_address = "10.0.0.9";
  job.phase = JobSnapshot::Phase::running;
  job.round = Round{7};
  job.formed_once = true;
  job.restart_count = 2;
  job.restarts = {{90s, 1}, {3s, 2}};
  job.membership_changes = 5;
  Join join;
  join.node = NodeId{"n0_1_0"};
  join.host = "n0";
  join.addresses = {"10.0.0.1", "fd00::1"};
  join.local_world_size = 8;
  join.role = "trainer";
  join.facts = {{"torch", "2.14.0"}};
  job.members.push_back({join, JobSnapshot::Stage::seated, false, "10.0.0.1", 4, {GroupRank{0}, Rank{0}, Rank{0}, 8}});
  join.node = NodeId{"n1_9_0"};
  job.members.push_back({join, JobSnapshot::Stage::ready, true, "10.0.0.2", 6, {}});
  job.next_seniority = 7;
  job.losses = {{"n1", {10s, 2s}}, {"n2", {}}};
  job.group_world_size = 2;
  job.world_size = 16;
  job.master_addr = "fd00::1";
  job.master_port = Port{4000};
  job.leave_left = 1500ms;
  job.orders = {JobRange{1, 2}, {"n1_9", "n7_1"}, true};
  return {RunId{"job \xc3\xa9"}, job};
}

}  // namespace

TEST_CASE("a saved job reads back the same", "[unit][job_codec]") {
  SavedJob job = full_job();
  REQUIRE(*decode_job(encode_job(job)) == job);
  job.snapshot.phase = JobSnapshot::Phase::ended;
  job.snapshot.verdict =
      Verdict{.exit_code = 1, .reason = "rank 3 on n1 exited with 3", .failures = {{.rank = Rank{3}}}};
  job.snapshot.gather_left = job.snapshot.last_call_left = job.snapshot.forget_left = 1h;
  REQUIRE(*decode_job(encode_job(job)) == job);
}

TEST_CASE("a saved job that lost or changed a byte is refused", "[unit][job_codec]") {
  const std::string whole = encode_job(full_job());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const auto cut = decode_job(std::string_view{whole}.substr(0, length));
    REQUIRE(!cut);
    REQUIRE(cut.error().code == errc::bad_frame);
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    REQUIRE(!decode_job(changed));
  }
  REQUIRE(!decode_job(whole + "x"));
}

TEST_CASE("a saved job of another format is refused by its number", "[unit][job_codec]") {
  std::string other = encode_job(full_job());
  ++other[std::string_view{"torchupd job\n"}.size()];
  const auto read = decode_job(other);
  REQUIRE(!read);
  REQUIRE(read.error().code == errc::wrong_version);
  REQUIRE(read.error().context == "it is of format 2 and this torchupd reads format 1");
}

TEST_CASE("a saved job whose parts contradict each other is refused", "[unit][job_codec]") {
  SavedJob job = full_job();
  SECTION("a round without nodes") { job.snapshot.members.erase(job.snapshot.members.begin()); }
  SECTION("a round that nobody can open the store of") {
    job.snapshot.phase = JobSnapshot::Phase::hosting;
    SECTION("nobody is in it") { job.snapshot.members.erase(job.snapshot.members.begin()); }
    SECTION("who is in it has finished") { job.snapshot.members[0].stage = JobSnapshot::Stage::finished; }
    SECTION("one of it has finished") {
      job.snapshot.members[1].stage = JobSnapshot::Stage::finished;
      job.snapshot.members[1].seat = {GroupRank{1}, Rank{8}, Rank{8}, 16};
    }
  }
  SECTION("more nodes than the round has") { job.snapshot.group_world_size = 0; }
  SECTION("an end without a verdict") { job.snapshot.phase = JobSnapshot::Phase::ended; }
  SECTION("members without terms") { job.snapshot.terms.reset(); }
  SECTION("a round without terms") {
    job.snapshot.phase = JobSnapshot::Phase::restoring;
    job.snapshot.members.clear();
    job.snapshot.terms.reset();
  }
  SECTION("one node twice") { job.snapshot.members[1].join = job.snapshot.members[0].join; }
  REQUIRE(!decode_job(encode_job(job)));
}

TEST_CASE("a round that is restored may be saved while none of its nodes is there", "[unit][job_codec]") {
  SavedJob job = full_job();
  job.snapshot.phase = JobSnapshot::Phase::restoring;
  job.snapshot.members.clear();
  REQUIRE(decode_job(encode_job(job)).value() == job);
}

// A file of a job, which grows as frames do.
#include <catch2/catch.hpp>

#include "rendezvous/core/membership/job_codec.hpp"
#include "todays_words.hpp"

using namespace torchup;
using namespace torchup::todays;

namespace {

constexpr std::size_t job_head = std::string_view{"torchupd job\n"}.size() + 4 + 8;

SavedJob todays_job() {
  SavedJob job;
  job.run_id = RunId{"job"};
  job.snapshot.terms = terms();
  job.snapshot.facts = {{"torch", "2.15.0"}};
  Join join = todays_join();
  join.terms = {};
  join.former.reset();
  job.snapshot.members.push_back({join, JobSnapshot::Stage::ready, false, "10.0.0.1", 0, {}});
  job.snapshot.next_seniority = 1;
  return job;
}

/// The file of `today` with a snapshot that ends otherwise: `cut` bytes sooner, then `more`, and `behind` behind it.
///
/// The snapshot is the last part of the file and the last structure but SavedJob, whose fields end with it: bytes
/// behind it are fields of a later SavedJob, and bytes within its length fields of a later snapshot.
std::string with_end(const std::string& today, std::size_t cut, const std::string& more, const std::string& behind) {
  std::string body = today.substr(job_head);
  const std::size_t snapshot_at = 4 + todays_job().run_id.value().size();
  const auto length = static_cast<std::uint32_t>(body.size() - snapshot_at - 4);
  REQUIRE(body.substr(snapshot_at, 4) == number(length));
  body.replace(snapshot_at, 4,
               number(length - static_cast<std::uint32_t>(cut) + static_cast<std::uint32_t>(more.size())));
  body.resize(body.size() - cut);
  body += more + behind;
  std::uint64_t sum = 0xcbf29ce484222325u;
  for (const char byte : body) sum = (sum ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  return today.substr(0, job_head - 8) + number(static_cast<std::uint32_t>(sum)) +
         number(static_cast<std::uint32_t>(sum >> 32)) + body;
}

}  // namespace

TEST_CASE("the job file grows as frames do", "[unit][job_codec]") {
  const SavedJob job = todays_job();
  const std::string today = encode_job(job);
  REQUIRE(decode_job(today).value() == job);
  const auto read = decode_job(with_end(today, 0, "snapshot+", "job+"));
  if (!read) FAIL(read.error().context);
  REQUIRE(*read == job);
}

TEST_CASE("a job file from before there were orders, or keys of stores, is read, and has none", "[unit][job_codec]") {
  SavedJob job = todays_job();
  constexpr std::size_t no_key = sizeof(StoreKey);
  constexpr std::size_t no_orders = 4 + 1 + 4 + 1;  // the length, no range, no agent, no planned stop
  for (const std::size_t cut : {no_key, no_orders + no_key}) {
    const auto read = decode_job(with_end(encode_job(job), cut, "", ""));
    if (!read) FAIL(read.error().context);
    REQUIRE(*read == job);
  }
  job.snapshot.orders = {JobRange{1, 2}, {"a_1"}, true};
  job.snapshot.store_key = {1, 2};
  REQUIRE(decode_job(encode_job(job)).value() == job);
}

TEST_CASE("a job file with a phase or stage that only a later release knows is told to be a later one's",
          "[unit][job_codec]") {
  SavedJob job;
  job.snapshot.phase = static_cast<JobSnapshot::Phase>(6);
  REQUIRE(decode_job(encode_job(job)).error().code == errc::wrong_version);
  job = {};
  job.snapshot.terms = terms();
  Join join = todays_join();
  join.terms = {};
  job.snapshot.members.push_back({join, static_cast<JobSnapshot::Stage>(4), false, "", 0, {}});
  REQUIRE(decode_job(encode_job(job)).error().code == errc::wrong_version);
}

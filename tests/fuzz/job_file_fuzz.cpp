// A file of torchupd's state directory: what is read is written as the same, and a rendezvous goes on from it.
//
// Input: what stands behind the checksum; the target puts the head in front, which a fuzzer does not find.
#include "rendezvous/core/link/wire.hpp"
#include "rendezvous/core/membership/job_codec.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

namespace {

/// As job_codec's.
std::uint64_t checksum(std::string_view bytes) {
  std::uint64_t sum = 0xcbf29ce484222325u;
  for (const char byte : bytes) sum = (sum ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  return sum;
}

void go_on(const JobSnapshot& snapshot) {
  TimePoint now{std::chrono::hours{24 * 1000}};
  Rendezvous machine{{}, snapshot, now};
  (void)machine.step(Connected{Peer{0}, "10.0.0.1", "10.0.0.2"}, now);
  if (!snapshot.members.empty()) {
    Join join = snapshot.members.front().join;
    join.terms = *snapshot.terms;
    (void)machine.step(Resumed{Peer{0}, Resume{.join = join}}, now);
  }
  for (int ticks = 0; ticks < 20 && machine.deadline(); ++ticks) {
    now = std::max(now, *machine.deadline());
    (void)machine.step(Tick{}, now);
  }
  (void)machine.view(now);
  fuzz::require(decode_job(encode_job({RunId{"job"}, machine.snapshot(now)})).has_value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body{reinterpret_cast<const char*>(data), size};
  (void)decode_job(body);
  wire::Writer head;
  head(job_format_version, checksum(body));
  const auto job = decode_job("torchupd job\n" + head.take() + std::string{body});
  if (!job) return 0;
  const auto again = decode_job(encode_job(*job));
  fuzz::require(again && *again == *job);
  go_on(job->snapshot);
  return 0;
}

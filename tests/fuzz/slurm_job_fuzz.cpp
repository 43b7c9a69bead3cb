// What Slurm's commands print of a job: read within the limits of a time and of a line, or refused.
#include "launcher/core/scheduler/slurm_job.hpp"
#include "launcher/core/scheduler/stop_time.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

namespace {

void check_text(const std::string& text) { fuzz::require(text.find_first_of("\n\x1b") == std::string::npos); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  const auto left = read_time_left(text);
  if (!left) {
    check_text(left.error().context);
  } else if (*left) {
    fuzz::require(**left >= Duration{0} && **left <= duration_max);
  }
  const auto state = read_job_state(text);
  check_text(state ? state->state : state.error().context);
  if (state) check_text(why_no_requeue({}, *state, false));
  if (const auto stop = parse_stop_before(text)) fuzz::require(stop->lead > Duration{0} && stop->lead <= duration_max);
  return 0;
}

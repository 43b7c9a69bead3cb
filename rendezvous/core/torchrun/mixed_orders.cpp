// What people order of a job that torchrun's agents share.
#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/core/torchrun/mixed_job.hpp"

namespace torchup {

const MixedJob::Part* MixedJob::part_that_lives() const {
  const auto found = std::ranges::find_if(parts_, [&](const auto& entry) { return !plays_->over(entry.second.id); });
  return found == parts_.end() ? nullptr : &found->second;
}

OrderAnswer MixedJob::answer(const Order& order) const {
  const auto* stop = std::get_if<order::Stop>(&order);
  if (outcome_ && (!stop || !part_that_lives())) {
    return {false, fmt::format("the job has ended: {} (phase: ended)", outcome_->reason)};
  }
  if (!stop) return {false, "torchrun's agents take part in this job, who obey no orders but their own"};
  if (stop->save) return {false, "torchrun's agents take part in this job, whose workers nobody asks to save"};
  if (!part_that_lives()) return {false, "no agent of torchup's runs in this job"};
  return {true, "torchup's agents end; torchrun's lose the rendezvous"};
}

/// As if an agent of ours ended the job for all.
void MixedJob::on(const Ordered& event, TimePoint now) {
  if (!answer(event.order).accepted) return;
  note(OrderReceived{std::string{verb_of(event.order)}, event.by});
  Leave leave{.exit_code = exit_code::terminated, .reason = "stopped by " + event.by};
  leave.kill_now = std::get<order::Stop>(event.order).now;
  plays_->said(part_that_lives()->id, leave, now);
}

}  // namespace torchup

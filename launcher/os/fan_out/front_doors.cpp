#include "launcher/os/fan_out/front_doors.hpp"

#include <unistd.h>

#include <utility>

namespace torchup {
namespace {

CoordinatorOpsOptions onlookers_options(const LaunchConfig& job, pid_t launcher) {
  return {.token = job.rendezvous.token,
          .read_token = job.operations.read_token,
          .host_names = job.operations.host_names,
          .own_job = job.rendezvous.run_id.value(),
          .pid = launcher,
          .job_name = job.program.title};
}

}  // namespace

FrontDoors::FrontDoors(asio::io_context& loop, Coordinator& coordinator, const LaunchConfig& job, pid_t launcher,
                       DoorWords words)
    : loop_{loop}, job_{job}, words_{std::move(words)}, disk_{loop},
      onlookers_{loop, coordinator, onlookers_options(job, launcher)}, socket_{loop, onlookers_.http(), disk_, launcher,
                                                                               words_.warn} {}

void FrontDoors::open() {
  if (job_.operations.control_socket) socket_.open();
  status_.open(loop_, onlookers_.http(), job_.operations, onlookers_.access(), job_.rendezvous.run_id, words_);
}

}  // namespace torchup

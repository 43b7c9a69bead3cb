#include "launcher/os/fan_out/front_doors.hpp"

#include <unistd.h>

#include <utility>

namespace torchup {
namespace {

CoordinatorOpsOptions onlookers_options(const LaunchConfig& job, pid_t launcher) {
  return {.token = job.rendezvous.token,
          .read_token = job.operations.read_token,
          .host_names = job.operations.host_names,
          .page_job = job.rendezvous.run_id.value(),
          .pid = launcher,
          .job_name = job.program.title};
}

}  // namespace

FrontDoors::FrontDoors(asio::io_context& loop, Coordinator& coordinator, const LaunchConfig& job, pid_t launcher,
                       Hooks hooks)
    : loop_{loop}, job_{job}, hooks_{std::move(hooks)}, disk_{loop},
      onlookers_{loop, coordinator, onlookers_options(job, launcher)}, socket_{loop, onlookers_.http(), disk_, launcher,
                                                                               hooks_.warn} {}

void FrontDoors::open() {
  const OperationsOptions& doors = job_.operations;
  if (doors.control_socket) socket_.open();
  if (!doors.status_port) return;
  status_.emplace(
      loop_, onlookers_.http(),
      PagePortOptions{
          .bind = doors.status_bind, .port = *doors.status_port, .access = onlookers_.access(), .idle = {}});
  const auto url = status_->open(job_.rendezvous.run_id.value());
  if (url) return hooks_.print("torchup: the page of this job: " + *url);
  status_.reset();
  hooks_.warn("no --status-port: " + url.error().message());
}

}  // namespace torchup

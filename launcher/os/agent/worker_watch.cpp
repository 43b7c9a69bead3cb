#include "launcher/os/agent/worker_watch.hpp"

#include <utility>

namespace torchup {

WorkerWatch::WorkerWatch(asio::io_context& loop, const WorkerGroup& workers, Duration step_interval,
                         Duration state_interval, Handler handler)
    : workers_{workers}, step_interval_{step_interval}, state_interval_{state_interval}, handler_{std::move(handler)},
      step_timer_{loop}, state_timer_{loop} {}

void WorkerWatch::start() {
  watch_steps();
  watch_states();
}

void WorkerWatch::watch_steps() {
  step_timer_.expires_after(step_interval_);
  step_timer_.async_wait([this](boost::system::error_code error) {
    if (error) return;
    handler_(StepsSeen{workers_.steps()});
    watch_steps();
  });
}

void WorkerWatch::watch_states() {
  state_timer_.expires_after(state_interval_);
  state_timer_.async_wait([this](boost::system::error_code error) {
    if (error) return;
    handler_(StatesSeen{workers_.states()});
    watch_states();
  });
}

}  // namespace torchup

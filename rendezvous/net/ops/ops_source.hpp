#pragma once

#include <string>
#include <vector>

#include "rendezvous/core/ops/job_page.hpp"
#include "rendezvous/net/ops/http_server.hpp"

namespace torchup {

/// What a process knows of jobs: a daemon of all that meet there, an agent of its own.
class OpsSource {
 public:
  virtual ~OpsSource() = default;

  /// Whether the rounds of its jobs are made here. Else all that is asked about jobs goes to `perform`.
  [[nodiscard]] virtual bool hosts() const = 0;
  /// The jobs that are shown, by run id, as they are now.
  [[nodiscard]] virtual std::vector<JobPage*> pages() = 0;
  /// Null: there is none of that run id.
  [[nodiscard]] virtual JobPage* page(const std::string& run_id) = 0;
  /// Everything that is no job's page or event: probes, metrics, /status, orders, logs, stacks. Calls the reply once,
  /// now or later, on the loop.
  virtual void perform(const OpsCall& call, HttpServer::Reply reply) = 0;
};

/// Of how many nodes the text is made anew in one turn of the loop.
inline constexpr std::size_t nodes_a_turn = 2000;

/// Both clocks, as pages want them.
[[nodiscard]] Moment this_moment();

}  // namespace torchup

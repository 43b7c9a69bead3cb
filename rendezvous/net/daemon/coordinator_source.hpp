#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/core/ops/metrics_text.hpp"
#include "rendezvous/net/ops/ops_source.hpp"

namespace torchup {

class Coordinator;

struct CoordinatorSourceOptions {
  std::string own_job = {};              ///< of the agent in this process; empty: there is none
  std::optional<std::int64_t> pid = {};  ///< its launcher's, which its job alone has
  std::string job_name = {};             ///< JobPage::set_name, likewise; empty: it is not known
  /// Those numbers that are not of jobs: of the store, of what is served.
  std::function<CoordinatorNumbers()> numbers = {};
  std::function<std::string()> more_metrics = {};  ///< to be told behind those
  std::function<std::string()> status = {};        ///< GET /status
  /// Orders, logs, stacks, and a page on demand; of a job that is there.
  HttpServer::Perform others = {};
  /// Once a second at least, with all jobs that are shown.
  std::function<void(const std::set<std::string>& run_ids)> shown = {};
};

/// The jobs of a coordinator as they are shown: each has a page, which is brought up to date when somebody asks for it
/// and once a second, and stays for ended_job_told after its end.
class CoordinatorSource final : public OpsSource {
 public:
  /// The coordinator must outlive it.
  CoordinatorSource(boost::asio::io_context& loop, const Coordinator& coordinator, CoordinatorSourceOptions options);

  [[nodiscard]] bool hosts() const override { return true; }
  [[nodiscard]] std::vector<JobPage*> pages() override;
  [[nodiscard]] JobPage* page(const std::string& run_id) override;
  void perform(const OpsCall& call, HttpServer::Reply reply) override;
  /// As it was when it was looked at last; null: it has not been yet.
  [[nodiscard]] JobPage* known(const std::string& run_id) const;

 private:
  void refresh(Duration age);
  void wait_second();
  [[nodiscard]] std::string metrics();

  const Coordinator& coordinator_;
  CoordinatorSourceOptions options_;
  std::string host_;
  std::map<std::string, std::unique_ptr<JobPage>> pages_;
  TimePoint refreshed_{};
  Duration cost_{0};  ///< of the last time
  boost::asio::steady_timer second_;
  std::shared_ptr<char> alive_ = std::make_shared<char>();  ///< a handler that is on its way asks whether this is
};

}  // namespace torchup

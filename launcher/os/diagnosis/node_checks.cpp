#include "launcher/os/diagnosis/node_checks.hpp"

#include <sys/eventfd.h>

#include <string>
#include <utility>
#include <vector>

#include "launcher/os/diagnosis/health_check.hpp"
#include "launcher/os/diagnosis/preflight_facts.hpp"
#include "launcher/os/machine/gpus.hpp"
#include "rendezvous/net/io/background.hpp"

namespace torchup {
namespace {

/// All that the thread needs: nothing of the loop's.
struct Look {
  RunChecks order;
  PreflightPlaces places;
  std::string health_check;
  std::string run_id;
  bool versions = false;
  std::shared_ptr<const UniqueFd> end;
};

/// With what the table of --preflight-only tells of this node.
struct Seen {
  std::vector<Finding> findings;
  std::vector<Check> done;
  std::vector<Fact> versions;
};

void ask_health_check(const Look& look, Seen& seen) {
  HealthQuery query;
  query.command = look.health_check;
  query.run_id = look.run_id;
  query.last_failure = look.order.last_failure;
  query.cancelled = look.end->get();
  seen.done.push_back(Check::health);
  if (auto finding = check_health(query)) seen.findings.push_back(*std::move(finding));
}

Seen look_at_node(Look look) {
  Seen seen;
  if (look.order.ask_gpus) look.places.gpus_found = read_gpus();
  if (look.order.level != PreflightLevel::off) {
    const PreflightFacts facts = read_preflight_facts(look.places, look.order.level);
    seen.findings = preflight_findings(facts, look.order.level);
    seen.done = {Check::shm, Check::nofile, Check::pids, Check::disk};
    if (facts.infiniband) seen.done.push_back(Check::memlock);
    if (!facts.gpus.empty()) seen.done.push_back(Check::gpu);
  }
  if (look.versions) {
    seen.versions = version_facts(python_on_path(), look.places.gpus_found.driver);
    seen.done.push_back(Check::versions);
  }
  // The user's command may do what costs time: no need for that on a node that is unfit anyway.
  if (look.order.health && unfit_reason(seen.findings).empty()) ask_health_check(look, seen);
  return seen;
}

}  // namespace

NodeChecks::NodeChecks(asio::io_context& loop, const LaunchConfig& config, std::string host, Hooks hooks)
    : config_{config}, host_{std::move(host)}, tell_{std::move(hooks.tell)}, post_{loop},
      comparison_{
          loop, config, {[this](NodesCompared compared) { tell_(std::move(compared)); }, std::move(hooks.day_ahead)}} {}

NodeChecks::~NodeChecks() { post_.cut(); }

void NodeChecks::run(const RunChecks& order) {
  cancel();
  current_ = order.number;
  end_ = std::make_shared<const UniqueFd>(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  Look look{order, {}, config_.preflight.health_check, config_.rendezvous.run_id.value(), config_.preflight.only, end_};
  look.places.workers = config_.local_world_size;
  if (config_.output.log_dir != "/dev/null") look.places.log_folder = config_.output.log_dir;
  look.places.temporary_folder = temporary_folder();
  look.places.gpus = config_.preflight.gpus;
  look.places.gpus_found = config_.preflight.gpus_found;
  const auto answer = [this, number = order.number](Seen seen) {
    if (number != current_) return;
    current_ = 0;
    comparison_.know({host_, std::move(seen.done), seen.findings, std::move(seen.versions)});
    tell_(ChecksDone{number, std::move(seen.findings)});
  };
  const auto thread = in_background(
      [look = std::move(look), post = post_, answer] { post([answer, seen = look_at_node(look)] { answer(seen); }); });
  if (thread.valid()) return;
  const Finding finding{Check::pids, order.health ? FindingLevel::unfit : FindingLevel::warning,
                        "the system gives no thread for the checks before the start",
                        "raise ulimit -u, or pids.max of the cgroup"};
  post_([answer, finding] { answer({{finding}, {}, {}}); });
}

void NodeChecks::cancel() {
  current_ = 0;
  if (end_ && *end_) ::eventfd_write(end_->get(), 1);
  end_.reset();
  comparison_.cancel();
}

void NodeChecks::finish() {
  if (config_.preflight.only) comparison_.print_own();
}

}  // namespace torchup

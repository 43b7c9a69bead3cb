#include "launcher/os/diagnosis/node_checks.hpp"

#include <sys/eventfd.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "launcher/os/diagnosis/health_check.hpp"
#include "launcher/os/diagnosis/nccl_probe.hpp"
#include "launcher/os/diagnosis/preflight_facts.hpp"
#include "launcher/os/machine/gpus.hpp"
#include "launcher/os/output/run_directory.hpp"
#include "rendezvous/net/io/background.hpp"

namespace torchup {
namespace {

/// All that the thread needs: nothing of the loop's.
struct Look {
  RunChecks order;
  PreflightPlaces places;
  std::string health_check;
  std::string run_id;
  std::string python;
  bool versions = false;
  bool nccl = false;  ///< whether all_reduce works here
  std::string gpus;   ///< for it
  CondemnedWays ways;
  std::shared_ptr<const UniqueFd> end;
};

/// With what the table of --preflight-only tells of this node.
struct Seen {
  std::vector<Finding> findings;
  std::vector<Check> done;
  std::vector<Fact> versions;
  bool nccl_asked = false;  ///< it may not be worth it
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

void ask_all_reduce(const Look& look, Seen& seen) {
  const NcclProgram program{.path = all_reduce_beside(), .gpus = look.gpus, .cancel = look.end->get()};
  seen.nccl_asked = true;
  if (program.path.empty()) return;
  if (const auto problem = why_no_nccl(program)) {
    seen.findings.push_back(nccl_skipped(*problem));
  } else {
    seen.done.push_back(Check::nccl);
  }
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
    seen.versions = version_facts_within(disk_answer_limit, look.python, look.places.gpus_found.driver);
    if (!seen.versions.empty()) seen.done.push_back(Check::versions);
  }
  if (look.order.ways) {
    if (auto finding = try_again(look.ways, look.end->get())) seen.findings.push_back(*std::move(finding));
  }
  const bool has_gpu = std::ranges::find(seen.done, Check::gpu) != seen.done.end();
  if (look.nccl && has_gpu && unfit_reason(seen.findings).empty()) ask_all_reduce(look, seen);
  // The user's command may do what costs time: no need for that on a node that is unfit anyway.
  if (look.order.health && unfit_reason(seen.findings).empty()) ask_health_check(look, seen);
  return seen;
}

/// Of a look that the system does not let us make: nobody knows then whether the node is fit.
Finding not_looked_at(const RunChecks& order, const std::string& why) {
  const bool matters = order.health || order.level == PreflightLevel::full || order.ask_gpus;
  return {Check::pids, matters ? FindingLevel::unfit : FindingLevel::warning,
          "the node could not be looked at before the start: " + why,
          "raise ulimit -u and ulimit -n, or pids.max of the cgroup"};
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
  Look look{.order = order,
            .places = {},
            .health_check = config_.preflight.health_check,
            .run_id = config_.rendezvous.run_id.value(),
            .python = config_.preflight.python,
            .versions = config_.preflight.only,
            .nccl = order.level == PreflightLevel::full && !config_.one_node() && !nccl_asked_,
            .gpus = gpus_of(config_),
            .ways = comparison_.condemned(),
            .end = end_};
  look.places.workers = config_.local_world_size;
  look.places.in_pod = config_.in_pod;
  if (config_.output.log_dir != "/dev/null") look.places.log_folder = config_.output.log_dir;
  look.places.temporary_folders = temporary_places();
  look.places.asked = disks_;
  look.places.gpus = config_.preflight.gpus;
  look.places.gpus_found = config_.preflight.gpus_found;
  const auto answer = [this, number = order.number, level = order.level](Seen seen) {
    if (number != current_) return;
    current_ = 0;
    nccl_asked_ = nccl_asked_ || seen.nccl_asked;
    remember(seen.done, level != PreflightLevel::off);
    comparison_.know({host_, done_, seen.findings, std::move(seen.versions)});
    tell_(ChecksDone{number, std::move(seen.findings)});
  };
  const auto thread = in_background([look = std::move(look), post = post_, answer] {
    Seen seen;
    try {
      seen = look_at_node(look);
    } catch (const std::exception& error) {  // somebody waits for the answer, whatever happens here
      seen = {{not_looked_at(look.order, error.what())}, {}, {}};
    }
    post([answer, seen] { answer(seen); });
  });
  if (thread.valid()) return;
  post_([answer, finding = not_looked_at(order, "the system gives no thread")] { answer({{finding}, {}, {}}); });
}

/// A mere health check is no reason to forget what was looked at before; whether NCCL works is asked once.
void NodeChecks::remember(const std::vector<Check>& done, bool all) {
  if (all) std::erase_if(done_, [](Check check) { return check != Check::nccl; });
  for (const Check check : done) {
    if (std::ranges::find(done_, check) == done_.end()) done_.push_back(check);
  }
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

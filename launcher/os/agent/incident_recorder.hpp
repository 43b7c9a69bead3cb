#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/record/incident.hpp"
#include "launcher/os/io/shared_page.hpp"
#include "launcher/os/output/evidence.hpp"
#include "launcher/os/output/worker_output.hpp"

namespace torchup {

/// A local worker that lives.
struct LivingWorker {
  Rank rank{0};
  LocalRank local_rank{0};
  pid_t pid = 0;
  std::optional<WorkerProgress> progress = {};  ///< by the page that it shares with us
};

/// Makes the record of each attempt's first failure. On the loop; what may take long is done aside.
///
///     attempt_started     at each start
///     worker_failed       for each worker that ended badly before it was told to
///     take                after the attempt: its record so far, if there was a failure
///     tell                completes the record, writes it, returns it for the console
class IncidentRecorder {
 public:
  /// `writes_files`: false when nobody named a log directory; the temporary one is to vanish.
  IncidentRecorder(asio::io_context& loop, DiskThread& disk, std::string run_id, std::string host, bool writes_files);

  /// Looks at the counters that a later death is compared with.
  void attempt_started();

  /// Reads the dead worker's last words; at the first failure also what `living` are doing: some 20 µs for each.
  /// `ended` are those who had ended well by then. `ended_for`: as in DeathEvidence.
  void worker_failed(const WorkerFailure& failure, const std::string& ended_for, const WorkerRemains& remains,
                     const AttemptOutput& attempt, const std::string& attempt_name,
                     const std::vector<LivingWorker>& living, std::vector<BystanderState> ended, TimePoint now);

  struct Open;  ///< a record that is not yet complete
  [[nodiscard]] std::shared_ptr<Open> take();

  /// One line: what failed first. For the attempt's record.
  [[nodiscard]] static std::string reason(const Open& open);

  /// Asks the system about the death, writes `incident.json` into the attempt's directory (if wanted) and gives the
  /// record with the path of that file (empty: not written).
  struct Told {
    Incident incident;
    std::string path;
    std::string not_written = {};  ///< why there is no such file although there should be; else empty
  };
  Task<Told> tell(std::shared_ptr<Open> open, std::string consequence, std::vector<AttemptRecord> history);

 private:
  DiskThread& disk_;    ///< of the logs
  DiskThread looking_;  ///< for what may stand still where a worker has worked: no log waits for that
  const std::string run_id_;
  const std::string host_;
  const bool writes_files_;
  std::shared_ptr<DeathBaseline> baseline_;  ///< counted and read aside
  std::shared_ptr<Open> open_;
};

}  // namespace torchup

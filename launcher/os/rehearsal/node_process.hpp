#pragma once

#include <sys/types.h>

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launcher/core/rehearsal/rehearsal_report.hpp"
#include "launcher/core/text/line_splitter.hpp"
#include "launcher/os/rehearsal/shown_stream.hpp"
#include "launcher/os/worker/child_process.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// How all agents of --rehearse-nodes are started.
struct NodeCommand {
  std::vector<std::string> words;        ///< our own command line
  std::vector<std::string> environment;  ///< without what says which node it is
  Heritage heritage;
};

/// stdout and stderr.
using ShownStreams = std::array<ShownStream, 2>;

/// One agent of --rehearse-nodes: its process, what it writes and what it reports. Lives in the starter's loop of poll,
/// which watches its descriptors and says which of them are ready.
class NodeProcess {
 public:
  /// The one that was here before has ended. Errors: the system's.
  [[nodiscard]] Result<> start(const NodeCommand& command, const RehearsedNode& node, ShownStreams& shown);

  [[nodiscard]] bool runs() const { return static_cast<bool>(pidfd_); }
  /// Of a process that runs.
  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Lets it and all below it go on, if they are stopped.
  void resume() const;

  // To be watched for reading; -1: nothing.

  [[nodiscard]] int pidfd() const { return pidfd_ ? pidfd_.get() : -1; }
  [[nodiscard]] int reports() const { return reports_ ? reports_.get() : -1; }
  [[nodiscard]] int stream(std::size_t index) const { return streams_.at(index).fd ? streams_.at(index).fd.get() : -1; }

  /// Takes all reports that have come, one after the other. Errors: what was not understood; then no more is heard.
  [[nodiscard]] Result<> read_reports(const std::function<void(const RehearsalReport&)>& take);
  /// Takes a part of what it has written.
  void read_stream(std::size_t index, ShownStream& shown);
  /// Its process is gone: takes what it has left in its streams. Somebody else may still hold those. Returns how it
  /// ended, as a shell shows it.
  [[nodiscard]] int end(ShownStreams& shown);

 private:
  struct Stream {
    UniqueFd fd = {};
    std::optional<LineSplitter> lines = {};
  };
  void finish_stream(Stream& stream, ShownStream& shown);

  pid_t pid_ = -1;
  UniqueFd pidfd_;  ///< empty: no process
  std::array<Stream, 2> streams_ = {};
  UniqueFd reports_;
  std::string report_bytes_;
};

}  // namespace torchup
